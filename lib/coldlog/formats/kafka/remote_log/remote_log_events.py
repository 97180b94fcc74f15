"""Define the events of the metadata topic.

There is one class for each kind of record in `__remote_log_metadata`, with Kafka's names; `remote_log_metadata` reads
and writes them. An event keeps its message version and the tagged fields that coldlog does not use, so that it is
written unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.formats.kafka.remote_log.flexible_encoding import TaggedFields
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTags:
    """Unknown tagged fields, by the struct that they belong to; there is one entry per epoch, or none at all."""

    event: TaggedFields = ()
    remote_log_segment_id: TaggedFields = ()
    topic_id_partition: TaggedFields = ()
    segment_leader_epochs: tuple[TaggedFields, ...] = ()


NO_UNKNOWN_TAGS = UnknownTags()
_END_OFFSET_TAG = 1


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
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadataEvent(_SegmentFields):
    """A segment is being copied; `end_offset` is inclusive, epochs are (leader epoch, its first offset).

    `txn_index_empty` is None if the field is missing: brokers before KIP-1058 do not have it, later ones omit it for
    false. Both mean that there may be a transaction index.
    """

    remote_log_segment_id: RemoteLogSegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSnapshotEvent(_SegmentFields):
    """A segment in a snapshot of the metadata; the topic-partition is the snapshot's."""

    segment_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUpdateEvent:
    """A segment changed its state."""

    remote_log_segment_id: RemoteLogSegmentId
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    unknown_tags: UnknownTags = NO_UNKNOWN_TAGS
    version: int = 0

    @property
    def end_offset(self) -> int | None:
        """The segment's last offset, inclusive; only message version 1 (KIP-1266) has it, with -1 for unknown."""
        content = dict(self.unknown_tags.event).get(_END_OFFSET_TAG) if self.version else None
        end_offset = -1 if content is None else int.from_bytes(content, "big", signed=True)
        return None if end_offset < 0 else end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDeleteEvent:
    """A partition is being deleted."""

    topic_id_partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState
    unknown_tags: UnknownTags = NO_UNKNOWN_TAGS
    version: int = 0


Event = SegmentMetadataEvent | SegmentUpdateEvent | PartitionDeleteEvent | SegmentSnapshotEvent
