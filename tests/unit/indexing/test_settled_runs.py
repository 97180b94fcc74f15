"""Test that a plan in which settled segments are joined is the plan of each segment by itself."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from coldlog.index.segment_facts import SegmentFacts
from coldlog.indexing.publish import planned_rows, settled_runs
from coldlog.indexing.publish.planned_rows import READ_COLUMNS, SERVED_COLUMNS, plan_all_partitions, plan_rows
from coldlog.indexing.publish.settled_runs import JOINED_COUNT, in_order, join_settled_runs
from coldlog.model.states import IndexStatus
from coldlog.tables.definitions.segments import SEGMENTS
from drawn_examples import is_sampled, sampled

_COLUMNS = (*READ_COLUMNS, "leader_epoch_checkpoint")
_SCHEMA = pa.schema([SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in _COLUMNS])
_STARTS = dict[tuple[str, int], int]


def _epochs(*entries: tuple[int, int]) -> list[dict[str, int]]:
    return [{"leader_epoch": epoch, "start_offset": offset} for epoch, offset in entries]


def _segment(start: int, end: int, epoch: int, random: Random) -> dict[str, Any]:
    newest = 10 * start + random.choice((0, 0, 0, 2_000, -300))
    return dict.fromkeys(_COLUMNS) | {
        "topic": "orders",
        "partition": 0,
        "topic_id": "A" * 22,
        "start_offset": start,
        "segment_id": f"{start}-{end}-{epoch}-{random.random()}",
        "end_offset": end,
        "state": "COPY_SEGMENT_FINISHED",
        "state_source": "listing",
        "index_status": IndexStatus.INDEXED,
        "build_number": 1,
        "index_depth": "record",
        "counted_from_offset": start,
        "counted_max_timestamp_ms": random.choice((newest, newest, newest, None)),
        "counted_max_timestamp_offset": random.choice((start, None)),
        "metadata_max_timestamp_ms": newest + random.choice((0, 5)),
        "log_modified_ms": random.randrange(2_000),
        "size_bytes": random.choice((100, None)),
        "record_count": random.choice((10, None)),
        "txn_index_empty": random.random() < 0.95,
        "segment_leader_epochs": _epochs((epoch, start)),
        "leader_epoch_checkpoint": _epochs(*((each, 100 * each) for each in range(epoch + 1))),
        "open_transaction_count": random.choice((0, 1)),
        "open_from_offset": random.choice((None, start)),
        "commit_marker_count": random.choice((1, 1, 1, 1, 1, 1, 1, 0, None)),
        "abort_marker_count": 0,
    }


def _partition(random: Random, number: int) -> list[dict[str, Any]]:
    """Segments that follow each other, but for a few gaps; the leader changes every hundred offsets."""
    first, count, announced = random.choice((0, 40)), random.randrange(4, 40), random.random() < 0.5
    rows = [_segment(start, start + 9, start // 100, random) for start in range(first, first + 10 * count, 10)]
    del rows[3 : random.choice((3, 3, 4))]
    is_constant, second = random.random() < 0.2, random.choice((len(rows), len(rows), len(rows) // 2))
    is_retained = random.random() < 0.3
    for at, row in enumerate(rows):
        row["partition"] = number
        if is_retained:  # then each checkpoint begins where the log began when the segment was copied
            start = max(row["start_offset"] - 70, 0)
            row["leader_epoch_checkpoint"] = _epochs(
                *((each, max(100 * each, start)) for each in range(start // 100, row["start_offset"] // 100 + 1))
            )
        if is_constant and at:
            row.update(dict.fromkeys(("counted_max_timestamp_ms", "metadata_max_timestamp_ms"), 70))
        if at >= second:
            row["topic_id"] = "C" * 22
        if announced:
            row |= {
                "state_source": "events",
                "was_copied": True,
                "announced_end_offset": row["end_offset"],
                "announced_max_timestamp_ms": row["metadata_max_timestamp_ms"],
                "announced_leader_epochs": row["segment_leader_epochs"],
                "copy_started_ms": random.choice((row["log_modified_ms"], None)),
                "event_timestamp_ms": row["log_modified_ms"],
            }
    return rows


def _delete_first(rows: list[dict[str, Any]], random: Random) -> None:
    for row in rows[: random.randrange(1, 4)]:
        row |= {"state": "DELETE_SEGMENT_FINISHED", "index_status": IndexStatus.GONE, "was_copied": True}


def _append(rows: list[dict[str, Any]], random: Random) -> None:
    start = rows[-1]["start_offset"] + random.choice((10, 10, 20))
    new = _segment(start, start + 9, start // 100, random) | {"partition": rows[0]["partition"]}
    new["index_status"] = random.choice((IndexStatus.INDEXED, IndexStatus.PENDING, IndexStatus.QUARANTINED))
    rows.append(new)


def _upload_again(rows: list[dict[str, Any]], random: Random) -> None:
    start = random.choice(rows)["start_offset"] + random.choice((0, 0, 5))
    epoch = start // 100 + random.choice((0, 0, 1, -1))
    again = _segment(start, start + random.choice((3, 9, 25)), max(epoch, 0), random)
    rows.append(again | {"partition": rows[0]["partition"]})


_TWO = object()
"""Stands for two leader epochs, of which the first is that of the segment."""
_OTHER_VALUES: dict[str, tuple[Any, ...]] = {
    "state": ("COPY_SEGMENT_STARTED", "DELETE_SEGMENT_STARTED"),
    "index_status": (IndexStatus.ORPHAN, IndexStatus.QUARANTINED, IndexStatus.PENDING),
    "end_offset": (None, 3, 1_000),
    "announced_end_offset": (None, 1_000),
    "build_number": (2,),
    "index_depth": ("batch",),
    "counted_from_offset": (None, 5),
    "counted_max_timestamp_ms": (None, 9_999, 0),
    "metadata_max_timestamp_ms": (None, 9_999),
    "announced_max_timestamp_ms": (None, 9_999),
    "txn_index_empty": (None, False),
    "segment_leader_epochs": ([], None, _TWO, _epochs((7, 0)), _epochs((1, 5)), _epochs((-1, 0))),
    "announced_leader_epochs": ([], None, _TWO, _epochs((7, 0)), _epochs((1, 5))),
    "leader_epoch_checkpoint": ([], None, _epochs((3, 0))),
    "superseded_build_numbers": ([1],),
    "topic_id": ("B" * 22,),
    "log_modified_ms": (None, 10_000),
    "copy_started_ms": (None, 10_000),
    "event_timestamp_ms": (None, 10_000),
    "size_bytes": (None, 7),
    "record_count": (None, 7),
    "holes": ([], [{"from_offset": 3, "to_offset": 50, "max_timestamp_bound_ms": None}]),
    "served_from_offset": (None, 7),
    "served_to_offset": (None, 7),
    "served_build_number": (None, 7),
    "served_index_depth": (None, "batch"),
    "served_holes": ([],),
    "previous_running_max_timestamp_ms": (None, 7),
    "running_max_timestamp_ms": (None, 7),
    "broker_previous_running_max_timestamp_ms": (None, 7),
    "broker_running_max_timestamp_ms": (None, 7),
    "is_within_lineage": (None, False),
    "not_served_reason": ("duplicate",),
}


def _change(row: dict[str, Any], name: str, value: object) -> None:
    if value is _TWO:
        [epoch] = row["segment_leader_epochs"] or _epochs((0, 0))
        later = {"leader_epoch": epoch["leader_epoch"] + 1, "start_offset": epoch["start_offset"] + 5}
        value = [epoch, later]
    row[name] = value


def _change_one(rows: list[dict[str, Any]], random: Random) -> None:
    name = random.choice(list(_OTHER_VALUES))
    _change(random.choice(rows), name, random.choice(_OTHER_VALUES[name]))


def _forget_timestamps(rows: list[dict[str, Any]], random: Random) -> None:
    row = random.choice(rows)
    row |= dict.fromkeys(("counted_max_timestamp_ms", "metadata_max_timestamp_ms", "announced_max_timestamp_ms"))


def _let_maxima_be_stale(rows: list[dict[str, Any]], random: Random) -> None:
    """Maxima that agree with the ones before them or with the segment's own ones, but not with both."""
    at, kind = random.randrange(len(rows) - 1), random.choice(("", "broker_"))
    rows[at][f"{kind}running_max_timestamp_ms"] = 9_999
    if random.random() < 0.5:
        rows[at][f"{kind}previous_running_max_timestamp_ms"] = 9_999
    else:
        rows[at + 1][f"{kind}previous_running_max_timestamp_ms"] = 9_999


