"""Test that a plan without the deleted segments that say nothing is the plan with them."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from coldlog.index.log_start import LogStartSource, find_log_start
from coldlog.indexing.publish import planned_rows
from coldlog.indexing.publish.planned_rows import READ_COLUMNS, SERVED_COLUMNS, _facts, plan_all_partitions
from coldlog.indexing.publish.settled_deletions import without_settled
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS

_COLUMNS = (*READ_COLUMNS, "leader_epoch_checkpoint")
_SCHEMA = pa.schema([SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in _COLUMNS])
_DELETED = [state.name for state in RemoteLogSegmentState if state.name.startswith("DELETE_SEGMENT")]
_STATES = [*RemoteLogSegmentState.__members__, *["COPY_SEGMENT_FINISHED"] * 15]
_STATUSES = [*IndexStatus, *[IndexStatus.INDEXED] * 15]
_EPOCHS: tuple[list[tuple[int, int]] | None, ...] = ([(0, 0)], [(0, 0), (2, 40)], [(1, 20)], [(2, 40)], [], None)

_CHECKPOINTS = ([(0, 10), (1, 20), (2, 40)], [(0, 0), (2, 60)], [(0, 0), (1, 75)], [(1, 20)], [(2, 55)], None)


def _epochs(entries: list[tuple[int, int]] | None) -> list[dict[str, int]] | None:
    return None if entries is None else [{"leader_epoch": epoch, "start_offset": offset} for epoch, offset in entries]


def _drawn_epochs(random: Random, start: int) -> list[tuple[int, int]] | None:
    """Mostly one epoch that begins with the segment, as brokers announce it."""
    return random.choice(_EPOCHS) if random.random() < 0.5 else [(random.randrange(3), start)]


def _row(random: Random, number: int) -> dict[str, Any]:
    """A segment of one of two partitions, of one of two incarnations; most are deleted, and a plan has seen most."""
    is_deleted, start = random.random() < 0.7, random.randrange(12) * 10
    end = None if random.random() < 0.1 else start + random.choice((9, 9, 9, 35))
    row: dict[str, Any] = dict.fromkeys(_COLUMNS) | {
        "topic": "orders",
        "partition": random.randrange(2),
        "topic_id": random.choice(("A" * 22, "B" * 22)),
        "start_offset": start,
        "segment_id": str(number if random.random() < 0.95 else random.randrange(number + 1)),
        "end_offset": end,
        "announced_end_offset": random.choice((None, end, start + 12)),
        "state": random.choice(_DELETED if is_deleted else _STATES),
        "state_source": "events",
        "index_status": IndexStatus.GONE if is_deleted else random.choice(_STATUSES),
        "was_copied": random.choice((True, True, False, None)),
        "announced_leader_epochs": _epochs(_drawn_epochs(random, start)),
        "segment_leader_epochs": _epochs(_drawn_epochs(random, start)),
        "copy_started_ms": random.choice((None, random.randrange(100))),
        "event_timestamp_ms": random.choice((None, random.randrange(100))),
        "log_modified_ms": random.choice((None, random.randrange(100))),
        "build_number": random.choice((None, 1)),
        "index_depth": "record",
        "leader_epoch_checkpoint": _epochs(random.choice(_CHECKPOINTS)),
        "superseded_build_numbers": random.choice((None, None, None, [1])),
    }
    if random.random() < 0.9:
        row["not_served_reason"] = "not_indexed"
    if random.random() < 0.05:
        row["served_from_offset"] = start
    return row


def _planned(segments: pa.Table, supplied: dict[tuple[str, int], int]) -> list[str]:
    return sorted(map(str, plan_all_partitions(segments, supplied, {}).to_pylist()))


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_without_settled_deletions_is_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random, left_out = Random(seed), 0
    for _ in range(20):
        rows = [_row(random, number) for number in range(random.randrange(1, 40))]
        segments = pa.Table.from_pylist(rows, schema=_SCHEMA)
        supplied = {("orders", 1): 25} if random.random() < 0.3 else {}
        found = _planned(segments, supplied)
        with monkeypatch.context() as patch:
            patch.setattr(planned_rows, "without_settled", lambda rows, *_: rows)
            assert found == _planned(segments, supplied)
        left_out += len(segments) - len(without_settled(segments, SERVED_COLUMNS))
    assert left_out > 20


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_does_not_change_later_because_segments_were_forgotten(seed: int) -> None:
    random, forgotten = Random(seed), 0
    for _ in range(20):
        rows = [_row(random, number) for number in range(random.randrange(1, 40))]
        segments = pa.Table.from_pylist(rows, schema=_SCHEMA)
        kept = without_settled(segments, SERVED_COLUMNS)
        later = [_row(random, number) | {"segment_id": f"later-{number}"} for number in range(random.randrange(20))]
        since = pa.Table.from_pylist(later, schema=_SCHEMA)
        supplied = {("orders", 1): 25} if random.random() < 0.3 else {}
        found = _planned(pa.concat_tables([segments, since]), supplied)
        assert found == _planned(pa.concat_tables([kept, since]), supplied)
        forgotten += len(segments) - len(kept)
    assert forgotten > 20


def _deleted(**values: Any) -> dict[str, Any]:
    """The row of a deleted segment that a plan has seen."""
    return (
        _row(Random(1), 0)
        | dict.fromkeys(SERVED_COLUMNS)
        | {
            "state": "DELETE_SEGMENT_FINISHED",
            "index_status": "gone",
            "not_served_reason": "not_indexed",
            "superseded_build_numbers": None,
            "was_copied": True,
            "announced_leader_epochs": None,
        }
        | values
    )


def _kept(rows: list[dict[str, Any]]) -> list[str]:
    kept: list[str] = without_settled(pa.Table.from_pylist(rows, schema=_SCHEMA), SERVED_COLUMNS)[
        "segment_id"
    ].to_pylist()
    return kept


def test_of_many_deleted_segments_one_is_planned() -> None:
    rows = [
        _deleted(
            segment_id=str(at),
            start_offset=10 * at,
            end_offset=10 * at + 9,
            event_timestamp_ms=at,
            segment_leader_epochs=_epochs([(4, 10 * at)]),
        )
        for at in range(1_000)
    ]
    assert _kept(rows) == ["999"]


def test_a_segment_left_out_never_tells_a_later_log_start_than_one_that_stays() -> None:
    """Whatever the lineage is; a deposed leader has written segments that leave it."""
    random, drawn = Random(8), 0
    for _ in range(200):
        rows = [_drawn_deletion(random, number) for number in range(random.randrange(2, 9))]
        kept = {row["segment_id"] for row in rows} & set(_kept(rows))
        left_out = [row for row in rows if row["segment_id"] not in kept]
        staying = [row for row in rows if row["segment_id"] in kept]
        for _ in range(20 if left_out else 0):
            epochs = sorted(random.sample(range(4), random.randrange(4)))
            lineage = list(zip(epochs, sorted(random.sample(range(0, 120, 5), len(epochs))), strict=True))
            drawn += _log_start(left_out, lineage) is not None
            assert (_log_start(left_out, lineage) or 0) <= (_log_start(staying, lineage) or 0), (rows, lineage)
    assert drawn > 1_000


def _drawn_deletion(random: Random, number: int) -> dict[str, Any]:
    start = random.randrange(0, 100, 10)
    epoch, end = random.randrange(3), start + random.choice((9, 25, 60))
    entries = random.choice(([(epoch, start)], [(epoch, start)], [(0, 10), (1, 40)], [(0, 10), (2, 40)]))
    ends = {"start_offset": start, "end_offset": end, "announced_end_offset": end}
    return _deleted(segment_id=str(number), **ends, segment_leader_epochs=_epochs(entries))


def _log_start(rows: list[dict[str, Any]], lineage: list[tuple[int, int]]) -> int | None:
    """Where the deleted segments say that the log starts."""
    of_lineage = [find_log_start([_facts(row)], None, lineage) for row in rows]
    found = [each.offset for each in of_lineage if each and each.source is LogStartSource.DELETED_SEGMENTS]
    return max(found, default=None)


def test_of_deleted_segments_with_the_same_epochs_the_longest_is_planned() -> None:
    ends = 150, 190, 170
    rows = [
        _deleted(
            segment_id=str(end),
            start_offset=100,
            end_offset=end,
            announced_end_offset=end,
            event_timestamp_ms=end,
            segment_leader_epochs=_epochs([(4, 100), (5, 140)]),
        )
        for end in ends
    ]
    rows.append(_deleted(segment_id="newest", event_timestamp_ms=1_000, was_copied=False))
    assert _kept(rows) == ["190", "newest"]
