"""Find segments to index in a small table, in this process.

The rules are those of `build_work`, which has them for Spark; a test holds both to the same work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.indexing.builds.build_plan import ADDED_COLUMNS, WORK_COLUMNS, WorkTable
from coldlog.indexing.builds.preceding_segments import FARTHEST
from coldlog.model.states import IndexStatus
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Key, Row, key_of
from coldlog.tables.delta.warehouse import Warehouse

_Int64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]
_INCARNATION = ("topic", "partition", "topic_id")
_SELECTED_BY = ("index_status", "damaged_files", "holes", "is_listed", "txn_index_empty", "abort_marker_count")


def find_pending_here(
    warehouse: Warehouse, retried: Collection[Key], *, retry_quarantined: bool, is_mirror: bool
) -> WorkTable | None:
    """Find pending segments, those in doubt soon after them, and those with a damaged file whose key is in `retried`,
    or all with `retry_quarantined`; None if the table is too large."""
    segments = warehouse.small_table(SEGMENTS, (*WORK_COLUMNS, *_SELECTED_BY))
    if segments is None:
        return None
    known = warehouse.small_rows(LOG_START_OFFSETS, LOG_START_OFFSETS.column_names)
    log_starts = {(row["topic"], row["partition"]): row["log_start_offset"] for row in known}
    status, damaged = segments["index_status"], segments["damaged_files"]
    is_damaged = pc.fill_null(pc.greater(pc.list_value_length(damaged), 0), False)
    is_retriable = pc.or_(pc.equal(status, IndexStatus.QUARANTINED.value), is_damaged)
    is_pending = pc.equal(status, IndexStatus.PENDING.value)
    order, follows = _in_order(segments)
    next_starts = _next_starts(segments, order, follows)
    is_again = _is_in_doubt(segments, is_retriable) & _is_soon_after(is_pending.to_numpy(), order, follows)
    places = np.flatnonzero(pc.or_(is_pending, is_retriable).to_numpy() | is_again)
    rows = segments.select((*SEGMENTS.key, "index_status")).take(pa.array(places)).to_pylist()
    from_offsets: dict[int, int] = {}
    for at, row in zip(places.tolist(), rows, strict=True):
        is_chosen = row["index_status"] == IndexStatus.PENDING.value or retry_quarantined or is_again[at]
        if is_chosen or key_of(SEGMENTS, row) in retried:
            start, log_start = row["start_offset"], log_starts.get((row["topic"], row["partition"]))
            next_start = next_starts.get(at)
            from_offsets[at] = start
            if log_start is not None and start < log_start and (next_start is None or next_start > log_start):
                from_offsets[at] = log_start
    return _work(segments, from_offsets, is_mirror=is_mirror)


def find_work_here(warehouse: Warehouse, from_offsets: Mapping[Key, int], *, is_mirror: bool) -> WorkTable | None:
    """Find the segments of these keys, to be counted from these offsets; None if the table is too large."""
    segments = warehouse.small_table(SEGMENTS, (*WORK_COLUMNS, *_SELECTED_BY))
    if segments is None:
        return None
    keys = zip(*(segments[name].to_pylist() for name in SEGMENTS.key), strict=True)
    places = {at: from_offsets[key] for at, key in enumerate(keys) if key in from_offsets}
    return _work(segments, places, is_mirror=is_mirror)


def _work(segments: pa.Table, from_offsets: Mapping[int, int], *, is_mirror: bool) -> WorkTable:
    """Make the work of the segments at these places."""
    rows = segments.take(pa.array(list(from_offsets), pa.int64()))
    is_last = [False] * len(rows)
    if is_mirror and from_offsets:
        last_starts = _last_starts(segments)
        is_last = [last_starts.get(_directory(row)) == row["start_offset"] for row in rows.to_pylist()]
    added = pa.array(list(from_offsets.values()), pa.int64()), pa.array(is_last, pa.bool_()), _is_log_damaged(rows)
    for name, values in zip(ADDED_COLUMNS, added, strict=True):
        rows = rows.append_column(name, values)
    return WorkTable.of(rows)


def _in_order(segments: pa.Table) -> tuple[_Int64, _Bool]:
    """Return the places of the segments of each incarnation in order, and whether each but the first is of the same
    incarnation as the one before it."""
    order = pc.sort_indices(segments, [(name, "ascending") for name in (*_INCARNATION, "start_offset", "segment_id")])
    ordered = segments.select(_INCARNATION).take(order).combine_chunks()
    follows = [pc.equal(ordered[name][1:], ordered[name][:-1]) for name in _INCARNATION]
    is_same: _Bool = reduce(pc.and_, follows).to_numpy() if len(order) else np.empty(0, dtype=np.bool_)
    return order.to_numpy().astype(np.int64), is_same


def _next_starts(segments: pa.Table, order: _Int64, follows: _Bool) -> dict[int, int]:
    """Return the start offset of the next segment of the same incarnation, by place, if there is one."""
    followed = np.flatnonzero(follows)
    starts = segments["start_offset"].to_numpy()[order[followed + 1]]
    return dict(zip(order[followed].tolist(), starts.tolist(), strict=True))


def _is_in_doubt(segments: pa.Table, is_retriable: pa.ChunkedArray) -> _Bool:
    """Whether what a build found may change with the segments before, as in `build_work`."""
    is_unlisted = pc.and_(pc.is_null(segments["txn_index_empty"]), pc.greater(segments["abort_marker_count"], 0))
    is_indexed = pc.equal(segments["index_status"], IndexStatus.INDEXED.value)
    is_aborting = pc.fill_null(pc.and_(is_indexed, is_unlisted), False)
    found: _Bool = pc.and_(segments["is_listed"], pc.or_(is_retriable, is_aborting)).to_numpy()
    return found


def _is_soon_after(is_pending: _Bool, order: _Int64, follows: _Bool) -> _Bool:
    """Whether one of the last `FARTHEST` segments before a segment is pending."""
    found = np.zeros(len(order), dtype=np.bool_)
    is_near, here = follows.copy(), is_pending[order]
    for distance in range(1, min(FARTHEST, len(order) - 1) + 1):
        found[order[distance:]] |= here[:-distance] & is_near
        is_near = is_near[1:] & follows[: len(follows) - distance]
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


def _is_log_damaged(rows: pa.Table) -> pa.ChunkedArray:
    """Whether logs were read and found damaged. Of segments in quarantine, those that had an index before."""
    status = rows["index_status"]
    is_lost = pc.and_(pc.equal(status, IndexStatus.QUARANTINED.value), pc.is_valid(rows["build_number"]))
    return pc.or_(is_lost, pc.and_(pc.equal(status, IndexStatus.INDEXED.value), pc.is_valid(rows["holes"])))
