"""log_starts: which log start offsets did the operator supply, or do the brokers tell?

Sources (`supplied_log_starts`): a CSV file, and brokers that are asked for the earliest offset of every partition that
`segments` knows (of a tiered topic that is the start of the whole log, its tier included). And where expiry let a log
begin (`tier_partitions`). Where several name a partition the highest offset counts. The table holds what they say now,
so that a line that is taken out no longer counts. Where nothing is supplied, deleted segments and leader epochs tell
(see `index.partition_plan`); the highest of all counts.

A topic that the brokers do not have, or have under another topic id than the current one of the archive (it was deleted
and made again), is left out and told.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from coldlog.brokers.kafka_client import Cluster
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.expiry.supplied_log_starts import LiveLogStarts, LogStarts, ask_brokers
from coldlog.tiering.expiry.tier_partitions import TierPartitions
from coldlog.tiering.system_clock import SystemClock


def ask_log_start_offsets(warehouse: Warehouse, cluster: Cluster) -> LiveLogStarts:
    """What the cluster says of the partitions that the warehouse knows."""
    return ask_brokers(cluster, _current_topic_ids(warehouse))


def read_tier_log_starts(warehouse: Warehouse) -> LogStarts:
    """Where expire_segments let the logs begin that the warehouse knows, of their current incarnation."""
    moved = TierPartitions.below(warehouse.uri, SystemClock()).log_starts()
    known = _current_topic_ids(warehouse) if moved else {}
    return {
        (each.topic, each.partition): offset
        for each, offset in moved.items()
        if known.get((each.topic, each.partition)) == each.topic_id
    }


def stored_log_starts(warehouse: Warehouse) -> LogStarts:
    """What the table holds now."""
    return {(row[0], row[1]): row[2] for row in warehouse.read(LOG_START_OFFSETS).collect()}


def merge_log_start_offsets(warehouse: Warehouse, *sources: LogStarts) -> int:
    """Brings `log_start_offsets` to the highest that the sources say; returns how many rows changed."""
    highest: dict[tuple[str, int], int] = {}
    for source in sources:
        for place, offset in source.items():
            highest[place] = max(offset, highest.get(place, 0))
    names = LOG_START_OFFSETS.column_names
    rows = [dict(zip(names, (*place, offset), strict=True)) for place, offset in highest.items()]
    given = warehouse.local(LOG_START_OFFSETS, rows)
    stored = warehouse.read(LOG_START_OFFSETS)
    changed = given.join(stored, list(LOG_START_OFFSETS.column_names), "left_anti")
    changed_count = changed.count()
    if changed_count:
        warehouse.merge(LOG_START_OFFSETS, changed)
    no_more = stored.join(given, list(LOG_START_OFFSETS.key), "left_anti")
    removed_count = no_more.count()
    if removed_count:
        warehouse.delete_keys(LOG_START_OFFSETS, no_more)
    return changed_count + removed_count


def _current_topic_ids(warehouse: Warehouse) -> dict[tuple[str, int], str]:
    """The incarnation of each partition that lookups mean, by the rule of `partition_metadata`."""
    written = F.coalesce("event_timestamp_ms", "log_modified_ms", F.lit(0))
    newest = F.max_by("topic_id", F.struct(written, F.col("topic_id")))
    rows = warehouse.read(SEGMENTS).groupBy("topic", "partition").agg(newest).collect()
    return {(row[0], row[1]): row[2] for row in rows}
