"""Read and write the records of the topic `__remote_log_metadata`.

The value, in Kafka's flexible encoding (see `flexible_encoding`; KIP-405, RemoteLogMetadataSerde):

    number frame version 1 · number api key · number version 0 or 1 · the message of that api key

    0 segment           id · fields of a segment
    1 segment update    id · int32 broker_id · int64 event_timestamp_ms · nullable bytes custom_metadata · int8 state
    2 partition delete  topic-partition · int32 broker_id · int64 event_timestamp_ms · int8 state
    3 segment snapshot  uuid segment_id · fields of a segment

    id                  topic-partition · uuid segment_id
    topic-partition     string topic · uuid topic_id · int32 partition
    fields of a segment int64 start_offset · int64 end_offset · int32 broker_id · int64 max_timestamp_ms
                        · int64 event_timestamp_ms · array of { int32 leader_epoch, int64 start_offset }
                        · int32 size_bytes · nullable bytes custom_metadata · int8 state
                        · tag 0: boolean txn_index_empty (KIP-1058)

Message version 1 is part of KIP-1266 (apache/kafka pull request 22459, not released). It adds tagged fields:

    0 segment           tag 1: int32 broker_leader_epoch
    1 segment update    tag 0: int32 broker_leader_epoch · tag 1: int64 end_offset
    2 partition delete  tag 0: int32 broker_leader_epoch · tag 1: int64 end_offset
    3 segment snapshot  tag 1: int32 broker_leader_epoch

Every struct ends in tagged fields. Unknown ones are kept, so that encoding a decoded event gives the same bytes, with
two exceptions: numbers with more bytes than necessary, and a boolean true that is not 1.

Refused (`METADATA_EVENT_INVALID`, with the position in the value): what Kafka's own reader refuses, what
`flexible_encoding` refuses, and a boolean that is not one byte; Kafka never writes the last two. Versions above 1 are
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from coldlog.errors import Reason, UsageError
from coldlog.formats.kafka.remote_log.flexible_encoding import (
    FlexibleReader,
    TaggedFields,
    write_int,
    write_nullable_bytes,
    write_number,
    write_string,
    write_tagged_fields,
)
from coldlog.formats.kafka.remote_log.remote_log_events import (
    NO_UNKNOWN_TAGS,
    Event,
    PartitionDeleteEvent,
    SegmentMetadataEvent,
    SegmentSnapshotEvent,
    SegmentUpdateEvent,
    UnknownTags,
)
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition, uuid_bytes
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState

__all__ = [
    "Event",
    "PartitionDeleteEvent",
    "SegmentMetadataEvent",
    "SegmentSnapshotEvent",
    "SegmentUpdateEvent",
    "UnknownTags",
    "decode_event",
    "encode_event",
]

FRAME_VERSION = 1
MESSAGE_VERSIONS = (0, 1)
_TXN_INDEX_EMPTY_TAG = 0
_TAG_SIZES = ({1: 4}, {0: 4, 1: 8}, {0: 4, 1: 8}, {1: 4})
"""The size in bytes of each tagged field that message version 1 adds, by api key."""

_SegmentEvent = TypeVar("_SegmentEvent")
_State = TypeVar("_State", RemoteLogSegmentState, RemotePartitionDeleteState)


def decode_event(value: bytes | memoryview) -> Event:
    """The event of a record's value."""
    reader = FlexibleReader(buffer=memoryview(value), reason=Reason.METADATA_EVENT_INVALID)
    reader.require_number("frame version", FRAME_VERSION)
    start = reader.position
    api_key = reader.read_number("api key")
    read = _READERS.get(api_key)
    if read is None:
        raise reader.refusal("api key is unknown", start, "0 to 3", str(api_key))
    version_at = reader.position
    version = reader.read_number("version")
    if version not in MESSAGE_VERSIONS:
        raise reader.refusal("version is not supported", version_at, "0 or 1", str(version))
    event = read(reader)
    if version:
        _require_tag_sizes(reader, event, api_key)
    reader.require_end("event")
    return replace(event, version=version)


def encode_event(event: Event) -> bytes:
    """The value of a record that announces the event."""
    if event.version not in MESSAGE_VERSIONS:
        raise UsageError(f"message version {event.version} cannot be written")
    out = bytearray((FRAME_VERSION,))
    match event:
        case SegmentMetadataEvent():
            out += bytes((0, event.version))
            _require_offsets(event)
            _write_segment_id(out, event.remote_log_segment_id, event.unknown_tags)
            _write_segment_fields(out, event)
        case SegmentUpdateEvent():
            out += bytes((1, event.version))
            _write_segment_update(out, event)
        case PartitionDeleteEvent():
            out += bytes((2, event.version))
            _write_partition_delete(out, event)
        case SegmentSnapshotEvent():
            out += bytes((3, event.version))
            _require_no_tags(event.unknown_tags.remote_log_segment_id, event.unknown_tags.topic_id_partition)
            out += uuid_bytes(event.segment_id)
            _write_segment_fields(out, event)
    return bytes(out)


