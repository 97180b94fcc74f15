"""Write the events that a broker would have written for the archives of `archive_writer`.

Events of written segments, and the topic's log with one event per batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builders.archive_writer import WrittenSegment
from builders.segment_builder import Batch, Record, build_segment, uuid_text_of
from builders.side_files import extend_lineage
from coldlog.formats.kafka.remote_log.remote_log_events import (
    Event,
    PartitionDeleteEvent,
    SegmentMetadataEvent,
    SegmentUpdateEvent,
)
from coldlog.formats.kafka.remote_log.remote_log_metadata import encode_event
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def partition_of(written: WrittenSegment) -> TopicIdPartition:
    """The partition as a TopicIdPartition."""
    where = written.topic_partition
    topic_id = where.topic_id or uuid_text_of(where.topic)
    return TopicIdPartition(topic=where.topic, partition=where.partition, topic_id=topic_id)


def started(
    written: WrittenSegment,
    *,
    size_bytes: int | None = None,
    leader_epochs: Sequence[tuple[int, int]] = (),
    txn_index_empty: bool | None = True,
) -> SegmentMetadataEvent:
    """The first event of a segment; epochs and size are the segment's unless they are given."""
    segment = written.segment
    epochs = leader_epochs or extend_lineage([], segment.batches)
    return SegmentMetadataEvent(
        remote_log_segment_id=_id_of(written),
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        broker_id=1,
        max_timestamp_ms=segment.metadata_max_timestamp_ms,
        event_timestamp_ms=0,
        segment_leader_epochs=tuple(epochs),
        size_bytes=len(build_segment(segment.batches)) if size_bytes is None else size_bytes,
        custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        txn_index_empty=txn_index_empty,
    )


def became(written: WrittenSegment, *states: RemoteLogSegmentState) -> list[Event]:
    """The updates of a segment."""
    return [
        SegmentUpdateEvent(
            remote_log_segment_id=_id_of(written), broker_id=1, event_timestamp_ms=0, custom_metadata=None, state=state
        )
        for state in states
    ]


def finished(*segments: WrittenSegment) -> list[Event]:
    """Both events of each segment's copy."""
    return [event for written in segments for event in (started(written), *became(written, FINISHED))]


def partition_deleted(partition: TopicIdPartition, *states: RemotePartitionDeleteState) -> list[Event]:
    """Events of the partition's deletion."""
    return [
        PartitionDeleteEvent(topic_id_partition=partition, broker_id=1, event_timestamp_ms=0, state=state)
        for state in states
    ]


def _id_of(written: WrittenSegment) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(topic_id_partition=partition_of(written), segment_id=written.segment_id)


def values_of(events: Sequence[Event]) -> list[bytes | None]:
    """The values of the events' records."""
    return [encode_event(event) for event in events]


def write_topic(directory: Path, values: Mapping[int, Sequence[bytes | None]]) -> Path:
    """Write the topic's log: one directory per partition, offsets from 0 on, one segment; replaces an existing log."""
    for partition, in_order in values.items():
        folder = directory / f"__remote_log_metadata-{partition}"
        folder.mkdir(parents=True, exist_ok=True)
        batches = [
            Batch(base_offset=offset, records=(Record(timestamp_ms=1_000 + offset, value=value),))
            for offset, value in enumerate(in_order)
        ]
        (folder / f"{0:020d}.log").write_bytes(build_segment(batches))
    return directory