def _name_two_alike(rows: list[dict[str, Any]], random: Random) -> None:
    random.choice(rows)["segment_id"] = random.choice(rows)["segment_id"]


_CHANGES: tuple[Callable[[list[dict[str, Any]], Random], None], ...] = (
    _delete_first,
    _append,
    _append,
    _upload_again,
    _change_one,
    _let_maxima_be_stale,
    _name_two_alike,
    _forget_timestamps,
)


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _publish(rows: list[dict[str, Any]], supplied: _STARTS) -> None:
    """Set the served columns to those of a plan."""
    by_id = {row["segment_id"]: row for row in rows}
    for planned in plan_all_partitions(_table(rows), supplied, {}).to_pylist():
        if planned["segment_id"] is not None:
            by_id[planned["segment_id"]] |= {name: planned[name] for name in SERVED_COLUMNS}


def _as_in_a_task(segments: pa.Table, start: int | None) -> list[str]:
    """What a task plans of one partition; the newest checkpoint is that of the last indexed row."""
    rows = segments.to_pylist()
    newest = max(
        (at for at, row in enumerate(rows) if row["leader_epoch_checkpoint"]),
        key=lambda at: (rows[at]["end_offset"] or 0, at),
        default=None,
    )
    for at, row in enumerate(rows):
        checkpoint = row.pop("leader_epoch_checkpoint")
        row |= {"has_checkpoint": checkpoint is not None, "checkpoint": checkpoint if at == newest else None}
    added = [
        SEGMENTS.arrow_schema.field("leader_epoch_checkpoint").with_name("checkpoint").with_nullable(True),
        pa.field("has_checkpoint", pa.bool_()),
        pa.field("log_start_offset", pa.int64()),
    ]
    schema = pa.schema([*(field for field in _SCHEMA if field.name != "leader_epoch_checkpoint"), *added])
    given = pa.Table.from_pylist([row | {"log_start_offset": start} for row in rows], schema=schema)
    return sorted(map(str, plan_rows(given, {}).to_pylist()))


