"""remote_log_events: what can the metadata topic announce?

One class for each kind of record of `__remote_log_metadata`, with Kafka's names; `remote_log_metadata` reads and writes
them. An event keeps the tagged fields that are not known here, because what was read is to be written alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.formats.flexible_encoding import TaggedFields
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTags:
    """Tagged fields that are not known here, by the struct that they end; epochs have one entry each or none at all."""

    event: TaggedFields = ()
    remote_log_segment_id: TaggedFields = ()
    topic_id_partition: TaggedFields = ()
    segment_leader_epochs: tuple[TaggedFields, ...] = ()


NO_UNKNOWN_TAGS = UnknownTags()


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentFields:
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[tuple[int, int], ...]
    size_bytes: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    txn_index_empty: bool | None
    unknown_tags: UnknownTags = NO_UNKNOWN_TAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadataEvent(_SegmentFields):
    """A segment is being copied; `end_offset` is inclusive, epochs are (leader epoch, its first offset).

    `txn_index_empty` is None where the field is absent: brokers before KIP-1058 do not know it, later ones leave false
    out. Both mean that there may be a txn index.
    """

    remote_log_segment_id: RemoteLogSegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSnapshotEvent(_SegmentFields):
    """A segment as a snapshot of the metadata holds it; the topic-partition is the snapshot's."""

    segment_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUpdateEvent:
    """A segment has come to another state."""

    remote_log_segment_id: RemoteLogSegmentId
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    unknown_tags: UnknownTags = NO_UNKNOWN_TAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDeleteEvent:
    """A partition is being deleted."""

    topic_id_partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState
    unknown_tags: UnknownTags = NO_UNKNOWN_TAGS


Event = SegmentMetadataEvent | SegmentUpdateEvent | PartitionDeleteEvent | SegmentSnapshotEvent
