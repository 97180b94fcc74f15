"""Compute the expected state of segments by applying one event at a time.

For complete events, `MetadataCache` is Kafka's RemoteLogMetadataCache of one partition, with its part of
RemotePartitionMetadataStore. For incomplete events it also has the rules of `announced_segments`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coldlog.formats.kafka.remote_log.remote_log_events import (
    Event,
    PartitionDeleteEvent,
    SegmentMetadataEvent,
    SegmentUpdateEvent,
)
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
MARKED, PARTITION_STARTED, PARTITION_FINISHED = RemotePartitionDeleteState

_KAFKAS = {
    (STARTED, FINISHED), (FINISHED, FINISHED), (STARTED, DELETING), (FINISHED, DELETING), (DELETING, DELETING),
    (DELETING, DELETED),
}  # fmt: skip
_OVER_A_HOLE = {
    (None, FINISHED), (None, DELETING), (None, DELETED), (STARTED, DELETED), (FINISHED, DELETED), (DELETING, DELETED),
}  # fmt: skip


@dataclass
class Known:
    """A segment in a broker's cache, and what coldlog keeps in addition. `first` is an update if the first event is
    missing."""

    first: SegmentMetadataEvent | SegmentUpdateEvent | None = None
    last: SegmentMetadataEvent | SegmentUpdateEvent | None = None
    state: RemoteLogSegmentState | None = None
    was_copied: bool = False
    dropped: int = 0

    @property
    def is_placed(self) -> bool:
        """The segment's offsets are known."""
        return isinstance(self.first, SegmentMetadataEvent)


@dataclass
class MetadataCache:
    """`in_cache` is Kafka's idToSegmentMetadata: segments in DELETE_SEGMENT_FINISHED are removed from it, and all
    segments when the partition's deletion has finished. `remembered` is never removed."""

    is_complete: bool = True
    in_cache: dict[str, Known] = field(default_factory=dict)
    remembered: dict[str, Known] = field(default_factory=dict)
    delete_state: RemotePartitionDeleteState | None = None
    dropped_deletes: int = 0
    is_deletion_named: bool = False

    def take(self, event: Event) -> None:
        """Apply the next event."""
        if isinstance(event, PartitionDeleteEvent):
            self._take_delete(event.state)
            return
        assert isinstance(event, SegmentMetadataEvent | SegmentUpdateEvent)
        segment_id = event.remote_log_segment_id.segment_id
        known = self.remembered.setdefault(segment_id, Known())
        is_taken = self._add(known, event) if isinstance(event, SegmentMetadataEvent) else self._update(known, event)
        known.dropped += not is_taken

    def take_tombstone(self, segment_id: str) -> None:
        """Apply a tombstone that names a segment."""
        known = self.in_cache.pop(segment_id, None)
        if known is not None:
            known.state = DELETED

    def _add(self, known: Known, event: SegmentMetadataEvent) -> bool:
        """addCopyInProgressSegment."""
        if event.state != STARTED:  # IllegalArgumentException
            return self._bridge(known, event)
        cached = self.in_cache.get(event.remote_log_segment_id.segment_id)
        if cached is not None and cached.state != STARTED and cached.is_placed:
            return False
        known.first, known.was_copied = event, False
        self._set(known, event)
        return True

    def _update(self, known: Known, event: SegmentUpdateEvent) -> bool:
        """updateRemoteLogSegmentMetadata."""
        # Kafka raises RemoteResourceNotFoundException outside the cache, IllegalArgumentException for STARTED again.
        is_cached = event.remote_log_segment_id.segment_id in self.in_cache
        if not is_cached or (known.state, event.state) not in _KAFKAS:
            return self._bridge(known, event)
        self._set(known, event)
        return True

    def _bridge(self, known: Known, event: SegmentMetadataEvent | SegmentUpdateEvent) -> bool:
        """The possible states between two events."""
        if self.is_complete or (known.state, event.state) not in _OVER_A_HOLE:
            return False
        if known.state is None or isinstance(event, SegmentMetadataEvent):
            known.first, known.was_copied = event, False
        self._set(known, event)
        return True

    def _set(self, known: Known, event: SegmentMetadataEvent | SegmentUpdateEvent) -> None:
        segment_id = event.remote_log_segment_id.segment_id
        known.last, known.state = event, event.state
        known.was_copied = known.was_copied or event.state == FINISHED
        self.in_cache[segment_id] = known
        if event.state == DELETED:
            del self.in_cache[segment_id]

    def _take_delete(self, state: RemotePartitionDeleteState) -> None:
        self.is_deletion_named = True
        before = self.delete_state
        if before is None or (before == PARTITION_FINISHED and state != PARTITION_FINISHED):
            is_valid = state == MARKED
        else:
            is_valid = state - before in (0, 1)
        over_a_hole = before is None or (before, state) == (MARKED, PARTITION_FINISHED)
        if not is_valid and (self.is_complete or not over_a_hole):
            self.dropped_deletes += 1
            return
        self.delete_state = state
        if state == PARTITION_FINISHED:
            for known in self.in_cache.values():
                known.state = DELETED
            self.in_cache.clear()
