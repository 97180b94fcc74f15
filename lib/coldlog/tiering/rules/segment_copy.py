"""segment_copy: in which steps does a segment come into an archive, or leave it?

    copy     event COPY_SEGMENT_STARTED, objects, event COPY_SEGMENT_FINISHED
    delete   event DELETE_SEGMENT_STARTED, objects, event DELETE_SEGMENT_FINISHED

Each step is durable before the next one begins, and each copy has a new id. So whoever is killed anywhere leaves at
most a segment that is STARTED, which no reader of the events sees, and which is deleted before it is copied again.

A copy whose objects cannot be put is deleted at once, as Kafka does (KAFKA-17428). One whose FINISHED cannot be
announced is left alone: the event may have been written although the answer was lost, and then the copy counts.

An empty .txnindex is not put: Kafka's own storage does without it as well, and `txn_index_empty` says so.
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
from coldlog.formats.kafka.remote_log_events import Event, SegmentMetadataEvent, SegmentUpdateEvent
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
    """Where events are announced."""

    def append(self, event: Event) -> object:
        """The event is durable, and behind all before it, when this returns. A `RetriableError` leaves open whether it
        was written."""


def _nothing(_: TopicIdPartition) -> None:
    """Whoever copies alone needs no lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCopier:
    """Copies and deletes segments of one archive; for all threads of a process. `new_id` gives a Kafka uuid."""

    archive: WritableStore
    events: EventLog
    clock: Clock
    new_id: Callable[[], str]
    broker_id: int
    limiter: ByteLimiter | None = None
    require: Callable[[TopicIdPartition], None] = _nothing
    """Asked before each durable step: raises where the partition is no longer ours."""

    def copy(self, source: SourceSegment) -> RemoteLogSegmentId:
        """The segment, of that id, is in the archive, and announced, when this returns; whether the event counts is
        told by the log."""
        segment_id = RemoteLogSegmentId(topic_id_partition=source.partition, segment_id=self.new_id())
        self.require(source.partition)
        self.events.append(self._started(segment_id, source))
        try:
            self._put_files(segment_id, source)
        except ColdlogError as failed:
            self._undo(segment_id, source.start_offset, failed)
            raise
        self._announce(segment_id, _FINISHED)
        # Whoever slept over the end of the lease before that event has announced nothing.
        self.require(source.partition)
        return segment_id

    def delete(self, segment: RemoteSegment) -> None:
        """The segment is gone, and announced so, when this returns; a deletion that was begun is gone on with, and not
        announced again at each retry of an outage."""
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
            # Kafka leaves false out.
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
                f"what was copied of segment {segment_id.segment_id} is deleted by the next run: {also_failed}"
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
    """The log's bytes, refused at their end if they are not those that were verified; at the limiter's pace."""

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
