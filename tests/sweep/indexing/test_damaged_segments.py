"""Test that each damaged log becomes one row with the position of the damage, and changes no other segment."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import replace

import pytest

from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.errors import Reason
from coldlog.model.states import IndexDepth
from damage.damaged_archives import (
    INDEXED,
    LOG,
    PARTITION,
    PATTERNS,
    SIDE_FILES,
    Partition,
    build,
    build_between_neighbours,
    build_works,
    flips,
    integer_of,
    list_works,
    options,
    plan_of,
    quarantined,
    small_segment,
    undamaged,
)
from drawn_examples import is_sampled, sampled
from stores.memory_store import MemoryStore


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_every_flipped_byte_of_a_log_is_reported_with_its_batch(depth: IndexDepth) -> None:
    """The checksum covers a batch from its attributes on. A wrong magic or length is always found. A wrong base offset
    is found at this batch, at the next batch, or in the time index. A wrong leader epoch is found if epochs decrease or
    if the checkpoint does not have it. Otherwise the segment no longer follows the lineage of its partition."""
    borders, passed = PARTITION.borders, 0
    for at, log in sampled(flips(PARTITION.content(LOG), PATTERNS)):
        batch = bisect_right(borders, at) - 1
        begin, following, field_at = borders[batch], borders[batch + 1], at - borders[batch]
        built = build_between_neighbours(PARTITION.with_content(LOG, log), depth)
        is_base_offset, is_leader_epoch = field_at < 8, 12 <= field_at < 16
        is_last = following == borders[-1]
        row = quarantined(built, "")
        if row is None:
            assert is_leader_epoch, at
            whole = undamaged(depth)
            (told,) = [each for each in plan_of([whole[0], built, whole[2]]).segments if not each.is_within_lineage]
            assert told.segment.segment_id == built.outcome["segment_id"]
            first_wrong = PARTITION.segments[1].batches[batch].base_offset
            assert told.to_offset is None or told.to_offset < first_wrong, (
                "no answer gives a leader epoch that is wrong"
            )
            passed += 1
        elif is_leader_epoch and row["reason"] == Reason.LEADER_EPOCH_UNKNOWN:
            assert (str(row["object_name"]).endswith(".leader_epoch_checkpoint"), row["position"]) == (True, -1)
        elif is_base_offset and is_last and row["reason"] == Reason.TIME_INDEX_INVALID:
            assert (str(row["object_name"]).endswith(".timeindex"), row["position"]) == (True, 0)
        else:
            assert str(row["object_name"]).endswith(LOG)
            shows_at = (begin, following) if is_base_offset or is_leader_epoch else (begin,)
            assert row["position"] in shows_at, (at, row)
    assert passed == 1 or is_sampled(), "an epoch made another one that the lineage has: 0 too late"


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_every_cut_log_is_reported_with_the_missing_batch(depth: IndexDepth) -> None:
    """If the cut is between two batches, the log ends before the last offset in the time index and the snapshot."""
    content = PARTITION.content(LOG)
    for length in range(len(content)):
        cut = PARTITION.with_content(LOG, content[:length])
        batch = max(border for border in PARTITION.borders if border <= length)
        is_whole = batch == length > 0
        row = quarantined(build_between_neighbours(cut, depth), ".timeindex" if is_whole else LOG)
        assert row is not None
        reason = Reason.LOG_EMPTY if length == 0 else Reason.TIME_INDEX_INVALID if is_whole else Reason.LOG_TRUNCATED
        assert (row["reason"], row["position"]) == (reason, 0 if is_whole else batch)


@pytest.mark.parametrize("depth", list(IndexDepth))
@pytest.mark.parametrize("suffix", [LOG, *SIDE_FILES])
def test_random_bytes_instead_of_a_file_are_reported(suffix: str, depth: IndexDepth) -> None:
    chance = random.Random(suffix)
    size = len(INDEXED.content(suffix))
    for length in (1, 2, 13, size - 1, size, size + 1, 10 * size, *(chance.randrange(1, 500) for _ in range(10))):
        damaged = INDEXED.with_content(suffix, chance.randbytes(length))
        row = quarantined(build_between_neighbours(damaged, depth, is_indexed=True), suffix)
        assert row is not None
        assert integer_of(row["position"]) >= 0


_LATE_MS, _EARLY_MS = 5_000, 50


def _ending_with(last: Batch, *, index_interval_bytes: int = 4096) -> Partition:
    """Three segments; the log of the middle one has offsets 8 and 9, then the batch `last`."""
    before = Batch(base_offset=8, records=(Record(timestamp_ms=100), Record(timestamp_ms=90)), leader_epoch=1)
    return Partition.of(
        small_segment(0, epoch=0),
        Segment(batches=(before, last), index_interval_bytes=index_interval_bytes),
        small_segment(last.last_offset + 1, epoch=1),
    )


def _last_batch(timestamp_ms: int, *, producer_id: int = -1) -> Batch:
    records = (Record(timestamp_ms=timestamp_ms), Record(timestamp_ms=timestamp_ms))
    has_producer = producer_id >= 0
    return Batch(
        base_offset=10,
        records=records,
        leader_epoch=1,
        producer_id=producer_id,
        producer_epoch=0 if has_producer else -1,
        base_sequence=0 if has_producer else -1,
    )


def _moved(partition: Partition, byte: int) -> Partition:
    """Set one bit in this byte of the base offset of the last batch, so that the offset is larger."""
    log = bytearray(partition.content(LOG))
    log[partition.borders[-2] + byte] ^= 0x40
    return partition.with_content(LOG, bytes(log))


@pytest.mark.parametrize("depth", list(IndexDepth))
@pytest.mark.parametrize("byte", [4, 5, 6, 7])
@pytest.mark.parametrize(
    ("partition", "reason", "suffix", "entry_bytes"),
    [
        (_ending_with(_last_batch(_EARLY_MS), index_interval_bytes=0), Reason.OFFSET_INDEX_INVALID, ".index", 0),
        (_ending_with(_last_batch(_LATE_MS)), Reason.TIME_INDEX_INVALID, ".timeindex", 0),
        (_ending_with(_last_batch(_EARLY_MS, producer_id=8)), Reason.HEADER_INVALID, LOG, None),
    ],
    ids=["offset index", "time index", "producer snapshot"],
)
def test_the_last_batchs_base_offset_is_compared_with_every_file_that_names_it(
    partition: Partition, reason: Reason, suffix: str, entry_bytes: int | None, byte: int, depth: IndexDepth
) -> None:
    """No batch follows it, and no checksum covers its base offset."""
    row = quarantined(build(_moved(partition, byte), options(depth))[1], suffix)
    assert row is not None
    assert row["reason"] == reason
    assert row["position"] == (partition.borders[-2] if entry_bytes is None else entry_bytes)


NAMELESS = _ending_with(_last_batch(_EARLY_MS))


@pytest.mark.parametrize("depth", list(IndexDepth))
@pytest.mark.parametrize("byte", [0, 1, 2, 3])
def test_a_batch_too_far_from_the_segments_start_for_an_index_is_damage(byte: int, depth: IndexDepth) -> None:
    row = quarantined(build(_moved(NAMELESS, byte), options(depth))[1], LOG)
    assert row is not None
    assert (row["reason"], row["position"]) == (Reason.HEADER_INVALID, NAMELESS.borders[-2])


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_a_last_batch_that_no_file_names_is_compared_with_its_announcement_and_takes_no_offsets_of_others(
    depth: IndexDepth,
) -> None:
    """Without a producer, an index entry and an event, nothing in the archive shows that the offset is wrong: the
    segment then overlaps the next one, and serves offsets up to the start of that one."""
    moved = _moved(NAMELESS, 7)
    built = build(moved, options(depth))
    assert quarantined(built[1], LOG) is None
    assert built[1].outcome["end_offset"] == 11 + 0x40
    served = [(each.from_offset, each.to_offset) for each in plan_of(built).segments]
    assert served == [(0, 7), (8, 11), (12, 19)]

    layout = LocalTieredStorageLayout(store=MemoryStore(moved.objects))
    works = [replace(work, announced_end_offset=11) for work in list_works(layout)[1:2]]
    (announced,) = build_works(layout, works, options(depth))
    row = quarantined(announced, LOG)
    assert row is not None
    assert (row["reason"], row["found"]) == (Reason.OFFSETS_NOT_ANNOUNCED, f"offset {11 + 0x40}")


def test_a_file_that_became_shorter_after_listing_is_reported() -> None:
    listed = LocalTieredStorageLayout(store=MemoryStore(INDEXED.objects))
    whole = undamaged(IndexDepth.RECORD, is_indexed=True)
    for suffix in (LOG, *SIDE_FILES):
        cut = INDEXED.with_content(suffix, INDEXED.content(suffix)[:-1])
        layout = LocalTieredStorageLayout(store=MemoryStore(cut.objects))
        first, middle, last = build_works(layout, list_works(listed), options(IndexDepth.RECORD))
        assert (first, last) == (whole[0], whole[2])
        row = quarantined(middle, suffix)
        assert row is not None
        if suffix == LOG:
            assert (row["reason"], row["position"]) == (Reason.LOG_TRUNCATED, len(cut.content(LOG)))
        else:
            assert row["reason"] == Reason.OBJECT_UNREADABLE


def test_damaged_segment_keeps_the_checkpoint_that_shows_where_the_log_starts() -> None:
    log = bytearray(PARTITION.content(LOG))
    log[-1] ^= 1
    damaged = PARTITION.with_content(LOG, bytes(log))

    def kept(partition: Partition) -> object:
        row = build_between_neighbours(partition, IndexDepth.RECORD).outcome
        assert row["outcome"] == "quarantined"
        return row["leader_epoch_checkpoint"]

    lineage = undamaged(IndexDepth.RECORD)[1].outcome["leader_epoch_checkpoint"]
    assert kept(damaged) == lineage != []
    for lost in (b"", b"0\n1\n7 x\n"):
        assert kept(damaged.with_content(".leader_epoch_checkpoint", lost)) is None
