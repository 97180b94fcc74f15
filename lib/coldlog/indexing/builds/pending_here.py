"""Find segments to index in a small table, in this process.

The rules are those of `build_work`, which has them for Spark; a test holds both to the same work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

import pyarrow as pa

from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.model.states import IndexStatus
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Key, Row, key_of
from coldlog.tables.delta.warehouse import Warehouse

WORK_COLUMNS = (
    *SEGMENTS.key, "topic_id", "objects", "log_modified_ms", "build_number", "superseded_build_numbers",
    "announced_size_bytes", "announced_end_offset", "announced_max_timestamp_ms", "announced_leader_epochs",
)  # fmt: skip
_SELECTED_BY = ("index_status", "damaged_files", "holes", "is_listed")


def find_pending_here(
    warehouse: Warehouse, retried: Collection[Key], *, retry_quarantined: bool, is_mirror: bool
) -> list[SegmentWork] | None:
    """Find pending segments, and those with a damaged file whose key is in `retried`, or all with
    `retry_quarantined`; None if the table is too large."""
    segments = warehouse.small_table(SEGMENTS, (*WORK_COLUMNS, *_SELECTED_BY))
    if segments is None:
        return None
    known = warehouse.small_rows(LOG_START_OFFSETS, LOG_START_OFFSETS.column_names)
    log_starts = {(row["topic"], row["partition"]): row["log_start_offset"] for row in known}
    places = segments.select((*SEGMENTS.key, "topic_id", "index_status", "damaged_files")).to_pylist()

    def is_wanted(row: Row) -> bool:
        if row["index_status"] == IndexStatus.PENDING.value:
            return True
        is_retriable = row["index_status"] == IndexStatus.QUARANTINED.value or bool(row["damaged_files"])
        return is_retriable and (retry_quarantined or key_of(SEGMENTS, row) in retried)

    chosen = [at for at, row in enumerate(places) if is_wanted(row)]
    next_starts = _next_starts(places)
    from_offsets: dict[Key, int] = {}
    for at in chosen:
        row, next_start = places[at], next_starts[at]
        start, log_start = row["start_offset"], log_starts.get((row["topic"], row["partition"]))
        from_offsets[key_of(SEGMENTS, row)] = start
        if log_start is not None and start < log_start and (next_start is None or next_start > log_start):
            from_offsets[key_of(SEGMENTS, row)] = log_start
    return _work(segments, from_offsets, is_mirror=is_mirror)


def find_work_here(
    warehouse: Warehouse, from_offsets: Mapping[Key, int], *, is_mirror: bool
) -> list[SegmentWork] | None:
    """Find the segments of these keys, to be counted from these offsets; None if the table is too large."""
    segments = warehouse.small_table(SEGMENTS, (*WORK_COLUMNS, *_SELECTED_BY))
    return None if segments is None else _work(segments, from_offsets, is_mirror=is_mirror)


def _work(segments: pa.Table, from_offsets: Mapping[Key, int], *, is_mirror: bool) -> list[SegmentWork]:
    """Make the work of the segments with these keys, in the order of the keys."""
    keys = zip(*(segments[name].to_pylist() for name in SEGMENTS.key), strict=True)
    places = {key: at for at, key in enumerate(keys) if key in from_offsets}
    last_starts = _last_starts(segments) if is_mirror and places else {}
    order = sorted(places)
    rows = segments.take(pa.array([places[key] for key in order], pa.int64())).to_pylist()
    for key, row in zip(order, rows, strict=True):
        row["count_from_offset"] = from_offsets[key]
        row["is_last"] = last_starts.get(_directory(row)) == row["start_offset"]
        row["is_log_damaged"] = _is_log_damaged(row)
    return list(map(SegmentWork.from_row, rows))


def _next_starts(rows: list[Row]) -> dict[int, int | None]:
    """Return the start offset of the next segment of the same incarnation, by place; None behind the last one."""
    incarnation = ("topic", "partition", "topic_id")
    order = sorted(
        range(len(rows)),
        key=lambda at: tuple(rows[at][name] for name in (*incarnation, "start_offset", "segment_id")),
    )
    found: dict[int, int | None] = dict.fromkeys(order)
    for at, following in pairwise(order):
        if all(rows[at][name] == rows[following][name] for name in incarnation):
            found[at] = rows[following]["start_offset"]
    return found


def _last_starts(segments: pa.Table) -> dict[Key, int]:
    """Return the greatest start offset of the listed segments of each directory."""
    columns = ("topic", "partition", "topic_id", "start_offset", "objects", "is_listed")
    found: dict[Key, int] = {}
    for row in segments.select(columns).to_pylist():
        if row["is_listed"]:
            directory = _directory(row)
            found[directory] = max(found.get(directory, row["start_offset"]), row["start_offset"])
    return found


def _directory(row: Row) -> Key:
    name = row["objects"][0]["name"].rpartition("/") if row["objects"] else None
    return row["topic"], row["partition"], row["topic_id"], None if name is None else name[0] or name[2]


def _is_log_damaged(row: Row) -> bool:
    """Whether the log was read and found damaged. Of segments in quarantine, one that had an index before."""
    if row["index_status"] == IndexStatus.QUARANTINED.value:
        return row["build_number"] is not None
    return row["index_status"] == IndexStatus.INDEXED.value and row["holes"] is not None
