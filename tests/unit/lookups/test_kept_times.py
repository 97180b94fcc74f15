"""Test that what is kept in memory answers times as the tables do, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coldlog.lookups.kept_times import NOT_FOUND, Found, KeptTimes
from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.served_index import ServedIndex, list_warehouse_files
from coldlog.model.list_offsets import ErrorCode
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from tables.scattered_tables import Row, write, write_file

_SEGMENTS, _LENGTH, _STEP, _STABLE = 4, 100, 5, 250
_END = _SEGMENTS * _LENGTH
_DEPTHS = (IndexDepth.RECORD, IndexDepth.BATCH, IndexDepth.RECORD, IndexDepth.RECORD)
_SIDES = [(is_committed, epoch, version) for is_committed in (False, True) for epoch in (-1, 3) for version in (1, 11)]


@pytest.fixture
def index(warehouse: Path) -> Iterator[ServedIndex]:
    """orders-0: a stair at every fifth of the hundred offsets of a segment, its timestamp ten times its offset.
    orders-1: the same, but for offsets that no segment serves."""
    segments: list[Row] = []
    stairs: list[Row] = []
    for number, depth in enumerate(_DEPTHS):
        first, last = number * _LENGTH, (number + 1) * _LENGTH - 1
        latest_ms = (last + 1 - _STEP) * 10
        maxima = dict.fromkeys(("running_max_timestamp_ms", "broker_running_max_timestamp_ms"), latest_ms)
        served = {"served_build_number": 1, "served_index_depth": depth.value, "served_from_offset": first}
        for partition in (0, 1):
            place: Row = {"topic": "orders", "partition": partition, "segment_id": f"segment {number}"}
            segments.append({**place, "start_offset": first, "end_offset": last, **served, **maxima})
            stairs += [
                {
                    **place,
                    "topic_id": "",
                    "build_number": 1,
                    "leader_epoch": number,
                    "offset": offset,
                    "timestamp_ms": offset * 10,
                }
                for offset in range(first, last, _STEP)
            ]
    facts: Row = {
        "topic": "orders",
        "earliest_offset": 0,
        "latest_tiered_offset": _END - 1,
        "max_timestamp_ms": (_END - _STEP) * 10,
        "stable_offset": _STABLE,
        "leader_epoch_lineage": [{"leader_epoch": 3, "start_offset": 0}],
    }
    hole = {"from_offset": 390, "to_offset": None, "max_timestamp_bound_ms": None}
    write(warehouse, SEGMENTS, segments)
    in_order = sorted(stairs, key=lambda row: (row["partition"], row["offset"]))
    write_file(warehouse, TIME_INDEX, in_order)
    write(warehouse, OFFSET_INDEX, [])
    write(
        warehouse,
        PARTITION_METADATA,
        [{**facts, "partition": 0, "unserved_ranges": []}, {**facts, "partition": 1, "unserved_ranges": [hole]}],
    )
    with closing(ServedIndex(list_warehouse_files(str(warehouse)))) as opened:
        yield opened


def _from_tables(index: ServedIndex, timestamp_ms: int, *, is_committed: bool, epoch: int, version: int) -> Found:
    answers = ListOffsets(index).answer_one(
        "orders", 0, timestamp_ms, is_committed=is_committed, leader_epoch=epoch, version=version
    )
    error, found = ErrorCode(int(answers.errors[0])), answers.found(0)
    if found is None:
        assert error in (ErrorCode.LOCAL_REQUIRED, ErrorCode.OPEN_TRANSACTION)
        return NOT_FOUND
    return found.offset, found.timestamp_ms, found.leader_epoch


def _find(kept: KeptTimes, timestamp_ms: int, partition: int = 0, epoch: int = -1) -> Found | None:
    return kept.find("orders", partition, timestamp_ms, is_committed=False, leader_epoch=epoch, version=11)


def test_every_time_that_is_kept_has_the_answer_of_the_tables(index: ServedIndex) -> None:
    kept, times_ms = KeptTimes(), range(0, _END * 10 + 20, 3)
    for timestamp_ms in times_ms:
        kept.learn(index, "orders", 0, timestamp_ms)
    for is_committed, epoch, version in _SIDES:
        found = {
            at: kept.find("orders", 0, at, is_committed=is_committed, leader_epoch=epoch, version=version)
            for at in times_ms
        }
        is_read = {at for at in times_ms if (_LENGTH - _STEP) * 10 < at <= (2 * _LENGTH - _STEP) * 10}
        assert {at for at, answer in found.items() if answer is None} == is_read, "the archive is read for these"
        assert {at: answer for at, answer in found.items() if answer is not None} == {
            at: _from_tables(index, at, is_committed=is_committed, epoch=epoch, version=version)
            for at in times_ms
            if at not in is_read
        }


def test_a_time_answers_for_others_of_its_run_only(index: ServedIndex) -> None:
    kept = KeptTimes()
    kept.learn(index, "orders", 0, 2_500)
    kept_ms = [at for at in range(0, 4_000, 10) if _find(kept, at) is not None]
    assert 2_500 in kept_ms
    assert all(2_000 - _STEP * 10 < at <= 2_950 or at > 3_950 for at in kept_ms)


def test_what_the_tables_must_decide_is_not_kept(index: ServedIndex) -> None:
    kept = KeptTimes()
    for timestamp_ms in (-2, -3, 1_000, 2_500):
        kept.learn(index, "orders", 0, timestamp_ms)
        kept.learn(index, "orders", 1, timestamp_ms)
    kept.learn(index, "payments", 0, 2_500)
    assert _find(kept, 2_500) == (250, 2_500, 2)
    assert [_find(kept, at) for at in (-2, -3, 1_000)] == [None] * 3, "special timestamps, and a segment that is read"
    assert _find(kept, 2_500, partition=1) is None, "an answer may have passed over offsets that are not served"
    assert _find(kept, 2_500, partition=2) is None
    assert [_find(kept, 2_500, epoch=epoch) for epoch in (2, 4)] == [None] * 2, "leader epochs that are refused"


@pytest.mark.usefixtures("index")
def test_stairs_that_lie_apart_are_not_kept(warehouse: Path) -> None:
    """One more file has a stair between those of segment 2."""
    row: Row = {"topic": "orders", "partition": 0, "segment_id": "segment 2", "build_number": 1, "leader_epoch": 2}
    write_file(warehouse, TIME_INDEX, [{**row, "offset": 251, "timestamp_ms": 2_505}])
    kept, newest = KeptTimes(), list_warehouse_files(str(warehouse))
    with closing(ServedIndex(newest)) as index:
        for timestamp_ms in range(2_000, _END * 10):
            kept.learn(index, "orders", 0, timestamp_ms)
    assert [_find(kept, at) for at in (2_500, 2_503, 2_600)] == [None] * 3
    assert _find(kept, 3_500) == (350, 3_500, 3)


def test_memory_is_bounded(index: ServedIndex) -> None:
    kept = KeptTimes(most_bytes=600)
    for timestamp_ms in range(2_000, _END * 10, 10):
        kept.learn(index, "orders", 0, timestamp_ms)
    assert _find(kept, 3_900) == (390, 3_900, 3), "what was read last is kept"
    assert _find(kept, 2_000) is None
