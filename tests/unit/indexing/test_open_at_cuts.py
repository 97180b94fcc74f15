"""Test which transactions count as open where a deposed leader's segment stops serving."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from coldlog.indexing.publish.planned_rows import READ_COLUMNS, plan_all_partitions
from coldlog.model.states import IndexStatus
from coldlog.tables.definitions.segments import SEGMENTS

Row = dict[str, Any]
_COLUMNS = (*READ_COLUMNS, "leader_epoch_checkpoint")
_SCHEMA = pa.schema([SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in _COLUMNS])
LOST, QUARANTINED = "lost", "quarantined"
"""What became of the new leader's segment from offset 60 on."""


def epochs(*entries: tuple[int, int]) -> list[dict[str, int]]:
    return [{"leader_epoch": epoch, "start_offset": offset} for epoch, offset in entries]


def segment(start: int, end: int, epoch: int = 0, **changes: object) -> Row:
    """It has markers, and no transaction is open at its end."""
    return dict.fromkeys(_COLUMNS) | {
        "topic": "orders",
        "partition": 0,
        "topic_id": "A" * 22,
        "start_offset": start,
        "segment_id": f"{start}-{epoch}",
        "end_offset": end,
        "state": "COPY_SEGMENT_FINISHED",
        "state_source": "listing",
        "index_status": IndexStatus.INDEXED.value,
        "build_number": 1,
        "index_depth": "record",
        "counted_from_offset": start,
        "txn_index_empty": True,
        "segment_leader_epochs": epochs((epoch, start)),
        "leader_epoch_checkpoint": epochs((0, 0), *([(1, 60)] if epoch else [])),
        "commit_marker_count": 1,
        "abort_marker_count": 0,
        "open_transaction_count": 0,
        **changes,
    }


def plan(*rows: Row) -> tuple[dict[str, int | None], Row]:
    """The value of each segment whose served columns change, by id, and the partition's row."""
    planned = plan_all_partitions(pa.Table.from_pylist(list(rows), schema=_SCHEMA), {}, {}).to_pylist()
    (partition,) = (row for row in planned if row["segment_id"] is None)
    return {row["segment_id"]: row["served_open_from_offset"] for row in planned if row["segment_id"]}, partition


def open_at_cut(before: Row, *, of_cut: Row, later: str = LOST) -> tuple[int | None, int, int | None]:
    """What may be open at offset 59, where the segment from 50 on is cut, the stable offset, and how many are open.

    The new leader has written from 60 on. Of its segments, only one from 100 on was found, or a damaged one.
    """
    last = segment(100, 119, 1)
    if later == QUARANTINED:
        last = segment(60, 99, 1, index_status=IndexStatus.QUARANTINED.value, end_offset=None)
    open_from, partition = plan(before, segment(50, 99, **of_cut), last)
    assert partition["latest_tiered_offset"] == (59 if later == QUARANTINED else 119)
    return open_from["50-0"], partition["stable_offset"], partition["open_transaction_count"]


def test_any_transaction_of_a_log_with_markers_may_be_open_where_it_is_cut() -> None:
    before = segment(0, 49)
    assert open_at_cut(before, of_cut={}) == (50, 120, 0)
    assert open_at_cut(before, of_cut={}, later=QUARANTINED) == (50, 50, None)
    aborted = {"commit_marker_count": 0, "abort_marker_count": 1, "txn_index_empty": False}
    assert open_at_cut(before, of_cut=aborted, later=QUARANTINED) == (50, 50, None)
    # At sidecar depth nobody has counted markers; a hole may have lost some.
    uncounted = {"commit_marker_count": None, "abort_marker_count": None, "index_depth": "sidecar"}
    assert open_at_cut(before, of_cut=uncounted, later=QUARANTINED) == (50, 50, None)
    hole = {"from_offset": 70, "to_offset": 80, "position": 500, "end_position": 900, "reason": "crc_mismatch"}
    damaged = {"commit_marker_count": 0, "holes": [hole | {"max_timestamp_bound_ms": None}]}
    assert open_at_cut(before, of_cut=damaged, later=QUARANTINED) == (50, 50, None)


def test_without_a_marker_what_is_open_at_the_end_was_open_at_the_cut_if_it_began_before() -> None:
    before = segment(0, 49)
    for begin, expected in ((None, (None, 60, 0)), (55, (55, 55, None)), (59, (59, 59, None)), (60, (None, 60, 0))):
        own = {"commit_marker_count": 0, "open_from_offset": begin, "open_transaction_count": int(begin is not None)}
        assert open_at_cut(before, of_cut=own, later=QUARANTINED) == expected, begin


def test_transaction_that_the_segment_before_leaves_open_may_be_open_at_the_cut() -> None:
    left_open: Row = {"open_from_offset": 44, "open_transaction_count": 1}
    assert open_at_cut(segment(0, 49, **left_open), of_cut={}, later=QUARANTINED) == (44, 44, None)
    without_markers: Row = {"commit_marker_count": 0}
    assert open_at_cut(segment(0, 49, **left_open), of_cut=without_markers, later=QUARANTINED) == (44, 44, None)
    # If segments are missing in between, records before them are undecided anyway.
    assert open_at_cut(segment(0, 39, **left_open), of_cut={}, later=QUARANTINED) == (50, 50, None)


def test_segment_that_serves_to_its_end_has_no_cut() -> None:
    rows = segment(0, 49, open_from_offset=44, open_transaction_count=1), segment(50, 99, open_from_offset=90)
    open_from, partition = plan(*rows)
    assert open_from == {"0-0": None, "50-0": None}
    assert partition["stable_offset"] == 90
