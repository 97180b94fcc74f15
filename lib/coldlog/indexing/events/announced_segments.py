"""announced_segments: fold the events of the metadata topic into the state of each segment.

Folds `segment_events` as Kafka's RemoteLogMetadataCache does, in the order of the events: a segment's first event must
announce COPY_SEGMENT_STARTED, an update keeps everything but state, broker, event time and custom metadata (so
txn_index_empty carries over), transitions that are not Kafka's are dropped and counted, an update of a segment that
nobody announced too. A segment that has reached DELETE_SEGMENT_FINISHED is forgotten: it may be announced anew, nothing
else. When a partition's deletion is finished, every segment announced of it before is forgotten in the same way; the
deletion goes MARKED, STARTED, FINISHED, and what does not follow is dropped and counted too.

Events of a metadata partition may be missing: retention removed the oldest, compaction (KIP-1266) removed older ones of
a key, or a record cannot be read. The offsets show it, and then these rules hold in that metadata partition as well:

- An update of a segment whose first event is missing sets its state. What only the first event says is NULL.
- A segment may reach DELETE_SEGMENT_FINISHED from any state, and a partition's deletion any later state.
- A first event may announce any state: it then is the segment's whole state in one record.

A tombstone that names a segment says that its deletion was finished: Kafka writes it after that. Tombstones that name
none (see `remote_log_keys`) change no state; a broker does not let them either.

The fold runs inside Spark's own engine, a group a segment, with no Python in it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coldlog.indexing.events.event_rows import PARTITION_DELETE, SEGMENT, SEGMENT_UPDATE, TOMBSTONE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse

ANNOUNCED_COLUMNS = (
    "announced_start_offset",
    "announced_end_offset",
    "announced_max_timestamp_ms",
    "announced_size_bytes",
    "announced_leader_epochs",
    "announced_txn_index_empty",
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
# The ends of the partition are events of each of its segments.
_EVENTS = "sort_array(if(finished IS NULL, events, concat(events, finished)))"


def announced_segments(warehouse: Warehouse) -> DataFrame:
    """A row a segment that events name: its key, `announced_state`, `ANNOUNCED_COLUMNS`, and with `metadata_partition`
    and `metadata_offset` where it was announced.

    The state is NULL where no event of it was valid; `dropped_event_count` is all that is to be known then. The
    announced start offset is NULL where the first event is missing.
    """
    named = _events(warehouse).where(
        F.col("event_kind").isin(SEGMENT, SEGMENT_UPDATE, TOMBSTONE) & F.col("segment_id").isNotNull()
    )
    # A tombstone's key has no topic name; without an event beside it nothing is known of its segment.
    grouped = named.groupBy(*_UNNAMED_SEGMENT_KEY).agg(
        F.max("topic").alias("topic"), F.collect_list(_event()).alias("events")
    )
    ends = F.broadcast(deleted_partitions(warehouse).where(F.size("finished") > 0).select(*_PARTITION_KEY, "finished"))
    known = grouped.where(F.col("topic").isNotNull())
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
        F.col("known.last.broker_id").alias("broker_id"),
        F.col("known.last.event_timestamp_ms").alias("event_timestamp_ms"),
        F.col("known.last.custom_metadata").alias("custom_metadata"),
        F.col("known.was_copied").alias("was_copied"),
        F.col("known.dropped").alias("dropped_event_count"),
        F.col("known.first.metadata_partition").alias("metadata_partition"),
        F.col("known.first.metadata_offset").alias("metadata_offset"),
    )


def deleted_partitions(warehouse: Warehouse) -> DataFrame:
    """A row a partition that deletion events name: `delete_state` (NULL: none was valid), the events that `finished`
    it, and `dropped_event_count`."""
    events = _events(warehouse).where(F.col("event_kind") == PARTITION_DELETE)
    grouped = events.groupBy(*_PARTITION_KEY).agg(F.sort_array(F.collect_list(_event())).alias("events"))
    folded = grouped.select(*_PARTITION_KEY, F.expr(_FOLD_PARTITION).alias("known"))
    return folded.select(
        *_PARTITION_KEY,
        F.col("known.state").alias("delete_state"),
        F.col("known.finished").alias("finished"),
        F.col("known.dropped").alias("dropped_event_count"),
    )


def _events(warehouse: Warehouse) -> DataFrame:
    """Events, with `is_complete`: no record of their metadata partition is missing or cannot be read."""
    events = warehouse.read(SEGMENT_EVENTS)
    readable = events.where(F.col("problem").isNull()).groupBy("metadata_partition")
    complete = readable.agg((F.count("*") == F.max("metadata_offset") + 1).alias("is_complete"))
    return events.join(F.broadcast(complete), "metadata_partition")


def _event() -> Column:
    return F.struct(*_ORDER, *_CARRIED)
