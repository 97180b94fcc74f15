"""states: how far is a remote log segment, and how deep is its index?

Segment and partition states carry Kafka's ids (org.apache.kafka.server.log.remote.storage: RemoteLogSegmentState,
RemotePartitionDeleteState).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class RemoteLogSegmentState(IntEnum):
    """Kafka's life of a remote segment."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3

    def can_become(self, target: RemoteLogSegmentState) -> bool:
        """Kafka's valid transitions; a state may be announced again."""
        return target == self or target in _NEXT_STATES[self]


_NEXT_STATES: dict[RemoteLogSegmentState, tuple[RemoteLogSegmentState, ...]] = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: (
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    ),
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: (RemoteLogSegmentState.DELETE_SEGMENT_STARTED,),
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: (RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,),
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: (),
}


class RemotePartitionDeleteState(IntEnum):
    """Kafka's end of a tiered partition."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2

    def can_become(self, target: RemotePartitionDeleteState) -> bool:
        """Kafka's valid transitions, one step at a time; a state may be announced again."""
        return target - self in (0, 1)


class IsolationLevel(StrEnum):
    """Kafka's: does a reader see records of transactions that were aborted or are not decided yet?"""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class IndexDepth(StrEnum):
    """`batch`: headers and checksums only; `record`: the records' timestamps too, so that lookups read no archive."""

    BATCH = "batch"
    RECORD = "record"


class IndexStatus(StrEnum):
    """What coldlog has made of a listed segment; the `index_status` column of `segments`."""

    PENDING = "pending"
    INDEXED = "indexed"
    QUARANTINED = "quarantined"
    INCOMPLETE = "incomplete"
    GONE = "gone"
    ORPHAN = "orphan"
