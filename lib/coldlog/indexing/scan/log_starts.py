"""Keep the table of log start offsets up to date with its sources.

The sources are a CSV file, the brokers (`supplied_log_starts`) and the log starts that expiry has moved
(`tier_partitions`). Brokers are asked for the earliest offset of every partition in `segments`; for a tiered topic this
is the start of the whole log, its tier included. If several sources name a partition, the highest offset counts. The
table holds what the sources say now, so a line that is removed from the file no longer counts. Log start offsets also
follow from deleted segments and leader epochs (see `index.log_start`); the highest of all counts.

A topic that the brokers do not have is left out and reported. So is a topic that was deleted and created again, whose
topic id on the brokers is not the current one of the archive.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.brokers.kafka_client import Cluster
from coldlog.indexing.written_times import TIME_COLUMNS, deleted_ms, written_ms
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.segments import SEGMENTS, required_integer
from coldlog.tables.delta.files.table_files import list_table_files, read_whole_file
from coldlog.tables.delta.locations import table_location
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.expiry.supplied_log_starts import LiveLogStarts, LogStarts, ask_brokers
from coldlog.tiering.system_clock import SystemClock
from coldlog.tiering.tier_partitions import TierPartitions

_INCARNATION = ("topic", "partition", "topic_id")


def ask_log_start_offsets(warehouse_uri: str, cluster: Cluster) -> LiveLogStarts:
    """Ask the cluster for the log starts of the partitions in the warehouse, without Spark."""
    return ask_brokers(cluster, _current_topic_ids(warehouse_uri))


def read_tier_log_starts(warehouse: Warehouse) -> LogStarts:
    """Read the log starts that expire_segments has moved, for current incarnations of partitions in the warehouse."""
    moved = TierPartitions.below(warehouse.uri, SystemClock()).log_starts()
    known = _current_topic_ids(warehouse.uri) if moved else {}
    return {
        (each.topic, each.partition): offset
        for each, offset in moved.items()
        if known.get((each.topic, each.partition)) == each.topic_id
    }


def stored_log_starts(warehouse: Warehouse) -> LogStarts:
    """Read the rows of the table."""
    rows = warehouse.small_rows(LOG_START_OFFSETS, LOG_START_OFFSETS.column_names)
    return {
        (str(row["topic"]), required_integer(row["partition"])): required_integer(row["log_start_offset"])
        for row in rows
    }


def merge_log_start_offsets(warehouse: Warehouse, *sources: LogStarts) -> int:
    """Update `log_start_offsets` to the highest offsets of the sources; return the number of changed rows."""
    highest: dict[tuple[str, int], int] = {}
    for source in sources:
        for place, offset in source.items():
            highest[place] = max(offset, highest.get(place, 0))
    stored = stored_log_starts(warehouse)
    changed = dict(highest.items() - stored.items())
    if changed:
        warehouse.merge(LOG_START_OFFSETS, _rows_of(changed))
    no_more = {place: offset for place, offset in stored.items() if place not in highest}
    if no_more:
        removed = [row | {"is_no_more": True} for row in _rows_of(no_more)]
        warehouse.merge(LOG_START_OFFSETS, removed, remove="is_no_more")
    return len(changed) + len(no_more)


def _rows_of(log_starts: LogStarts) -> list[Row]:
    names = LOG_START_OFFSETS.column_names
    return [dict(zip(names, (*place, offset), strict=True)) for place, offset in log_starts.items()]


def _current_topic_ids(warehouse_uri: str) -> dict[tuple[str, int], str]:
    """Find the incarnation of each partition that lookups use, by the rule of `partition_metadata`."""
    files = list_table_files(table_location(warehouse_uri, SEGMENTS.name), SEGMENTS, [])
    of_files: list[pa.Table] = []
    for path in files.paths:
        rows = read_whole_file(files.location, path, SEGMENTS, (*_INCARNATION, *TIME_COLUMNS))
        times = {"written": pc.fill_null(written_ms(rows), 0), "deleted": pc.fill_null(deleted_ms(rows), 0)}
        of_files.append(_latest(pa.table({name: rows[name] for name in _INCARNATION} | times)))
    newest: dict[tuple[str, int], tuple[int, int, str]] = {}
    for row in _latest(pa.concat_tables(of_files)).to_pylist() if of_files else ():
        place = (row["topic"], row["partition"])
        newest[place] = max(newest.get(place, (-1, -1, "")), (row["written"], row["deleted"], row["topic_id"]))
    return {place: topic_id for place, (_, _, topic_id) in newest.items()}


def _latest(times: pa.Table) -> pa.Table:
    """The latest times of each incarnation."""
    found = times.group_by(_INCARNATION).aggregate([("written", "max"), ("deleted", "max")])
    return found.rename_columns({"written_max": "written", "deleted_max": "deleted"})