def _read_segment(reader: FlexibleReader) -> SegmentMetadataEvent:
    segment_id, tags = _read_segment_id(reader)
    start = reader.position
    event = _read_segment_fields(reader, tags, partial(SegmentMetadataEvent, remote_log_segment_id=segment_id))
    if not 0 <= event.start_offset <= event.end_offset:
        found = f"{event.start_offset} to {event.end_offset}"
        raise reader.refusal("offsets of the segment are invalid", start, "0 <= start <= end", found)
    return event


def _read_snapshot(reader: FlexibleReader) -> SegmentSnapshotEvent:
    # Kafka's class checks no offsets here.
    make = partial(SegmentSnapshotEvent, segment_id=reader.read_uuid("segment id"))
    return _read_segment_fields(reader, NO_UNKNOWN_TAGS, make)


def _read_update(reader: FlexibleReader) -> SegmentUpdateEvent:
    segment_id, tags = _read_segment_id(reader)
    return SegmentUpdateEvent(
        remote_log_segment_id=segment_id,
        broker_id=reader.read_int(4, "broker id"),
        event_timestamp_ms=reader.read_int(8, "event timestamp"),
        custom_metadata=reader.read_nullable_bytes("custom metadata"),
        state=_read_state(reader, RemoteLogSegmentState),
        unknown_tags=replace(tags, event=reader.read_tagged_fields("event")),
    )


def _read_partition_delete(reader: FlexibleReader) -> PartitionDeleteEvent:
    topic_id_partition, partition_tags = _read_topic_id_partition(reader)
    return PartitionDeleteEvent(
        topic_id_partition=topic_id_partition,
        broker_id=reader.read_int(4, "broker id"),
        event_timestamp_ms=reader.read_int(8, "event timestamp"),
        state=_read_state(reader, RemotePartitionDeleteState),
        unknown_tags=UnknownTags(topic_id_partition=partition_tags, event=reader.read_tagged_fields("event")),
    )


_READERS: dict[int, Callable[[FlexibleReader], Event]] = {
    0: _read_segment,
    1: _read_update,
    2: _read_partition_delete,
    3: _read_snapshot,
}


def _read_topic_id_partition(reader: FlexibleReader) -> tuple[TopicIdPartition, TaggedFields]:
    topic = reader.read_string("topic")
    topic_id = reader.read_uuid("topic id")
    partition = reader.read_int(4, "partition")
    tags = reader.read_tagged_fields("topic-partition")
    return TopicIdPartition(topic=topic, topic_id=topic_id, partition=partition), tags


def _read_segment_id(reader: FlexibleReader) -> tuple[RemoteLogSegmentId, UnknownTags]:
    topic_id_partition, partition_tags = _read_topic_id_partition(reader)
    segment_id = reader.read_uuid("segment id")
    tags = UnknownTags(topic_id_partition=partition_tags, remote_log_segment_id=reader.read_tagged_fields("segment id"))
    return RemoteLogSegmentId(topic_id_partition=topic_id_partition, segment_id=segment_id), tags


def _read_segment_fields(
    reader: FlexibleReader, tags: UnknownTags, make: Callable[..., _SegmentEvent]
) -> _SegmentEvent:
    fields = {
        "start_offset": reader.read_int(8, "start offset"),
        "end_offset": reader.read_int(8, "end offset"),
        "broker_id": reader.read_int(4, "broker id"),
        "max_timestamp_ms": reader.read_int(8, "max timestamp"),
        "event_timestamp_ms": reader.read_int(8, "event timestamp"),
    }
    epochs, epoch_tags = _read_epochs(reader)
    size_bytes = reader.read_int(4, "segment size")
    custom_metadata = reader.read_nullable_bytes("custom metadata")
    state = _read_state(reader, RemoteLogSegmentState)
    txn_index_empty, event_tags = _read_segment_tags(reader)
    return make(
        **fields,
        segment_leader_epochs=epochs,
        size_bytes=size_bytes,
        custom_metadata=custom_metadata,
        state=state,
        txn_index_empty=txn_index_empty,
        unknown_tags=replace(tags, segment_leader_epochs=epoch_tags, event=event_tags),
    )


def _read_epochs(reader: FlexibleReader) -> tuple[tuple[tuple[int, int], ...], tuple[TaggedFields, ...]]:
    start = reader.position
    epochs: list[tuple[int, int]] = []
    tags: list[TaggedFields] = []
    for _ in range(reader.read_count("leader epochs")):
        epochs.append((reader.read_int(4, "leader epoch"), reader.read_int(8, "start offset of leader epoch")))
        tags.append(reader.read_tagged_fields("leader epoch"))
    if not epochs:
        raise reader.refusal("segment has no leader epoch", start, "at least 1", "0")
    return tuple(epochs), tuple(tags) if any(tags) else ()


