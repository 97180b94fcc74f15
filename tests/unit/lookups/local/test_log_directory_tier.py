"""Test the local tier of a log directory against a scan of every record of the model that wrote it."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.brute_force import find_first_offset
from builders.log_directory_writer import HIGH_WATERMARKS, LOG_STARTS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, PlacedRecord, Record, Segment, abort_marker, build_batch, commit_marker
from builders.side_files import build_leader_epoch_checkpoint, extend_lineage
from builders.strategies import log_start_offsets, partitions, timestamps_to_ask
from coldlog.archive.layouts import log_windows
from coldlog.archive.stores.local_store import LocalStore
from coldlog.errors import ArchiveError, Reason, RetriableError, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.local.local_tier import FoundOffset, LocalLogState
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
TOPIC = "a-b.c-1"


def _tier(directory: Path, window_bytes: int = 4 << 20) -> LogDirectoryTier:
    return LogDirectoryTier(str(directory), LIMITS, window_bytes)


def _batch(base_offset: int, *timestamps_ms: int, epoch: int = 0, producer_id: int = -1) -> Batch:
    return Batch(
        base_offset=base_offset,
        records=tuple(Record(timestamp_ms=each, value=b"v" * 30, headers=((b"h", b"x"),)) for each in timestamps_ms),
        leader_epoch=epoch,
        is_transactional=producer_id >= 0,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
    )


def _segments(*batches: Sequence[Batch]) -> list[Segment]:
    return [Segment(batches=tuple(each), index_interval_bytes=0) for each in batches]


PLAIN = _segments(
    [_batch(0, 50, 10), _batch(2, 40, 20)],
    [_batch(4, 30, 60, epoch=2), _batch(6, 10, 15, epoch=2)],
    [_batch(8, 60, 55, epoch=5), _batch(10, 5, 60, epoch=5)],
)


def _as_found(record: PlacedRecord | None) -> FoundOffset | None:
    if record is None:
        return None
    return FoundOffset(offset=record.offset, timestamp_ms=record.timestamp_ms, leader_epoch=record.leader_epoch)


def _expected_offset(segments: Sequence[Segment], timestamp_ms: int, from_offset: int) -> FoundOffset | None:
    found = find_first_offset(segments, timestamp_ms, log_start_offset=from_offset)
    return (
        None
        if found is None
        else FoundOffset(offset=found.offset, timestamp_ms=found.timestamp_ms, leader_epoch=found.leader_epoch)
    )


def _expected_largest(segments: Sequence[Segment]) -> FoundOffset | None:
    records = [record for segment in segments for record in segment.placed_records]
    return _as_found(max(records, key=lambda each: (each.timestamp_ms, -each.offset), default=None))


def _expected_open(segments: Sequence[Segment], decided_before: int) -> int | None:
    """Find the first offset of the oldest transaction without a marker, batch by batch."""
    first_offsets: dict[int, int] = {}
    for batch in (batch for segment in segments for batch in segment.batches if batch.base_offset < decided_before):
        if batch.is_control:
            first_offsets.pop(batch.producer_id, None)
        elif batch.is_transactional:
            first_offsets.setdefault(batch.producer_id, batch.base_offset)
    return min(first_offsets.values(), default=None)


@given(st.data())
def test_first_offset_agrees_with_a_scan_of_every_record(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    segments = data.draw(partitions())
    directory = tmp_path_factory.mktemp("logs")
    write_partition(directory, TOPIC, 7, segments)
    tier = _tier(directory, data.draw(st.sampled_from((61, 500, 4 << 20))))
    for _ in range(4):
        timestamp_ms, from_offset = data.draw(timestamps_to_ask(segments)), data.draw(log_start_offsets(segments))
        expected = _expected_offset(segments, timestamp_ms, from_offset)
        assert tier.find_offset(TOPIC, 7, timestamp_ms, from_offset) == expected


@given(segments=partitions())
def test_largest_timestamp_agrees_with_a_scan_of_every_record(
    tmp_path_factory: pytest.TempPathFactory, segments: list[Segment]
) -> None:
    directory = tmp_path_factory.mktemp("logs")
    write_partition(directory, TOPIC, 7, segments)
    assert _tier(directory).find_max_timestamp(TOPIC, 7) == _expected_largest(segments)


@given(st.data())
def test_state_agrees_with_the_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    segments = data.draw(partitions())
    first = data.draw(st.integers(0, len(segments) - 1))
    directory = tmp_path_factory.mktemp("logs")
    write_partition(directory, TOPIC, 7, segments, first=first)
    base = segments[first].start_offset
    lineage = extend_lineage([], [batch for segment in segments for batch in segment.batches])
    ends = [batch.last_offset + 1 for segment in segments[first:] for batch in segment.batches]
    checkpointed = data.draw(st.sampled_from((None, base, *ends, ends[-1] + 9)))
    if checkpointed is not None:
        write_offset_checkpoint(directory / HIGH_WATERMARKS, {(TOPIC, 7): checkpointed, ("other", 7): 1})
    log_start, log_end = lineage[0][1], ends[-1]
    high_watermark = max(log_end if checkpointed is None else min(checkpointed, log_end), base, log_start)
    first_open = _expected_open(segments, high_watermark)
    assert _tier(directory).read_state(TOPIC, 7) == LocalLogState(
        log_start_offset=log_start,
        local_log_start_offset=max(base, log_start),
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if first_open is None else max(min(first_open, high_watermark), log_start),
        leader_epoch=lineage[-1][0],
        topic_id="A" * 22,
    )


def test_search_begins_at_the_offset_of_the_question(tmp_path: Path) -> None:
    write_partition(tmp_path, TOPIC, 0, PLAIN)
    tier = _tier(tmp_path)
    expected = [(40, 0, 0, 50, 0), (40, 1, 2, 40, 0), (40, 3, 5, 60, 2), (60, 6, 8, 60, 5), (60, 9, 11, 60, 5)]
    for timestamp_ms, from_offset, offset, found_ms, epoch in expected:
        found = FoundOffset(offset=offset, timestamp_ms=found_ms, leader_epoch=epoch)
        assert tier.find_offset(TOPIC, 0, timestamp_ms, from_offset) == found
    assert tier.find_offset(TOPIC, 0, 60, 12) is None
    assert tier.find_offset(TOPIC, 0, 61, 0) is None
    assert tier.find_max_timestamp(TOPIC, 0) == FoundOffset(offset=5, timestamp_ms=60, leader_epoch=2)


def test_missing_partition_is_none_and_a_missing_directory_is_a_usage_error(tmp_path: Path) -> None:
    tier = _tier(tmp_path)
    assert tier.read_state("orders", 0) is None
    assert tier.find_offset("orders", 0, 0, 0) is None
    assert tier.find_max_timestamp("orders", 0) is None
    assert tier.leader_epoch_at("orders", 0, 0) == -1
    with pytest.raises(UsageError, match="none is not a directory that can be reached"):
        _tier(tmp_path / "none").read_state("orders", 0)


def test_tier_can_be_pickled(tmp_path: Path) -> None:
    write_partition(tmp_path, TOPIC, 0, PLAIN)
    tier = _tier(tmp_path)
    copied = pickle.loads(pickle.dumps(tier))
    assert copied == tier
    assert copied.read_state(TOPIC, 0) == tier.read_state(TOPIC, 0)


def test_complete_segments_are_skipped_by_the_last_entry_of_their_time_index(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    (folder / f"{0:020d}.log").write_bytes(b"not to be read")
    assert _tier(tmp_path).find_offset(TOPIC, 0, 51, 0) == FoundOffset(offset=5, timestamp_ms=60, leader_epoch=2)
    with pytest.raises(ArchiveError):
        _tier(tmp_path).find_offset(TOPIC, 0, 50, 0)


@pytest.mark.parametrize("content", [None, b"", b"x" * 13, struct.pack(">qiqi", 7, 0, 3, 0), b"\0" * 1_200])
def test_segment_without_a_closed_time_index_is_read(tmp_path: Path, content: bytes | None) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    for segment in PLAIN:
        path = folder / f"{segment.start_offset:020d}.timeindex"
        path.unlink() if content is None else path.write_bytes(content)
    for timestamp_ms in range(70):
        expected = _expected_offset(PLAIN, timestamp_ms, 0)
        assert _tier(tmp_path).find_offset(TOPIC, 0, timestamp_ms, 0) == expected
    assert _tier(tmp_path).find_max_timestamp(TOPIC, 0) == _expected_largest(PLAIN)


def test_time_index_that_was_never_closed_promises_nothing(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    (folder / f"{4:020d}.timeindex").write_bytes(struct.pack(">qi", 30, 1).ljust(1_200, b"\0"))
    assert _tier(tmp_path).find_offset(TOPIC, 0, 51, 0) == FoundOffset(offset=5, timestamp_ms=60, leader_epoch=2)


def test_offset_index_entry_that_is_no_batch_is_ignored(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    second = len(build_batch(PLAIN[0].batches[0]))
    for position in (1, 60, second, 10_000):
        for segment in PLAIN:
            wrong = struct.pack(">ii", 1, position)
            (folder / f"{segment.start_offset:020d}.index").write_bytes(wrong)
        for from_offset in range(13):
            expected = _expected_offset(PLAIN, 15, from_offset)
            assert _tier(tmp_path).find_offset(TOPIC, 0, 15, from_offset) == expected


def test_broker_compatible_search_reads_only_the_first_segment_that_promises_the_timestamp(tmp_path: Path) -> None:
    untimed = replace(_segments([_batch(12, -1, -1)])[0], modified_ms=65)  # the file's time is its promise
    segments = [*PLAIN, untimed, *_segments([_batch(14, 70, 62), _batch(16, 80)])]
    folder = write_partition(tmp_path, TOPIC, 0, segments)
    os.utime(folder / f"{12:020d}.log", ns=(65_000_000, 65_000_000))
    for timestamp_ms in range(0, 90, 5):
        reached = [each for each in segments if each.metadata_max_timestamp_ms >= timestamp_ms][:1]
        for from_offset in range(18):
            found = _tier(tmp_path).find_offset(TOPIC, 0, timestamp_ms, from_offset, broker_compatible=True)
            assert found == _expected_offset(reached, timestamp_ms, from_offset), (timestamp_ms, from_offset)


def test_broker_compatible_search_does_not_replace_timestamp_zero_by_the_time_of_the_file(tmp_path: Path) -> None:
    segments = _segments([_batch(0, 0, 0)], [_batch(2, 40)])
    write_partition(tmp_path, TOPIC, 0, segments)
    found = _tier(tmp_path).find_offset(TOPIC, 0, 5, 0, broker_compatible=True)
    assert found == FoundOffset(offset=2, timestamp_ms=40, leader_epoch=0)


@pytest.mark.parametrize("window_bytes", [300, 4 << 20])
def test_index_of_a_follower_leads_to_the_first_record(tmp_path: Path, window_bytes: int) -> None:
    """An entry names the end of a fetched set and the position of its first batch."""
    times = (30, 10, 70, 20, 50, 90, 40, 90, 60, 80, 120, 110)
    batches = [_batch(3 * at, ms, ms + 5, ms - 5) for at, ms in enumerate(times * 2)]
    segments = [
        Segment(batches=tuple(batches[at : at + 12]), index_interval_bytes=0, batches_per_append=4) for at in (0, 12)
    ]
    write_partition(tmp_path, TOPIC, 0, segments)
    tier = _tier(tmp_path, window_bytes)
    for timestamp_ms in range(0, 130, 5):
        for from_offset in range(74):
            expected = _expected_offset(segments, timestamp_ms, from_offset)
            assert tier.find_offset(TOPIC, 0, timestamp_ms, from_offset) == expected
    assert tier.find_max_timestamp(TOPIC, 0) == _expected_largest(segments)


@pytest.mark.parametrize("batches_per_append", [1, 50], ids=["leader", "follower"])
def test_indexes_keep_the_reads_of_a_log_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches_per_append: int
) -> None:
    batches = [_batch(2 * at, 1_000 + at, 1_000 + at) for at in range(20_000)]
    segments = [
        Segment(batches=tuple(batches[at : at + 5_000]), batches_per_append=batches_per_append)
        for at in range(0, 20_000, 5_000)
    ]
    write_partition(tmp_path, TOPIC, 0, segments)
    read: list[int] = []
    read_range = LocalStore.read_range

    def counted(store: LocalStore, name: str, position: int, length: int) -> memoryview:
        content = read_range(store, name, position, length)
        read.append(len(content) if name.endswith(".log") else 0)
        return content

    monkeypatch.setattr(LocalStore, "read_range", counted)
    for at in range(0, 20_000, 1_111):
        read.clear()
        found = _tier(tmp_path).find_offset(TOPIC, 0, 1_000 + at, 0)
        assert found == FoundOffset(offset=2 * at, timestamp_ms=1_000 + at, leader_epoch=0)
        assert sum(read) <= log_windows.FIRST_WINDOW_BYTES


def test_active_log_may_end_in_a_torn_batch(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    active, torn = folder / f"{8:020d}.log", build_batch(_batch(12, 99))
    whole = active.read_bytes()
    for tail in (torn[:-1], torn[:50], torn[:9], torn[:-4] + b"\0" * 900, b"\0" * 900):
        active.write_bytes(whole + tail)
        tier = _tier(tmp_path)
        state = tier.read_state(TOPIC, 0)
        assert state is not None
        assert (state.high_watermark, tier.find_offset(TOPIC, 0, 61, 0)) == (12, None)
        assert tier.find_max_timestamp(TOPIC, 0) == _expected_largest(PLAIN)
    active.write_bytes(whole + torn)
    assert _tier(tmp_path).find_offset(TOPIC, 0, 61, 0) == FoundOffset(offset=12, timestamp_ms=99, leader_epoch=0)


def test_segment_that_was_just_rolled_may_be_empty(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    for suffix in (".log", ".index", ".timeindex"):
        (folder / f"{12:020d}{suffix}").write_bytes(b"")
    state = _tier(tmp_path).read_state(TOPIC, 0)
    assert state is not None
    assert (state.high_watermark, state.last_stable_offset) == (12, 12)
    assert _tier(tmp_path).find_max_timestamp(TOPIC, 0) == _expected_largest(PLAIN)


def test_log_start_is_the_higher_of_checkpoint_and_lineage(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN, first=1)
    lineage = folder / "leader-epoch-checkpoint"

    def starts() -> tuple[int, int]:
        state = _tier(tmp_path).read_state(TOPIC, 0)
        assert state is not None
        return state.log_start_offset, state.local_log_start_offset

    assert starts() == (0, 4), "a tiered log that has no checkpoint yet begins below what is held locally"
    write_offset_checkpoint(tmp_path / LOG_STARTS, {(TOPIC, 0): 3})
    assert starts() == (3, 4)
    write_offset_checkpoint(tmp_path / LOG_STARTS, {(TOPIC, 0): 6})
    assert starts() == (6, 6), "inside a local segment"
    lineage.write_bytes(build_leader_epoch_checkpoint([(2, 7), (5, 8)]))
    assert starts() == (7, 7), "the checkpoint is a minute old"
    (tmp_path / LOG_STARTS).unlink()
    lineage.unlink()
    assert starts() == (4, 4)


def test_leader_epoch_is_that_of_the_lineage(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    tier = _tier(tmp_path)
    assert [tier.leader_epoch_at(TOPIC, 0, offset) for offset in (0, 3, 4, 7, 8, 12, 99)] == [0, 0, 2, 2, 5, 5, 5]
    (folder / "leader-epoch-checkpoint").write_bytes(build_leader_epoch_checkpoint([(2, 6)]))
    assert tier.leader_epoch_at(TOPIC, 0, 5) == -1


TRANSACTIONS = _segments(
    [_batch(0, 1, producer_id=1), _batch(1, 1, producer_id=2)],
    [
        _batch(2, 1, producer_id=3),
        abort_marker(offset=3, timestamp_ms=1, producer_id=1, producer_epoch=0, leader_epoch=0),
        _batch(4, 1, producer_id=1),
    ],
    [
        commit_marker(offset=5, timestamp_ms=1, producer_id=2, producer_epoch=0, leader_epoch=0),
        commit_marker(offset=6, timestamp_ms=1, producer_id=3, producer_epoch=0, leader_epoch=0),
        _batch(7, 1),
    ],
)


@pytest.mark.parametrize("lost", [(), ("5",), ("5", "2")])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_last_stable_offset_is_the_first_of_the_oldest_transaction_without_a_marker_below_the_high_watermark(
    tmp_path: Path, first: int, lost: tuple[str, ...]
) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, TRANSACTIONS, first=first)
    base = TRANSACTIONS[first].start_offset
    for offset in lost:
        if int(offset) != base:
            (folder / f"{int(offset):020d}.snapshot").write_bytes(b"torn")
    for high_watermark, stable in ((8, 4), (7, 4), (6, 2), (5, 1), (4, 1), (3, 0), (2, 0), (1, 0)):
        write_offset_checkpoint(tmp_path / HIGH_WATERMARKS, {(TOPIC, 0): high_watermark})
        state = _tier(tmp_path).read_state(TOPIC, 0)
        assert state is not None
        if high_watermark >= base:
            assert (state.high_watermark, state.last_stable_offset) == (high_watermark, stable)
        else:
            assert state.high_watermark == base


def test_snapshot_after_the_end_of_the_log_is_ignored(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, TRANSACTIONS)
    (folder / f"{8:020d}.snapshot").write_bytes((folder / f"{5:020d}.snapshot").read_bytes())
    active = folder / f"{5:020d}.log"
    active.write_bytes(b"".join(build_batch(each) for each in TRANSACTIONS[2].batches[:1]))
    state = _tier(tmp_path).read_state(TOPIC, 0)
    assert state is not None
    assert (state.high_watermark, state.last_stable_offset) == (6, 2)


def test_damage_in_a_complete_segment_is_reported_with_its_position(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    path = folder / f"{4:020d}.log"
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveError) as refused:
        _tier(tmp_path).find_offset(TOPIC, 0, 51, 0)
    assert refused.value.reason is Reason.CRC_MISMATCH
    assert (refused.value.object_name, refused.value.position) == (f"{TOPIC}-0/{4:020d}.log", 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArchiveError):
        _tier(tmp_path).find_offset(TOPIC, 0, 51, 0)


class _Vanishing:
    """Deletes the first segment, as a broker does, right before its log is read, a given number of times."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.times, read_range = times, LocalStore.read_range

        def read(store: LocalStore, name: str, position: int, length: int) -> memoryview:
            if name.endswith(".log") and self.times:
                self.times -= 1
                oldest = min(folder.glob("*.log"))
                oldest.rename(oldest.with_name(f"{oldest.name}.deleted"))
            return read_range(store, name, position, length)

        monkeypatch.setattr(LocalStore, "read_range", read)


def test_question_is_repeated_if_a_segment_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    _Vanishing(folder, monkeypatch, 1)
    assert _tier(tmp_path).find_offset(TOPIC, 0, 40, 0) == FoundOffset(offset=5, timestamp_ms=60, leader_epoch=2)


def test_log_that_keeps_changing_is_a_retriable_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_partition(tmp_path, TOPIC, 0, PLAIN)
    _Vanishing(folder, monkeypatch, 2)
    with pytest.raises(RetriableError, match="a-b.c-1-0 changed while it was read"):
        _tier(tmp_path).find_offset(TOPIC, 0, 40, 0)
