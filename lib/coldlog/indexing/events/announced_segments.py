"""Fold the events of the metadata topic into the state of each segment.

The fold applies the rows of `segment_events` in order, like Kafka's RemoteLogMetadataCache:

- A segment's first event must announce COPY_SEGMENT_STARTED.
- An update changes only state, broker, event time and custom metadata. So txn_index_empty is kept.
- Invalid transitions, and updates of segments that were not announced, are dropped and counted.
- A segment that has reached DELETE_SEGMENT_FINISHED is forgotten. Only a new announcement is valid after that.
- The deletion of a partition goes MARKED, STARTED, FINISHED; other transitions are dropped and counted. When it is
  finished, every segment announced before is forgotten in the same way.

Events of a metadata partition may be missing: retention removed the oldest, compaction (KIP-1266) removed older events
of a key, or a record cannot be read. The offsets show this. Then three more rules apply in that metadata partition:

- An update of a segment whose first event is missing sets its state. Values that only the first event has are NULL.
- A segment may reach DELETE_SEGMENT_FINISHED from any state, and a partition's deletion may reach any later state.
- A first event may announce any state: it then has the segment's whole state in one record.

A tombstone that names a segment means that its deletion was finished, because Kafka writes it after that. A tombstone
that names no segment (see `remote_log_keys`) changes no state, as in a broker.

The fold runs in Spark's engine, one group per segment, without Python.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coldlog.indexing.events.event_rows import PARTITION_DELETE, SEGMENT, SEGMENT_UPDATE, TOMBSTONE
from coldlog.indexing.events.positions import read_limited_events
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse

ANNOUNCED_COLUMNS = (
    "announced_start_offset",
    "announced_end_offset",
    "announced_max_timestamp_ms",
    "announced_size_bytes",
    "announced_leader_epochs",
    "announced_txn_index_empty",
    "copy_started_ms",
    "broker_id",
    "event_timestamp_ms",
    "custom_metadata",
    "was_copied",
    "dropped_event_count",
)
_ORDER = ("metadata_partition", "metadata_offset")
_CARRIED = (
    "event_kind", "state", "is_complete", "broker_id", "event_timestamp_ms", "custom_metadata", "start_offset",
    "end_offset", "max_timestamp_ms", "size_bytes", "segment_leader_epochs", "txn_index_empty",
)  # fmt: skip
_PARTITION_KEY = ("topic", "partition", "topic_id")
_SEGMENT_KEY = (*_PARTITION_KEY, "segment_id")
_UNNAMED_SEGMENT_KEY = _SEGMENT_KEY[1:]

_DELETED = "DELETE_SEGMENT_FINISHED"
_IS_VALID = f"""CASE
  WHEN event.event_kind = '{SEGMENT}' THEN
    event.state = 'COPY_SEGMENT_STARTED'
    AND (known.state IS NULL OR known.state IN ('COPY_SEGMENT_STARTED', 'DELETE_SEGMENT_FINISHED')
      OR known.first.start_offset IS NULL)
  WHEN known.state IS NULL OR known.state = 'DELETE_SEGMENT_FINISHED' THEN false
  WHEN event.state = 'COPY_SEGMENT_FINISHED' THEN known.state IN ('COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED')
  WHEN event.state = 'DELETE_SEGMENT_STARTED' THEN
    known.state IN ('COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED')
  WHEN event.state = 'DELETE_SEGMENT_FINISHED' THEN known.state = 'DELETE_SEGMENT_STARTED'
  ELSE false