def _read_state(reader: FlexibleReader, states: type[_State]) -> _State:
    start = reader.position
    found = reader.read_int(1, "state")
    try:
        return states(found)
    except ValueError as broken:
        raise reader.refusal("state is unknown", start, f"0 to {max(states)}", str(found)) from broken


def _read_segment_tags(reader: FlexibleReader) -> tuple[bool | None, TaggedFields]:
    start = reader.position
    tags = reader.read_tagged_fields("event")
    if not tags or tags[0][0] != _TXN_INDEX_EMPTY_TAG:
        return None, tags
    content = tags[0][1]
    if len(content) != 1:
        raise reader.refusal("txn index empty is not a boolean", start, "1 byte", f"{len(content)} bytes")
    return content != b"\x00", tags[1:]


def _require_tag_sizes(reader: FlexibleReader, event: Event, api_key: int) -> None:
    for tag, content in event.unknown_tags.event:
        wanted = _TAG_SIZES[api_key].get(tag, len(content))
        if len(content) != wanted:
            found = f"{len(content)} bytes"
            raise reader.refusal(f"tag {tag} of event has a wrong size", reader.position, f"{wanted} bytes", found)


def _write_topic_id_partition(out: bytearray, topic_id_partition: TopicIdPartition, tags: UnknownTags) -> None:
    write_string(out, topic_id_partition.topic)
    out += uuid_bytes(topic_id_partition.topic_id)
    write_int(out, topic_id_partition.partition, 4)
    write_tagged_fields(out, tags.topic_id_partition)


def _write_segment_id(out: bytearray, segment_id: RemoteLogSegmentId, tags: UnknownTags) -> None:
    _write_topic_id_partition(out, segment_id.topic_id_partition, tags)
    out += uuid_bytes(segment_id.segment_id)
    write_tagged_fields(out, tags.remote_log_segment_id)


def _write_segment_fields(out: bytearray, event: SegmentMetadataEvent | SegmentSnapshotEvent) -> None:
    write_int(out, event.start_offset, 8)
    write_int(out, event.end_offset, 8)
    write_int(out, event.broker_id, 4)
    write_int(out, event.max_timestamp_ms, 8)
    write_int(out, event.event_timestamp_ms, 8)
    _write_epochs(out, event)
    write_int(out, event.size_bytes, 4)
    write_nullable_bytes(out, event.custom_metadata)
    write_int(out, event.state, 1)
    known = () if event.txn_index_empty is None else ((_TXN_INDEX_EMPTY_TAG, bytes((event.txn_index_empty,))),)
    if event.unknown_tags.event and event.unknown_tags.event[0][0] == _TXN_INDEX_EMPTY_TAG:
        raise UsageError(f"tag {_TXN_INDEX_EMPTY_TAG} is txn_index_empty and cannot be written as an unknown tag")
    write_tagged_fields(out, known + event.unknown_tags.event)


def _write_epochs(out: bytearray, event: SegmentMetadataEvent | SegmentSnapshotEvent) -> None:
    epochs = event.segment_leader_epochs
    tags = event.unknown_tags.segment_leader_epochs or ((),) * len(epochs)
    if not epochs or len(tags) != len(epochs):
        raise UsageError(f"a segment of {len(epochs)} leader epochs with tags for {len(tags)} cannot be written")
    write_number(out, len(epochs) + 1)
    for (leader_epoch, start_offset), epoch_tags in zip(epochs, tags, strict=True):
        write_int(out, leader_epoch, 4)
        write_int(out, start_offset, 8)
        write_tagged_fields(out, epoch_tags)


def _write_segment_update(out: bytearray, event: SegmentUpdateEvent) -> None:
    _require_no_tags(*event.unknown_tags.segment_leader_epochs)
    _write_segment_id(out, event.remote_log_segment_id, event.unknown_tags)
    write_int(out, event.broker_id, 4)
    write_int(out, event.event_timestamp_ms, 8)
    write_nullable_bytes(out, event.custom_metadata)
    write_int(out, event.state, 1)
    write_tagged_fields(out, event.unknown_tags.event)


def _write_partition_delete(out: bytearray, event: PartitionDeleteEvent) -> None:
    _require_no_tags(event.unknown_tags.remote_log_segment_id, *event.unknown_tags.segment_leader_epochs)
    _write_topic_id_partition(out, event.topic_id_partition, event.unknown_tags)
    write_int(out, event.broker_id, 4)
    write_int(out, event.event_timestamp_ms, 8)
    write_int(out, event.state, 1)
    write_tagged_fields(out, event.unknown_tags.event)


def _require_offsets(event: SegmentMetadataEvent) -> None:
    if not 0 <= event.start_offset <= event.end_offset:
        raise UsageError(f"a segment from {event.start_offset} to {event.end_offset} cannot be written")


def _require_no_tags(*tags: TaggedFields) -> None:
    if any(tags):
        raise UsageError(f"tagged fields of a struct that the event does not have cannot be written: {tags}")
