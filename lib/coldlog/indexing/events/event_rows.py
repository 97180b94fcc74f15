"""Turn a record of the metadata topic into a row of `segment_events`.

A value that cannot be read becomes a row of kind `unreadable` with the reason. As in a broker, this is not fatal, and
the value is kept. A record without a value is a tombstone of a compacted topic (KIP-1266); its row has what the key
names. A snapshot event names no partition, and Kafka keeps such events only in files. So its row has a problem too.
"""

from __future__ import annotations

from coldlog.errors import ArchiveError
from coldlog.formats.kafka.remote_log.remote_log_keys import decode_event_key
from coldlog.formats.kafka.remote_log.remote_log_metadata import (
    Event,
    PartitionDeleteEvent,
    SegmentMetadataEvent,
    SegmentSnapshotEvent,
    SegmentUpdateEvent,
    decode_event,
)
from coldlog.model.ids import TopicIdPartition

UNREADABLE = "unreadable"
SEGMENT, SEGMENT_UPDATE, PARTITION_DELETE = "segment", "segment_update", "partition_delete"
SEGMENT_SNAPSHOT = "segment_snapshot"
TOMBSTONE = "tombstone"
LOST = "lost"
"""Kind of a row that stands for all events up to its offset, which the topic no longer had when it was read."""
FORGOTTEN = "forgotten"
"""Kind of a row that stands for events of its metadata partition up to its offset, whose segments were deleted."""
EVENTS_HERE = 250
"""So many times `FEW_ROWS` stored events, some 150 bytes each, are looked through in the driver."""
COMPARED_HERE = 1_000
"""So many times `FEW_ROWS` events of the partitions of a run are compared by columns in the driver: a million take 2 s,
and with 250,000 rows of `segments` 1.2 GB."""


def event_row(value: bytes | None, key: bytes | None = None) -> dict[str, object]:
    """Make the columns that depend on the record's value, or on its key if there is no value."""
    if value is None:
        return _tombstone_row(key)
    try:
        event = decode_event(value)
    except ArchiveError as wrong:
        return {"event_kind": UNREADABLE, "value": value, "problem": str(wrong)}
    return {"value": value, "state": event.state.name, "event_timestamp_ms": event.event_timestamp_ms,
            "broker_id": event.broker_id, **_facts(event)}  # fmt: skip


def lost_row() -> dict[str, object]:
    """Make the columns of a row of kind `lost`."""
    return {"event_kind": LOST, "problem": "the topic no longer had the records up to this offset when it was read"}


def _tombstone_row(key: bytes | None) -> dict[str, object]:
    if key is None:
        return {"event_kind": UNREADABLE, "problem": "the record has no value and no key"}
    try:
        named = decode_event_key(key)
    except ArchiveError as wrong:
        return {"event_kind": UNREADABLE, "problem": str(wrong)}
    return {
        "event_kind": TOMBSTONE,
        "topic": named.topic,
        "topic_id": named.topic_id,
        "partition": named.partition,
        "segment_id": named.segment_id,
    }


def _facts(event: Event) -> dict[str, object]:
    match event:
        case SegmentMetadataEvent():
            segment_id = event.remote_log_segment_id
            where = {**_where(segment_id.topic_id_partition), "segment_id": segment_id.segment_id}
            return {"event_kind": SEGMENT, **where, **_segment_facts(event)}
        case SegmentUpdateEvent():
            segment_id = event.remote_log_segment_id
            return {
                "event_kind": SEGMENT_UPDATE,
                **_where(segment_id.topic_id_partition),
                "segment_id": segment_id.segment_id,
                "end_offset": event.end_offset,
                "custom_metadata": event.custom_metadata,
            }
        case PartitionDeleteEvent():
            return {"event_kind": PARTITION_DELETE, **_where(event.topic_id_partition)}
        case SegmentSnapshotEvent():
            return {
                "event_kind": SEGMENT_SNAPSHOT,
                "segment_id": event.segment_id,
                "problem": "a snapshot event names no partition, so it is unknown what it announces",
                **_segment_facts(event),
            }


def _where(partition: TopicIdPartition) -> dict[str, object]:
    return {"topic": partition.topic, "topic_id": partition.topic_id, "partition": partition.partition}


def _segment_facts(event: SegmentMetadataEvent | SegmentSnapshotEvent) -> dict[str, object]:
    return {
        "start_offset": event.start_offset,
        "end_offset": event.end_offset,
        "max_timestamp_ms": event.max_timestamp_ms,
        "size_bytes": event.size_bytes,
        "segment_leader_epochs": [
            {"leader_epoch": epoch, "start_offset": offset} for epoch, offset in event.segment_leader_epochs
        ],
        "custom_metadata": event.custom_metadata,
        "txn_index_empty": event.txn_index_empty,
    }