def _planned_both_ways(partitions: list[list[dict[str, Any]]], supplied: _STARTS) -> tuple[list[str], list[str]]:
    """What this process plans of all partitions, and a task of the first."""
    here = plan_all_partitions(_table([row for rows in partitions for row in rows]), supplied, {}).to_pylist()
    return sorted(map(str, here)), _as_in_a_task(_table(partitions[0]), supplied.get(("orders", 0)))


def _planned_apart(
    partitions: list[list[dict[str, Any]]], supplied: _STARTS, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    with monkeypatch.context() as patch:
        patch.setattr(settled_runs, "_is_settled", lambda rows: np.zeros(len(rows), dtype=np.bool_))
        return _planned_both_ways(partitions, supplied)


def _joined_away(partitions: list[list[dict[str, Any]]]) -> int:
    segments = in_order(_table([row for rows in partitions for row in rows]))
    has_checkpoint = pc.greater(pc.list_value_length(segments["leader_epoch_checkpoint"]), 0)
    return len(segments) - len(join_settled_runs(segments, has_checkpoint))


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_with_joined_segments_is_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random, joined_away = Random(seed), 0
    for _ in range(15):
        partitions = [_partition(random, number) for number in range(random.randrange(1, 4))]
        supplied: _STARTS = {("orders", 0): 60} if random.random() < 0.2 else {}
        for rows in partitions:
            _publish(rows, supplied if random.random() < 0.9 else {})
            for _ in range(random.choice((0, 1, 1, 2))):
                random.choice(_CHANGES)(rows, random)
            random.shuffle(rows)
        assert _planned_both_ways(partitions, supplied) == _planned_apart(partitions, supplied, monkeypatch)
        joined_away += _joined_away(partitions)
    assert joined_away > 150


def _published(random: Random) -> list[dict[str, Any]]:
    """A partition of one incarnation in which a plan changes nothing; the last segment may be pending."""
    rows = _partition(random, 0)
    while not 10 <= len(rows) < 18 or rows[-1]["topic_id"] != rows[0]["topic_id"]:
        rows = _partition(random, 0)
    if random.random() < 0.5:
        rows[-1] |= {"index_status": IndexStatus.PENDING}
    for row in rows:
        row["txn_index_empty"] = True
    _publish(rows, {})
    return rows


@pytest.mark.parametrize("epochs", [-1, 0, 1])
def test_an_upload_over_joined_segments_counts(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(3)
    published = [_published(random) for _ in range(8)]
    for at in (1, 2, 5, -3, -2):
        for shift, length in ((0, 9), (0, 25), (5, 3), (5, 25), (-5, 40), (0, 100)):
            rows = random.choice(published)
            start = rows[at]["start_offset"] + shift
            again = _segment(start, start + length, max(start // 100 + epochs, 0), random)
            for name in ("counted_max_timestamp_ms", "metadata_max_timestamp_ms"):
                again[name] = random.choice((again[name], rows[at][name]))
            assert _planned_both_ways([[*rows, again]], {}) == _planned_apart([[*rows, again]], {}, monkeypatch)


def test_each_value_of_a_joined_segment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    random, joined_away = Random(2), 0
    published = [_published(random) for _ in range(8)]
    for name, values in _OTHER_VALUES.items():
        for value in sampled(values):
            for at in (3, -2):
                rows = [dict(row) for row in random.choice(published)]
                joined_away += _joined_away([rows])
                _change(rows[at], name, value)
                assert _planned_both_ways([rows], {}) == _planned_apart([rows], {}, monkeypatch), (name, value, at)
    assert joined_away > (100 if is_sampled() else 400)


def test_segment_without_a_marker_is_not_joined_to_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an earlier release has published it: the segment does not say that the transaction is open at its end."""
    random = Random(4)
    rows = [_segment(start, start + 9, 0, random) for start in range(0, 80, 10)]
    for row in rows:
        newest = dict.fromkeys(("counted_max_timestamp_ms", "metadata_max_timestamp_ms"), row["start_offset"])
        row |= {"txn_index_empty": True, "commit_marker_count": 1, "open_from_offset": None, **newest}
    rows[3] |= {"open_from_offset": 35}
    rows[4] |= {"commit_marker_count": 0}
    _publish(rows, {})
    assert [row["served_open_from_offset"] for row in rows] == [None] * 4 + [35] + [None] * 3
    rows[4] |= {"served_open_from_offset": None}
    assert _joined_away([rows]) > 0
    assert _planned_both_ways([rows], {}) == _planned_apart([rows], {}, monkeypatch)


def test_of_many_settled_segments_few_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    random, planned = Random(1), list[int]()
    rows = [_segment(start, start + 9, 0, random) for start in range(0, 10_000, 10)]
    for row in rows:
        newest = dict.fromkeys(("counted_max_timestamp_ms", "metadata_max_timestamp_ms"), row["start_offset"])
        row |= {"txn_index_empty": True, "leader_epoch_checkpoint": _epochs((0, 0)), **newest, "commit_marker_count": 1}
    _publish(rows, {})
    rows[0] |= {"state": "DELETE_SEGMENT_FINISHED", "index_status": IndexStatus.GONE, "was_copied": True}
    rows[0] |= {"announced_leader_epochs": _epochs((0, 0))}
    rows.append(_segment(10_000, 10_009, 0, random) | {"leader_epoch_checkpoint": _epochs((0, 10))})
    facts = planned_rows._facts

    def counted(row: dict[str, Any]) -> SegmentFacts:
        planned.append(row[JOINED_COUNT])
        return facts(row)

    monkeypatch.setattr(planned_rows, "_facts", counted)
    [partition] = [row for row in plan_all_partitions(_table(rows), {}, {}).to_pylist() if row["segment_id"] is None]
    assert planned == [1, 1, 998, 1]
    assert (partition["segment_count"], partition["served_segment_count"]) == (1_000, 1_000)
    assert (partition["earliest_offset"], partition["latest_tiered_offset"]) == (10, 10_009)
