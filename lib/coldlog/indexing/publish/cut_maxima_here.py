"""Find the largest timestamp of segments up to a cut, from small index tables, in this process.

The rules are those of `serving_plan`, which has them for Spark; a test holds both to the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.index.partition_plan import CutMaxima
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Key, Row
from coldlog.tables.delta.warehouse import Warehouse

_ROWS_HERE = 250
"""So many times `FEW_ROWS` rows of an index are looked through."""
_BUILD = ("topic", "partition", "segment_id", "build_number")
_DEPTHS = {
    IndexDepth.RECORD.value: (TIME_INDEX, "timestamp_ms", "offset"),
    IndexDepth.BATCH.value: (OFFSET_INDEX, "running_max_timestamp_ms", "last_offset"),
    IndexDepth.SIDECAR.value: (INTERVAL_INDEX, "running_max_timestamp_ms", "after_offset"),
}
"""The table of each depth, with its columns of timestamps and of the offsets that are compared with the cut."""


def cut_maxima_here(warehouse: Warehouse, cut: Sequence[Row]) -> CutMaxima | None:
    """Return the largest timestamp of each segment up to `served_to_offset`, with its offset if stairs tell it.

    None if a table is too large.
    """
    built = warehouse.rows_if_small(SEGMENTS, ("segment_id", "build_number", "index_depth"))
    if built is None:
        return None
    builds = {row["segment_id"]: row for row in built}
    found: dict[str, tuple[int, int | None]] = {}
    for depth in _DEPTHS:
        ends: dict[Key, Row] = {
            (row["topic"], row["partition"], row["segment_id"], builds[row["segment_id"]]["build_number"]): row
            for row in cut
            if builds[row["segment_id"]]["index_depth"] == depth
        }
        before = _rows_before(warehouse, depth, ends) if ends else []
        if before is None:
            return None
        for segment_id, timestamp_ms, offset in before:
            at = offset if depth == IndexDepth.RECORD.value else None
            found[segment_id] = max(found.get(segment_id, (timestamp_ms, at)), (timestamp_ms, at), key=_timestamp)
    return found


def _timestamp(maximum: tuple[int, int | None]) -> int:
    return maximum[0]


def _rows_before(warehouse: Warehouse, depth: str, ends: Mapping[Key, Row]) -> list[tuple[str, int, int]] | None:
    """Return segment, timestamp and offset of the rows up to the cut; None if the table is too large."""
    table, timestamp, offset = _DEPTHS[depth]
    stored = warehouse.small_table(table, (*_BUILD, timestamp, offset), times=_ROWS_HERE)
    if stored is None:
        return None
    ids = pa.array([key[2] for key in ends], pa.string())
    found = []
    for row in stored.filter(pc.is_in(stored["segment_id"], value_set=ids)).to_pylist():
        end = ends.get(tuple(row[name] for name in _BUILD))
        # An interval has the records after its offset.
        first = row[offset] + (depth == IndexDepth.SIDECAR.value)
        if end is not None and row[timestamp] is not None and first <= end["served_to_offset"]:
            found.append((row["segment_id"], row[timestamp], row[offset]))
    return found
