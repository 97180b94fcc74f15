"""Test reading a copy of the metadata topic: complete, resumed at any offset, cut, filled with zeros, damaged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, batch_positions, build_batch_around, build_segment
from builders.strategies import partitions
from coldlog.archive import metadata_log_reader
from coldlog.archive.metadata_log import list_metadata_partitions
from coldlog.archive.metadata_log_reader import iter_metadata_records
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.limits import DecodeLimits
from stores.memory_store import MemoryStore

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
Read = tuple[int, int, bytes | None]
"""Offset, timestamp and value."""
WINDOW_BYTES = (1, 61, 100, 997, 1 << 20)


def _name(segment: Segment, partition: int = 0) -> str:
    return f"__remote_log_metadata-{partition}/{segment.start_offset:020d}.log"


def _store(segments: Sequence[Segment]) -> MemoryStore:
    return MemoryStore({_name(segment): build_segment(segment.batches) for segment in segments})


def _records(segments: Sequence[Segment]) -> list[Read]:
    batches = [batch for segment in segments for batch in segment.batches if not batch.is_control]
    return [(each.offset, each.timestamp_ms, each.value) for batch in batches for each in batch.placed_records]


def _read(store: MemoryStore, from_offset: int = 0, window_bytes: int = 4 << 20) -> tuple[list[Read], str, int | None]:
    """The records of the only partition, then the object and the position of the damage, if any."""
    (partition,) = list_metadata_partitions(store)
    found: list[Read] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_log_reader, "_WINDOW_BYTES", window_bytes)
        try:
            for record in iter_metadata_records(store, partition, from_offset, LIMITS):
                found.append((record.offset, record.timestamp_ms, record.value))
        except ArchiveError as wrong:
            return found, wrong.object_name, wrong.position
    return found, "", None


def _plain(*first_offsets: int) -> list[Segment]:
    """A segment of three batches of two records at each offset."""
    return [
        Segment(
            batches=tuple(
                Batch(
                    base_offset=base,
                    records=tuple(Record(timestamp_ms=base + at, value=b"event %d" % (base + at)) for at in (0, 1)),
                )
                for base in (first, first + 2, first + 4)
            )
        )
        for first in first_offsets
    ]


@given(segments=partitions(), choice=st.data())
def test_reading_from_any_offset_gives_the_records_from_there_on(
    segments: list[Segment], choice: st.DataObject
) -> None:
    expected = _records(segments)
    window_bytes = choice.draw(st.sampled_from(WINDOW_BYTES))
    assert _read(_store(segments), 0, window_bytes) == (expected, "", None)
    from_offset = choice.draw(st.integers(segments[0].start_offset - 1, segments[-1].end_offset + 2))
    tail = [record for record in expected if record[0] >= from_offset]
    assert _read(_store(segments), from_offset, window_bytes) == (tail, "", None)


def test_files_before_the_requested_offset_are_not_read() -> None:
    store = _store(_plain(0, 6, 12))
    assert [record[0] for record in _read(store, 13)[0]] == [13, 14, 15, 16, 17]
    assert {read.name for read in store.reads} == {_name(_plain(12)[0])}


@given(segments=partitions(max_segments=3), choice=st.data())
def test_cut_batch_is_the_end_of_the_last_segment_and_damage_in_an_earlier_one(
    segments: list[Segment], choice: st.DataObject
) -> None:
    which = choice.draw(st.integers(0, len(segments) - 1))
    content = build_segment(segments[which].batches)
    at = choice.draw(st.integers(0, len(content) - 1))
    positions = batch_positions(segments[which].batches)
    whole = [
        batch for batch, begin in zip(segments[which].batches, positions, strict=True) if begin + _size(batch) <= at
    ]
    begun = max(begin for begin in positions if begin <= at)
    store = _store(segments)
    store.objects[_name(segments[which])] = content[:at]
    found, object_name, position = _read(store, 0, choice.draw(st.sampled_from(WINDOW_BYTES)))
    before = _records([*segments[:which], *_if_any(whole)])
    if which == len(segments) - 1:
        assert (found, object_name, position) == (before, "", None)
    elif at in positions:
        assert (found, object_name, position) == (before + _records(segments[which + 1 :]), "", None)
    else:
        assert (found, object_name, position) == (before, _name(segments[which]), begun)


def _size(batch: Batch) -> int:
    return len(build_segment([batch]))


def _if_any(batches: Sequence[Batch]) -> list[Segment]:
    return [Segment(batches=tuple(batches))] if batches else []


@pytest.mark.parametrize("window_bytes", WINDOW_BYTES)
@pytest.mark.parametrize("zeros", [1, 16, 17, 61, 5000])
def test_zeros_are_the_end_of_the_last_segment_and_damage_in_an_earlier_one(zeros: int, window_bytes: int) -> None:
    segments = _plain(0, 6)
    last, first = _store(segments), _store(segments)
    last.objects[_name(segments[1])] += bytes(zeros)
    assert _read(last, 0, window_bytes) == (_records(segments), "", None)
    size = len(first.objects[_name(segments[0])])
    first.objects[_name(segments[0])] += bytes(zeros)
    assert _read(first, 0, window_bytes) == (_records(segments[:1]), _name(segments[0]), size)


@pytest.mark.parametrize("window_bytes", WINDOW_BYTES)
def test_zeros_followed_by_other_bytes_are_damage(window_bytes: int) -> None:
    segments = _plain(0, 6)
    store = _store(segments)
    size = len(store.objects[_name(segments[1])])
    store.objects[_name(segments[1])] += bytes(2000) + build_segment(_plain(12)[0].batches)
    assert _read(store, 0, window_bytes) == (_records(segments), _name(segments[1]), size)


@given(segments=partitions(max_segments=3), choice=st.data())
def test_flipped_byte_is_reported_with_its_position_after_the_records_before_it(
    segments: list[Segment], choice: st.DataObject
) -> None:
    which = choice.draw(st.integers(0, len(segments) - 1))
    content = bytearray(build_segment(segments[which].batches))
    at = choice.draw(st.integers(0, len(content) - 1))
    content[at] ^= choice.draw(st.integers(1, 255))
    positions = batch_positions(segments[which].batches)
    hit = max(index for index, begin in enumerate(positions) if begin <= at)
    store = _store(segments)
    store.objects[_name(segments[which])] = bytes(content)
    found, object_name, position = _read(store, 0, choice.draw(st.sampled_from(WINDOW_BYTES)))
    before = _records([*segments[:which], *_if_any(segments[which].batches[:hit])])
    assert found[: len(before)] == before
    in_batch = at - positions[hit]
    if in_batch >= 16:  # after base offset, length and leader epoch, which no checksum covers
        assert (found, object_name, position) == (before, _name(segments[which]), positions[hit])
    elif 8 <= in_batch < 12:  # the length: a longer one looks like a cut tail at the end of the last file
        assert found == before
        assert object_name == _name(segments[which]) or which == len(segments) - 1
    elif object_name:
        assert object_name in {_name(segment) for segment in segments[which:]}


def test_flipped_base_offset_that_overlaps_the_next_batch_is_damage() -> None:
    segments = _plain(0, 6)
    store = _store(segments)
    content = bytearray(store.objects[_name(segments[0])])
    content[7] = 9
    store.objects[_name(segments[0])] = bytes(content)
    found, object_name, position = _read(store)
    assert [offset for offset, _, _ in found] == [9, 10]
    assert (object_name, position) == (_name(segments[0]), batch_positions(segments[0].batches)[1])


def test_offsets_of_a_file_that_overlap_the_next_file_are_damage() -> None:
    """Otherwise an event would be returned twice."""
    segments = [*_plain(0), *_plain(4)]
    found, object_name, position = _read(_store(segments))
    assert [offset for offset, _, _ in found] == [0, 1, 2, 3, 4, 5]
    assert (object_name, position) == (_name(segments[1]), 0)


@pytest.mark.parametrize("codec", Codec)
def test_records_before_an_unreadable_batch_are_returned_once(codec: Codec) -> None:
    """The batch has a correct checksum, but its records or its compressed block are damaged."""
    good = _plain(0)[0]
    lie = Batch(base_offset=6, records=(Record(timestamp_ms=0),), codec=codec)
    content = build_batch_around(lie, b"\xff" * 40)
    before = build_segment(good.batches)
    store = MemoryStore({_name(good): before + content + build_segment(_plain(8)[0].batches)})
    for window_bytes in WINDOW_BYTES:
        assert _read(store, 0, window_bytes) == (_records([good]), _name(good), len(before))


def test_batches_before_the_requested_offset_are_not_decoded() -> None:
    first, second = _plain(0, 8)
    lie = Batch(base_offset=6, records=(Record(timestamp_ms=0),))
    content = build_segment(first.batches) + build_batch_around(lie, b"\xff" * 40) + build_segment(second.batches)
    store = MemoryStore({_name(first): content})
    for window_bytes in WINDOW_BYTES:
        assert _read(store, 8, window_bytes) == (_records([second]), "", None)


def test_stray_names_are_ignored() -> None:
    segment = _plain(0)[0]
    content = build_segment(segment.batches)
    strays = (
        "__remote_log_metadata-0/00000000000000000000.index",
        "__remote_log_metadata-0/00000000000000000009.log.deleted",
        "__remote_log_metadata-0/99999999999999999999.log",
        "__remote_log_metadata-0/9.log",
        "__remote_log_metadata-0/partition.metadata",
        "__remote_log_metadata-0/below/00000000000000000000.log",
        "__remote_log_metadata-00/00000000000000000000.log",
        "__remote_log_metadata-0.9f3cbd4e2b4f4b8e9a9d-delete/00000000000000000000.log",
        "__remote_log_metadata-x/00000000000000000000.log",
        "__remote_log_metadata/00000000000000000000.log",
        "a__remote_log_metadata-1/00000000000000000000.log",
        "orders-0/00000000000000000000.log",
        "meta.properties",
    )
    store = MemoryStore({_name(segment): content, **dict.fromkeys(strays, b"\xff" * 100)})
    assert _read(store) == (_records([segment]), "", None)


def test_partitions_are_listed_by_number_and_empty_ones_have_no_records() -> None:
    segment = _plain(0)[0]
    content = build_segment(segment.batches)
    names = [_name(segment, 10), _name(segment, 9)]
    store = MemoryStore({**dict.fromkeys(names, content), "__remote_log_metadata-3/partition.metadata": b""})
    listed = list_metadata_partitions(store)
    assert [(each.partition, len(each.files)) for each in listed] == [(3, 0), (9, 1), (10, 1)]
    assert list(iter_metadata_records(store, listed[0], 0, LIMITS)) == []


@pytest.mark.parametrize("is_last", [True, False])
def test_file_cut_or_removed_while_it_is_read_ends_there(is_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log_reader, "_WINDOW_BYTES", 61)
    segments = _plain(0) if is_last else _plain(0, 6)
    store = _store(segments)
    (partition,) = list_metadata_partitions(store)
    content = store.objects[_name(segments[0])]
    store.objects[_name(segments[0])] = content[: batch_positions(segments[0].batches)[1] + 3]
    first = iter_metadata_records(store, partition, 0, LIMITS)
    assert [next(first).offset, next(first).offset] == [0, 1]
    if is_last:
        assert list(first) == []
    else:
        with pytest.raises(ArchiveError) as cut:
            next(first)
        assert cut.value.reason is Reason.LOG_TRUNCATED
    del store.objects[_name(segments[0])]
    with pytest.raises(ArchiveError) as gone:
        next(iter_metadata_records(store, partition, 0, LIMITS))
    assert (gone.value.reason, gone.value.object_name) == (Reason.OBJECT_MISSING, _name(segments[0]))


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_wrong_length_in_the_last_segment_is_damage_if_whole_batches_follow(batch: int) -> None:
    (segment,) = _plain(0)
    log = bytearray(build_segment(segment.batches))
    at = sum(_size(each) for each in segment.batches[:batch])
    log[at + 9] = 0x03  # about 200 KB, within the limit and beyond the end of the file
    found, name, position = _read(MemoryStore({_name(segment): bytes(log)}))
    assert found == _records([segment])[: 2 * batch]
    assert (name, position) == (("", None) if batch == 2 else (_name(segment), at))
