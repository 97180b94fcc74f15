"""Test which incarnation is current while a topic that was created again is copied and its old segments are deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from coldlog.indexing.events.announced_segments import EVENT_COLUMNS, fold_events
from coldlog.indexing.events.event_rows import SEGMENT, SEGMENT_UPDATE
from coldlog.indexing.publish.planned_rows import plan_all_partitions, plan_rows
from coldlog.indexing.publish.settled_deletions import without_settled
from coldlog.tables.definitions.segments import SEGMENTS

Row = dict[str, Any]
Life = tuple[str, int, int | None]
"""A segment: its incarnation, when its copy started, and when its deletion finished."""
_SCHEMA = pa.schema([field.with_nullable(True) for field in SEGMENTS.arrow_schema])
_OF_TASKS = pa.schema(
    [
        *_SCHEMA,
        _SCHEMA.field("leader_epoch_checkpoint").with_name("checkpoint"),
        pa.field("has_checkpoint", pa.bool_()),
        pa.field("log_start_offset", pa.int64()),
    ]
)

_CASES = [
    pytest.param([("old", 1, 90), ("new", 50, None)], "new", id="the old topic was deleted after a new copy"),
    pytest.param([("old", 1, 90), ("old", 2, None), ("new", 50, None)], "new", id="it is still being deleted"),
    pytest.param([("old", 1, None), ("new", 50, 60)], "new", id="the new topic expired, old segments were left over"),
    pytest.param([("old", 1, 90), ("new", 50, 60)], "new", id="both are deleted, the old topic last"),
    pytest.param([("old", 1, 90), ("new", 95, None)], "new", id="the new topic was copied after the deletion"),
    pytest.param([("old", 1, 90)], "old", id="only one was archived"),
]


def _events(lives: Iterable[Life], *, has_copies: bool) -> list[Row]:
    """The events of brokers. Those of the copies of deleted segments may be missing in the metadata topic."""
    events: list[Row] = []
    for number, (topic_id, copied_ms, gone_ms) in enumerate(lives):
        key = {"topic": "orders", "partition": 0, "topic_id": topic_id, "segment_id": str(number)}
        told = [(SEGMENT, "COPY_SEGMENT_STARTED", copied_ms), (SEGMENT_UPDATE, "COPY_SEGMENT_FINISHED", copied_ms + 1)]
        if gone_ms is not None:
            told = told if has_copies else []
            told += [(SEGMENT_UPDATE, "DELETE_SEGMENT_STARTED", gone_ms - 1)]
            told += [(SEGMENT_UPDATE, "DELETE_SEGMENT_FINISHED", gone_ms)]
        for kind, state, at_ms in told:
            event = dict.fromkeys(EVENT_COLUMNS) | key | {"event_kind": kind, "state": state}
            events.append(event | {"event_timestamp_ms": at_ms, "is_complete": has_copies})
    return [each | {"metadata_partition": 0, "metadata_offset": at} for at, each in enumerate(events)]


def _rows(lives: list[Life], *, has_copies: bool = True) -> list[Row]:
    """The rows to which the events lead. Where they do not tell of a copy, its log was listed before it was deleted."""
    names = ("topic", "partition", "topic_id", "segment_id")
    rows = []
    for key, known in fold_events(_events(lives, has_copies=has_copies)).items():
        row = dict.fromkeys(SEGMENTS.column_names) | dict(zip(names, key, strict=True)) | {"start_offset": 0}
        row |= {name: value for name, value in known.items() if name in row}
        is_deleted = known["announced_state"].startswith("DELETE")
        row |= {"state": known["announced_state"], "index_status": "gone" if is_deleted else "pending"}
        rows.append(row | {"log_modified_ms": None if has_copies else lives[int(key[3])][1]})
    return rows


def _current(rows: list[Row]) -> set[str]:
    """What plans in this process and in tasks say."""
    of_tasks = [row | {"has_checkpoint": False} for row in rows]
    planned = plan_all_partitions(pa.Table.from_pylist(rows, schema=_SCHEMA), {}, {}).to_pylist()
    planned += plan_rows(pa.Table.from_pylist(of_tasks, schema=_OF_TASKS), {}).to_pylist()
    return {row["topic_id"] for row in planned if row["is_current"]}


@pytest.mark.parametrize("has_copies", [True, False])
@pytest.mark.parametrize(("lives", "current"), _CASES)
def test_incarnation_whose_copy_started_last_is_current(lives: list[Life], current: str, has_copies: bool) -> None:
    rows = _rows(lives, has_copies=has_copies)
    assert len(rows) == len(lives)
    assert _current(rows) == {current}


def test_deletions_count_only_if_no_copy_is_known() -> None:
    """As in a warehouse that began after the copies, with a metadata topic that does not go back to them."""
    rows = _rows([("z", 1, 80), ("a", 2, 90), ("k", 5, 7)], has_copies=False)
    unknown = [row | {"log_modified_ms": None} for row in rows]
    assert {row["copy_started_ms"] for row in rows} == {None}
    assert _current(unknown) == {"a"}
    assert _current([*unknown[:2], rows[2]]) == {"k"}


def test_segments_that_tell_which_incarnation_is_current_are_planned() -> None:
    rows = _rows([("old", 10, 95), ("old", 20, 70), ("old", 30, 60), ("old", 15, 65), ("new", 25, 40)])
    seen_before = [row | {"not_served_reason": "not_indexed", "was_copied": False} for row in rows]
    kept = without_settled(pa.Table.from_pylist(seen_before, schema=_SCHEMA), ())
    assert set(kept["segment_id"].to_pylist()) == {"0", "2", "4"}, "deleted last, written last, the only one"
