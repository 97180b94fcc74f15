"""Tell how far each partition of the metadata topic has been read, and whether all of its events are known.

This follows from all rows of `segment_events`. If they are too many to be looked through in this process, what a query
found is kept in `metadata_positions`, and each read of new events brings it up to date. So a run pays for new events
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from coldlog.errors import ColdlogError
from coldlog.indexing.events.event_rows import COMPARED_HERE, EVENTS_HERE, LOST
from coldlog.tables.definitions.metadata_positions import METADATA_POSITIONS
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.files.table_files import table_state
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse

_PLACE = ("metadata_partition", "metadata_offset")
_NEEDED = (*_PLACE, "problem", "event_kind", "event_count", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What `segment_events` has of a partition of the metadata topic.

    `value` and `has_problem` are of the record at `last_offset`. `event_count` counts the events without a problem,
    forgotten ones too; `last_event_offset` is -1 if there is none.
    """

    last_offset: int
    value: bytes | None
    has_problem: bool
    event_count: int
    last_event_offset: int
    lost_offsets: tuple[int, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every record up to the last event is there, and is an event."""
        return self.event_count == self.last_event_offset + 1


Positions = Mapping[int, Position]
"""By partition of the metadata topic."""


def read_positions(warehouse: Warehouse, *, has_values: bool = True) -> Positions:
    """Read the positions, or find them in all events; the `value` of each is wanted only with `has_values`."""
    kept = _read_kept(warehouse)
    if kept is not None:
        return kept
    events = warehouse.small_table(SEGMENT_EVENTS, _NEEDED if has_values else _NEEDED[:-1], times=EVENTS_HERE)
    if events is not None:
        return positions_of(events)
    found = _positions_in_tasks(warehouse)
    _keep(warehouse, found)
    return found


def advance_positions(warehouse: Warehouse, before: Positions, new_rows: Iterable[Row]) -> None:
    """Add new rows of `segment_events` to the kept positions. The rows are behind `before`. If nothing is kept, do
    nothing."""
    if _read_kept_rows(warehouse):
        schema = pa.schema([SEGMENT_EVENTS.arrow_schema.field(name) for name in _NEEDED])
        rows = [{name: row.get(name) for name in _NEEDED} for row in new_rows]
        new = positions_of(pa.Table.from_pylist(rows, schema=schema))
        _keep(warehouse, {**before, **{at: _joined(before.get(at), each) for at, each in new.items()}})


def lost_offsets(positions: Positions) -> dict[int, tuple[int, ...]]:
    """Return the last offset of each run of lost records, by metadata partition; usually there are none."""
    return {partition: each.lost_offsets for partition, each in positions.items() if each.lost_offsets}


def read_limited_events(warehouse: Warehouse, columns: Sequence[str]) -> pa.Table | None:
    """Read the events that can be of the partitions to which the warehouse is limited; None if there are too many."""
    return warehouse.limited_table(SEGMENT_EVENTS, columns, times=COMPARED_HERE)


def with_completeness(events: pa.Table, positions: Positions) -> pa.Table:
    """Add `is_complete`: all records of the metadata partition are present and readable. The events of a metadata
    partition without a single readable one tell nothing, and are left out."""
    known = [(partition, each.is_complete) for partition, each in positions.items() if each.event_count]
    partitions = pa.array([partition for partition, _ in known], events["metadata_partition"].type)
    places = pc.index_in(events["metadata_partition"], partitions)
    is_complete = pa.array([is_complete for _, is_complete in known], pa.bool_())
    return events.append_column("is_complete", is_complete.take(places.combine_chunks())).filter(pc.is_valid(places))


def _joined(before: Position | None, new: Position) -> Position:
    if before is None:
        return new
    return Position(
        last_offset=new.last_offset,
        value=new.value,
        has_problem=new.has_problem,
        event_count=before.event_count + new.event_count,
        last_event_offset=max(before.last_event_offset, new.last_event_offset),
        lost_offsets=(*before.lost_offsets, *new.lost_offsets),
    )


def positions_of(events: pa.Table) -> dict[int, Position]:
    """Find the positions in the columns of all events; without `value`, no position has one."""
    events = events.set_column(
        events.schema.get_field_index("event_count"), "event_count", pc.fill_null(events["event_count"], 1)
    )
    readable = events.filter(pc.is_null(events["problem"])).group_by("metadata_partition")
    counted = readable.aggregate([("event_count", "sum"), ("metadata_offset", "max")])
    counts = {row["metadata_partition"]: row for row in counted.to_pylist()}
    lost = events.filter(pc.equal(events["event_kind"], LOST)).select(_PLACE)
    partitions = events["metadata_partition"].to_numpy()
    order = np.lexsort((events["metadata_offset"].to_numpy(), partitions))
    is_last = np.diff(partitions[order], append=-1) != 0
    return _made(events.take(pa.array(order[is_last])).to_pylist(), counts, lost)


def _positions_in_tasks(warehouse: Warehouse) -> dict[int, Position]:
    events = warehouse.read(SEGMENT_EVENTS)
    of_partition = events.groupBy("metadata_partition").agg(
        F.max("metadata_offset").alias("last"),
        F.ifnull(F.sum(F.when(F.col("problem").isNull(), F.ifnull("event_count", F.lit(1)))), F.lit(0)).alias(
            "event_count_sum"
        ),
        F.max(F.when(F.col("problem").isNull(), F.col("metadata_offset"))).alias("metadata_offset_max"),
    )
    found = {row["metadata_partition"]: row.asDict() for row in of_partition.collect()}
    # The values of all events are many times the bytes of the offsets.
    is_one = F.lit(False)
    for partition, row in found.items():
        is_one |= (F.col("metadata_partition") == partition) & (F.col("metadata_offset") == row["last"])
    lasts = [row.asDict() for row in events.where(is_one).select(*_PLACE, "value", "problem").collect()]
    lost = events.where(F.col("event_kind") == LOST).select(*_PLACE).toArrow()
    return _made(lasts, {partition: row for partition, row in found.items() if row["event_count_sum"]}, lost)


def _made(lasts: Iterable[Row], counts: Mapping[int, Mapping[str, Any]], lost: pa.Table) -> dict[int, Position]:
    lost_offsets: dict[int, list[int]] = {}
    for partition, offset in zip(*(lost[name].to_pylist() for name in _PLACE), strict=True):
        lost_offsets.setdefault(partition, []).append(offset)
    return {
        row["metadata_partition"]: Position(
            last_offset=row["metadata_offset"],
            value=None if row.get("value") is None else bytes(row["value"]),
            has_problem=row["problem"] is not None,
            event_count=counts.get(row["metadata_partition"], {}).get("event_count_sum", 0),
            last_event_offset=counts.get(row["metadata_partition"], {}).get("metadata_offset_max", -1),
            lost_offsets=tuple(sorted(lost_offsets.get(row["metadata_partition"], ()))),
        )
        for row in lasts
    }


def _table(warehouse: Warehouse) -> SmallTable:
    return SmallTable(uri=warehouse.uri, table=METADATA_POSITIONS)


def _read_kept_rows(warehouse: Warehouse) -> list[Any]:
    """Read what is kept; nothing if the table is damaged, because all of it follows from the events."""
    try:
        return _table(warehouse).read()
    except ColdlogError:
        return []


def _read_kept(warehouse: Warehouse) -> dict[int, Position] | None:
    """Read what is kept; None if nothing is, or if it is of other events."""
    rows = [] if warehouse.as_of is not None else _read_kept_rows(warehouse)
    state = _state(warehouse) if rows else ""
    if not rows or any(row["events_state"] != state for row in rows):
        return None
    return {
        row["metadata_partition"]: Position(
            last_offset=row["last_offset"],
            value=row["value"],
            has_problem=row["has_problem"],
            event_count=row["event_count"],
            last_event_offset=-1 if row["last_event_offset"] is None else row["last_event_offset"],
            lost_offsets=tuple(row["lost_offsets"]),
        )
        for row in rows
    }


def _keep(warehouse: Warehouse, positions: Positions) -> None:
    if warehouse.as_of is not None:
        return
    state = _state(warehouse)
    rows: list[dict[str, object]] = [
        {
            "metadata_partition": partition,
            "last_offset": each.last_offset,
            "value": each.value,
            "has_problem": each.has_problem,
            "event_count": each.event_count,
            "last_event_offset": None if each.last_event_offset < 0 else each.last_event_offset,
            "lost_offsets": list(each.lost_offsets),
            "events_state": state,
        }
        for partition, each in sorted(positions.items())
    ]
    with suppress(ColdlogError):  # What is not kept is found again.
        _table(warehouse).replace_all(rows)


def _state(warehouse: Warehouse) -> str:
    return table_state(warehouse.data_location(SEGMENT_EVENTS), SEGMENT_EVENTS)
