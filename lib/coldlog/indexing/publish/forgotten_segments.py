"""Forget segments that were deleted long ago: their rows in `segments`, and their events.

Retention deletes segments every day, and a run that works on a partition compares all of its rows and events. So these
are removed some time after the deletion. What is removed changes no answer and no plan (`settled_deletions`):

- The segment is gone, its index rows were dropped, and it is not in quarantine.
- It does not tell where the log may start. Of each incarnation, the deleted segments that were written last and deleted
  last stay too.
- It has no events, or the four of a usual life and no others (`settled_segments`).
- None of its events is the last record of its metadata partition: there the next run reads on.

The events are removed first, and one row of kind `forgotten` for each metadata partition counts them in the same
commit. So a metadata partition is known to be complete as before. A run that is killed after that leaves rows without
events, which the next maintenance removes.

Rows are read from the files that have only segments that are gone (`sorted_files`), one file after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from coldlog.indexing.events.announced_segments import EVENT_COLUMNS
from coldlog.indexing.events.event_rows import COMPARED_HERE, FORGOTTEN
from coldlog.indexing.events.positions import read_limited_events, read_positions
from coldlog.indexing.publish.planned_rows import SERVED_COLUMNS
from coldlog.indexing.publish.settled_deletions import are_needless
from coldlog.indexing.scan.settled_segments import ended_places
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import read_whole_file
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.sorted_files import files_of_gone

_PLACE = SEGMENT_EVENTS.key
_COUNTED = (*_PLACE, "event_kind", "event_count")
_Bool = npt.NDArray[np.bool_]


def forget_deleted(warehouse: Warehouse, before_ms: int) -> int:
    """Forget the segments that were deleted before that moment, by the brokers' clocks; return how many.

    Without events, the time of the upload counts.
    """
    return sum(_forget(warehouse, rows, before_ms) for rows in _gone_rows(warehouse))


def _gone_rows(warehouse: Warehouse) -> Iterator[pa.Table]:
    location = warehouse.data_location(SEGMENTS)
    for path in files_of_gone(warehouse):
        yield read_whole_file(location, path, SEGMENTS)


def _forget(warehouse: Warehouse, rows: pa.Table, before_ms: int) -> int:
    rows = rows.filter(pa.array(_may_go(warehouse, rows, before_ms)))
    if not len(rows):
        return 0
    places = zip(rows["topic"].to_pylist(), rows["partition"].to_pylist(), strict=True)
    limited = replace(warehouse, partitions=frozenset(places))
    named = read_limited_events(limited, EVENT_COLUMNS)
    if named is None:
        return 0  # too many events for this process
    events = _without_last(warehouse, named)
    ended = rows.take(pa.array(ended_places(rows, events)))
    unnamed = rows.filter(pc.invert(_is_in(rows, "segment_id", named)))
    _forget_events(warehouse, events.filter(_is_in(events, "segment_id", ended)))
    keys = pa.concat_tables([ended, unnamed]).select(SEGMENTS.key).to_pylist()
    warehouse.delete_matching(SEGMENTS, keys)
    return len(keys)


def _is_in(rows: pa.Table, name: str, others: pa.Table) -> pa.ChunkedArray:
    """Whether the column has a value of the other table's column."""
    return pc.fill_null(pc.is_in(rows[name], others[name].drop_null()), False)


def _may_go(warehouse: Warehouse, rows: pa.Table, before_ms: int) -> _Bool:
    deleted_ms = pc.coalesce(rows["event_timestamp_ms"], rows["log_modified_ms"])
    quarantined = [row["segment_id"] for row in warehouse.small_rows(QUARANTINE, ("segment_id",))]
    facts = (
        pc.equal(rows["state"], "DELETE_SEGMENT_FINISHED"),
        pc.invert(rows["is_listed"]),
        pc.is_null(rows["build_number"]),
        pc.less(deleted_ms, before_ms),
        pc.invert(pc.is_in(rows["segment_id"], pa.array(quarantined, pa.string()))),
    )
    may_go = are_needless(rows, SERVED_COLUMNS)
    for fact in facts:
        may_go &= pc.fill_null(fact, False).to_numpy()
    return may_go


def _without_last(warehouse: Warehouse, events: pa.Table) -> pa.Table:
    """Leave out the segments that have the last event of a metadata partition."""
    lasts = {(partition, each.last_offset) for partition, each in read_positions(warehouse, has_values=False).items()}
    places = zip(*(events[name].to_pylist() for name in _PLACE), strict=True)
    is_last = pa.array([place in lasts for place in places], pa.bool_())
    return events.filter(pc.invert(_is_in(events, "segment_id", events.filter(is_last))))


def _forget_events(warehouse: Warehouse, events: pa.Table) -> None:
    """Replace these events, and the row of those that were forgotten before, by one row for each metadata partition, in
    one commit."""
    if not len(events):
        return
    before = _forgotten_before(warehouse)
    before = before.filter(_is_in(before, "metadata_partition", events))
    of_partitions = pa.concat_tables([events.select(_COUNTED), before])
    places = list(zip(*(of_partitions[name].to_pylist() for name in _PLACE), strict=True))
    counts, ends = Counter[int](), dict[int, int]()
    for (partition, offset), count in zip(places, of_partitions["event_count"].to_pylist(), strict=True):
        counts[partition] += count or 1
        ends[partition] = max(offset, ends.get(partition, offset))
    rows = {place: _row(*place, is_removed=True) for place in places}
    rows |= {place: _row(*place, event_count=counts[place[0]]) for place in ends.items()}
    warehouse.merge(SEGMENT_EVENTS, list(rows.values()), remove="is_removed")


def _forgotten_before(warehouse: Warehouse) -> pa.Table:
    is_forgotten = pc.field("event_kind") == FORGOTTEN
    rows = warehouse.small_table(SEGMENT_EVENTS, _COUNTED, times=COMPARED_HERE)
    if rows is not None:
        return rows.filter(is_forgotten)
    found = warehouse.read(SEGMENT_EVENTS).where(F.col("event_kind") == FORGOTTEN).select(*_COUNTED).toArrow()
    return found.cast(pa.schema([SEGMENT_EVENTS.arrow_schema.field(name) for name in _COUNTED]))


def _row(partition: int, offset: int, *, event_count: int | None = None, is_removed: bool = False) -> Row:
    named = {"metadata_partition": partition, "metadata_offset": offset, "event_kind": FORGOTTEN}
    return {
        **dict.fromkeys(SEGMENT_EVENTS.column_names), **named, "event_count": event_count, "is_removed": is_removed,
    }  # fmt: skip
