"""Fold the events of the metadata topic into the segments of each partition and their states.

Events are applied in their order, by the rules of Kafka's RemoteLogMetadataCache (`announced_segments` applies the same
rules to a whole table of events). The first event of a segment must announce COPY_SEGMENT_STARTED. An update changes
only state, broker, event time and custom metadata. Other transitions are dropped and counted. A deleted segment stays
known, because a segment is copied only once; it may be announced again. When the deletion of a partition is finished,
all earlier events of it are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from coldlog.formats.kafka.remote_log.remote_log_events import (
    Event,
    PartitionDeleteEvent,
    SegmentMetadataEvent,
    SegmentSnapshotEvent,
    SegmentUpdateEvent,
)
from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """A segment as announced; `end_offset` is inclusive. `was_copied`: a copy of it was finished at some time.
    `started_ms`: the time at which its copy was announced."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    size_bytes: int
    leader_epochs: tuple[EpochStart, ...]
    state: RemoteLogSegmentState
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None = None
    txn_index_empty: bool | None = None
    was_copied: bool = False
    started_ms: int = 0

    @property
    def is_deleted(self) -> bool:
        """True if it is deleted, or its deletion has begun."""
        return self.state >= RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@dataclass(slots=True)
class RemoteSegments:
    """The segments of all partitions, from the events that were applied."""

    dropped_count: int = 0
    _segments: dict[TopicIdPartition, dict[str, RemoteSegment]] = field(default_factory=dict)
    _deletions: dict[TopicIdPartition, RemotePartitionDeleteState] = field(default_factory=dict)

    def of(self, partition: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        """Return the segments of a partition, also deleted ones, by start offset and segment id."""
        known = self._segments.get(partition, {}).values()
        return tuple(sorted(known, key=lambda each: (each.start_offset, each.segment_id.segment_id)))

    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """Return the partitions that have a segment."""
        return tuple(sorted(partition for partition, segments in self._segments.items() if segments))

    def current_topic_ids(self) -> dict[tuple[str, int], str]:
        """Return the topic id of each topic-partition: of a topic that was created again, the one that was copied
        last."""
        newest: dict[tuple[str, int], tuple[int, str]] = {}
        for partition, segments in self._segments.items():
            place = (partition.topic, partition.partition)
            started_ms = max((each.started_ms for each in segments.values()), default=-1)
            newest[place] = max(newest.get(place, (-1, "")), (started_ms, partition.topic_id))
        return {place: topic_id for place, (_, topic_id) in newest.items()}

    def apply(self, event: Event) -> bool:
        """Apply the next event; return False if it was dropped."""
        is_valid = self._apply(event)
        self.dropped_count += not is_valid
        return is_valid

    def _apply(self, event: Event) -> bool:
        match event:
            case SegmentMetadataEvent():
                return self._announce(event)
            case SegmentUpdateEvent():
                return self._update(event)
            case PartitionDeleteEvent():
                return self._delete_partition(event)
            case SegmentSnapshotEvent():
                # Snapshot files have these; they name no partition.
                return False

    def _announce(self, event: SegmentMetadataEvent) -> bool:
        segment_id = event.remote_log_segment_id
        segments = self._segments.setdefault(segment_id.topic_id_partition, {})
        known = segments.get(segment_id.segment_id)
        if event.state is not _STARTED or (known is not None and known.state not in (_STARTED, _DELETED)):
            return False
        segments[segment_id.segment_id] = RemoteSegment(
            segment_id=segment_id,
            start_offset=event.start_offset,
            end_offset=event.end_offset,
            max_timestamp_ms=event.max_timestamp_ms,
            size_bytes=event.size_bytes,
            leader_epochs=event.segment_leader_epochs,
            state=event.state,
            broker_id=event.broker_id,
            event_timestamp_ms=event.event_timestamp_ms,
            custom_metadata=event.custom_metadata,
            txn_index_empty=event.txn_index_empty,
            started_ms=event.event_timestamp_ms,
        )
        return True

    def _update(self, event: SegmentUpdateEvent) -> bool:
        segment_id = event.remote_log_segment_id
        segments = self._segments.get(segment_id.topic_id_partition, {})
        known = segments.get(segment_id.segment_id)
        is_valid = known is not None and event.state is not _STARTED and known.state is not _DELETED
        if known is None or not is_valid or not known.state.can_become(event.state):
            return False
        segments[segment_id.segment_id] = replace(
            known,
            state=event.state,
            broker_id=event.broker_id,
            event_timestamp_ms=event.event_timestamp_ms,
            custom_metadata=event.custom_metadata,
            was_copied=known.was_copied or event.state is _FINISHED,
        )
        return True

    def _delete_partition(self, event: PartitionDeleteEvent) -> bool:
        partition, marked = event.topic_id_partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        finished = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        known = self._deletions.get(partition)
        is_first = event.state is marked and known in (None, finished)
        if not is_first and (known is None or not known.can_become(event.state)):
            return False
        self._deletions[partition] = event.state
        if event.state is finished:
            self._segments.pop(partition, None)
        return True


def join_lineage(checkpoint: Sequence[EpochStart], finished: Iterable[RemoteSegment]) -> tuple[EpochStart, ...]:
    """Put what finished segments say about older leaders before the checkpoint of a log directory.

    A broker without tiered storage cuts its checkpoint at the log start of its own retention. The tier's log begins
    with its first segment.

    Before an epoch, all logs that have it are the same. So the epoch before it in any segment is the one before it in
    the lineage. If no segment has both, the epoch begins with a segment, and the one before it has a segment that ends
    there. Of several such epochs, and if there is none, the latest is taken that begins at a lower offset.
    """
    starts: dict[int, int] = {}
    ends: set[EpochStart] = set()
    previous: dict[int, int] = {}
    for segment in finished:
        epochs = sorted(segment.leader_epochs)
        for (epoch, offset), (_, end) in zip(epochs, [*epochs[1:], (-1, segment.end_offset + 1)], strict=True):
            starts[epoch] = min(offset, starts.get(epoch, offset))
            ends.add((epoch, end))
        previous.update((after[0], before[0]) for before, after in pairwise(epochs))
    joined = sorted(checkpoint) or [(epoch, starts[epoch]) for epoch in sorted(starts)[-1:]]
    if joined:
        # A broker raises the start of its first epoch along with its log start.
        epoch, offset = joined[0]
        joined[0] = epoch, min(offset, starts.get(epoch, offset))
    while joined:
        first_epoch, first_offset = joined[0]
        older = [epoch for epoch, offset in starts.items() if epoch < first_epoch and offset < first_offset]
        latest = max(older, key=lambda epoch: ((epoch, first_offset) in ends, epoch), default=None)
        before = previous.get(first_epoch, latest)
        if before is None:
            break
        joined.insert(0, (before, starts[before]))
    return tuple(joined)
