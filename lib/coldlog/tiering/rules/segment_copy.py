"""Copy a segment into an archive, or delete it from there, in durable steps.

    copy     event COPY_SEGMENT_STARTED, objects, event COPY_SEGMENT_FINISHED
    delete   event DELETE_SEGMENT_STARTED, objects, event DELETE_SEGMENT_FINISHED

Each step is durable before the next one begins, and each copy has a new id. So a run that is killed anywhere leaves at
most a STARTED segment. No reader of the events sees it, and it is deleted before the segment is copied again.

If the objects cannot be put, the copy is deleted at once, as in Kafka (KAFKA-17428). If FINISHED cannot be announced,
the copy is left alone: the event may have been written although the answer was lost, and then the copy counts.

An empty .txnindex is not put. Kafka's own storage does not need it either, and `txn_index_empty` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from crc32c import crc32c

from coldlog.archive.layouts.layout import SegmentFileKind
from coldlog.archive.layouts.local_tiered_storage import list_segment_objects, name_object
from coldlog.archive.stores.object_writer import Content, WritableStore
from coldlog.errors import ArchiveError, ColdlogError, Reason
from coldlog.formats.kafka.remote_log.remote_log_events import Event, SegmentMetadataEvent, SegmentUpdateEvent
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.byte_limiter import ByteLimiter
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.remote_segments import RemoteSegment
from coldlog.tiering.rules.source_segment import SourceSegment

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class EventLog(Protocol):
    """The log that receives the events."""

    def append(self, event: Event) -> object:
        """Append the event. On return it is durable, after all earlier ones. After a `RetriableError` it is unknown
        whether it was written."""


def _nothing(_: TopicIdPartition) -> None:
    """Accept: a job that copies alone needs no lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCopier:
    """Copies and deletes segments of one archive; threads share it. `new_id` returns a Kafka uuid."""

    archive: WritableStore
    events: EventLog
    clock: Clock
    new_id: Callable[[], str]
    broker_id: int
    limiter: ByteLimiter | None = None
    require: Callable[[TopicIdPartition], None] = _nothing
    """Called before each durable step; raises if another run may hold the partition."""

    def copy(self, source: SourceSegment) -> RemoteLogSegmentId:
        """Copy the segment and announce it; return its new id. The log decides whether the FINISHED event counts."""
        segment_id = RemoteLogSegmentId(topic_id_partition=source.partition, segment_id=self.new_id())
        self.require(source.partition)
        self.events.append(self._started(segment_id, source))
        try:
            self._put_files(segment_id, source)
        except ColdlogError as failed:
            self._undo(segment_id, source.start_offset, failed)
            raise
        self._announce(segment_id, _FINISHED)
        # A run that was suspended after its lease ended must not count the copy as finished.
        self.require(source.partition)
        return segment_id

    def delete(self, segment: RemoteSegment) -> None:
        """Delete the segment and announce it. If the deletion has begun already, it continues and is not announced
        again, so that retries during an outage do not fill the log."""
        if segment.state is not _DELETING:
            self._announce(segment.segment_id, _DELETING, segment.custom_metadata)
        self._delete_objects(segment.segment_id, segment.start_offset, segment.custom_metadata)

    def _started(self, segment_id: RemoteLogSegmentId, source: SourceSegment) -> SegmentMetadataEvent:
        return SegmentMetadataEvent(
            remote_log_segment_id=segment_id,
            start_offset=source.start_offset,
            end_offset=source.end_offset,
            broker_id=self.broker_id,
            max_timestamp_ms=source.max_timestamp_ms,
            event_timestamp_ms=self.clock.now_ms(),
            segment_leader_epochs=source.leader_epochs,
            size_bytes=source.size_bytes,
            custom_metadata=None,
            state=_STARTED,
            # Kafka omits the field if it is false.
            txn_index_empty=True if source.txn_index_empty else None,
        )

    def _put_files(self, segment_id: RemoteLogSegmentId, source: SourceSegment) -> None:
        for kind, content in source.files.items():
            name = name_object(segment_id, source.start_offset, kind)
            self.require(source.partition)
            if kind is SegmentFileKind.LOG:
                verified = _VerifiedLog(
                    content=content,
                    crc=source.log_crc,
                    limiter=self.limiter,
                    require=lambda: self.require(source.partition),
                )
                self.archive.put(name, verified)
            elif content.size_bytes or kind is not SegmentFileKind.TXN_INDEX:
                self.archive.put(name, content)

    def _undo(self, segment_id: RemoteLogSegmentId, start_offset: int, failed: ColdlogError) -> None:
        try:
            self._announce(segment_id, _DELETING)
            self._delete_objects(segment_id, start_offset, None)
        except ColdlogError as also_failed:
            failed.add_note(
                f"the next run deletes the incomplete copy of segment {segment_id.segment_id}: {also_failed}"
            )

    def _delete_objects(self, segment_id: RemoteLogSegmentId, start_offset: int, custom_metadata: bytes | None) -> None:
        for name in list_segment_objects(self.archive, segment_id, start_offset):
            self.require(segment_id.topic_id_partition)
            self.archive.delete(name)
        self._announce(segment_id, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, custom_metadata)

    def _announce(
        self, segment_id: RemoteLogSegmentId, state: RemoteLogSegmentState, custom_metadata: bytes | None = None
    ) -> None:
        self.require(segment_id.topic_id_partition)
        self.events.append(
            SegmentUpdateEvent(
                remote_log_segment_id=segment_id,
                broker_id=self.broker_id,
                event_timestamp_ms=self.clock.now_ms(),
                custom_metadata=custom_metadata,
                state=state,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _VerifiedLog:
    """The log's bytes at the limiter's pace; refused at the end if they are not the verified ones."""

    content: Content
    crc: int
    limiter: ByteLimiter | None
    require: Callable[[], None]

    @property
    def size_bytes(self) -> int:
        return self.content.size_bytes

    def iter_pieces(self) -> Iterator[memoryview]:
        crc = 0
        for piece in self.content.iter_pieces():
            self.require()
            if self.limiter is not None:
                self.limiter.wait_for(len(piece))
            crc = crc32c(piece, crc)
            yield piece
        if crc != self.crc:
            raise ArchiveError(
                Reason.OBJECT_UNREADABLE,
                "log changed between its verification and its copy",
                expected=f"crc {self.crc:#010x}",
                found=f"crc {crc:#010x}",
            )