END"""
_IS_VALID_WHERE_EVENTS_ARE_MISSING = """NOT event.is_complete AND event.state <> 'COPY_SEGMENT_STARTED'
  AND (known.state IS NULL OR event.state = 'DELETE_SEGMENT_FINISHED' AND known.state <> 'DELETE_SEGMENT_FINISHED')"""

_FOLD_SEGMENT = f"""aggregate(
  events,
  named_struct(
    'state', CAST(NULL AS STRING), 'first', element_at(events, 1), 'last', element_at(events, 1),
    'was_copied', false, 'dropped', 0L
  ),
  (known, event) -> CASE
    WHEN event.event_kind IN ('{PARTITION_DELETE}', '{TOMBSTONE}') THEN named_struct(
      'state', if(known.state IS NULL, NULL, '{_DELETED}'), 'first', known.first, 'last', known.last,
      'was_copied', known.was_copied, 'dropped', known.dropped)
    WHEN {_IS_VALID} OR {_IS_VALID_WHERE_EVENTS_ARE_MISSING} THEN named_struct(
      'state', event.state,
      'first', if(event.event_kind = '{SEGMENT}' OR known.state IS NULL, event, known.first),
      'last', event,
      'was_copied', event.state = 'COPY_SEGMENT_FINISHED' OR (known.was_copied AND event.event_kind <> '{SEGMENT}'),
      'dropped', known.dropped)
    ELSE named_struct(
      'state', known.state, 'first', known.first, 'last', known.last,
      'was_copied', known.was_copied, 'dropped', known.dropped + 1L)
  END
)"""

_FOLD_PARTITION = """aggregate(
  events,
  named_struct('state', CAST(NULL AS STRING), 'finished', filter(events, event -> false), 'dropped', 0L),
  (known, event) -> CASE
    WHEN CASE event.state
        WHEN 'DELETE_PARTITION_MARKED' THEN
          known.state IS NULL OR known.state IN ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_FINISHED')
        WHEN 'DELETE_PARTITION_STARTED' THEN known.state IN ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED')
        ELSE known.state IN ('DELETE_PARTITION_STARTED', 'DELETE_PARTITION_FINISHED')
      END IS TRUE
      OR NOT event.is_complete AND (known.state IS NULL
        OR event.state = 'DELETE_PARTITION_FINISHED' AND known.state = 'DELETE_PARTITION_MARKED')
    THEN named_struct(
      'state', event.state,
      'finished',
      if(event.state = 'DELETE_PARTITION_FINISHED', array_append(known.finished, event), known.finished),
      'dropped', known.dropped)
    ELSE named_struct('state', known.state, 'finished', known.finished, 'dropped', known.dropped + 1L)
  END
)"""
# The end of a partition's deletion is an event of each of its segments.
_EVENTS = "sort_array(if(finished IS NULL, events, concat(events, finished)))"


def announced_segments(warehouse: Warehouse) -> DataFrame:
    """Return one row per segment that events name, of the partitions to which the warehouse is limited.

    A row has the segment's key, `announced_state`, `ANNOUNCED_COLUMNS`, and the `metadata_partition` and
    `metadata_offset` of its announcement. The state is NULL if no event of the segment was valid; then only
    `dropped_event_count` has a meaning. The announced start offset is NULL if the first event is missing; so is
    `copy_started_ms` if no event before the deletion is left.
    """
    events = _limited_events(warehouse)
    named = events.where(F.col("event_kind").isin(SEGMENT, SEGMENT_UPDATE, TOMBSTONE) & F.col("segment_id").isNotNull())
    # A tombstone's key has no topic name; without another event, nothing is known about its segment.
    grouped = named.groupBy(*_UNNAMED_SEGMENT_KEY).agg(
        F.max("topic").alias("topic"), F.collect_list(_event()).alias("events")
    )
    ends = F.broadcast(_deleted_partitions(events).where(F.size("finished") > 0).select(*_PARTITION_KEY, "finished"))
    known = warehouse.limited(grouped.where(F.col("topic").isNotNull()))
    ordered = known.join(ends, list(_PARTITION_KEY), "left").withColumn("events", F.expr(_EVENTS))
    folded = ordered.select(*_SEGMENT_KEY, F.expr(_FOLD_SEGMENT).alias("known"))
    return folded.select(
        *_SEGMENT_KEY,
        F.col("known.state").alias("announced_state"),
        F.col("known.first.start_offset").alias("announced_start_offset"),
        F.col("known.first.end_offset").alias("announced_end_offset"),
        F.col("known.first.max_timestamp_ms").alias("announced_max_timestamp_ms"),
        F.col("known.first.size_bytes").alias("announced_size_bytes"),
        F.col("known.first.segment_leader_epochs").alias("announced_leader_epochs"),
        F.col("known.first.txn_index_empty").alias("announced_txn_index_empty"),
        F.expr("if(known.first.state LIKE 'COPY%', known.first.event_timestamp_ms, NULL)").alias("copy_started_ms"),
        F.col("known.last.broker_id").alias("broker_id"),
        F.col("known.last.event_timestamp_ms").alias("event_timestamp_ms"),
        F.col("known.last.custom_metadata").alias("custom_metadata"),
        F.col("known.was_copied").alias("was_copied"),
        F.col("known.dropped").alias("dropped_event_count"),
        F.col("known.first.metadata_partition").alias("metadata_partition"),
        F.col("known.first.metadata_offset").alias("metadata_offset"),
    )


def _deleted_partitions(events: DataFrame) -> DataFrame:
    """Return one row per partition that deletion events name.

    A row has `delete_state` (NULL: no event was valid), the events that `finished` the deletion, and
    `dropped_event_count`.
    """
    deletions = events.where(F.col("event_kind") == PARTITION_DELETE)
    grouped = deletions.groupBy(*_PARTITION_KEY).agg(F.sort_array(F.collect_list(_event())).alias("events"))
    folded = grouped.select(*_PARTITION_KEY, F.expr(_FOLD_PARTITION).alias("known"))
    return folded.select(
        *_PARTITION_KEY,
        F.col("known.state").alias("delete_state"),
        F.col("known.finished").alias("finished"),
        F.col("known.dropped").alias("dropped_event_count"),
    )


def _limited_events(warehouse: Warehouse) -> DataFrame:
    """As `_events`, without those that cannot be of the partitions to which the warehouse is limited.

    The driver reads a small table itself, and gives Spark only the rows of these partitions.
    """
    if warehouse.partitions is None:
        return _events(warehouse)
    stored = read_limited_events(warehouse)
    if stored is not None:
        return frame_of(warehouse.spark, stored)
    topics = sorted({topic for topic, _ in warehouse.partitions})
    numbers = sorted({number for _, number in warehouse.partitions})
    is_of_topics = F.col("topic").isin(topics) | F.col("topic").isNull()  # a tombstone's key has none
    return _events(warehouse).where(F.col("partition").isin(numbers) & is_of_topics)


def _events(warehouse: Warehouse) -> DataFrame:
    """Read the events with `is_complete`: all records of their metadata partition are present and readable."""
    events = warehouse.read(SEGMENT_EVENTS)
    readable = events.where(F.col("problem").isNull()).groupBy("metadata_partition")
    count = F.sum(F.ifnull("event_count", F.lit(1)))
    complete = readable.agg((count == F.max("metadata_offset") + 1).alias("is_complete"))
    return events.join(F.broadcast(complete), "metadata_partition")


def _event() -> Column:
    return F.struct(*_ORDER, *_CARRIED)
