"""Define the states of remote log segments and partitions, and the depth and status of an index.

Segment and partition states have Kafka's ids (org.apache.kafka.server.log.remote.storage: RemoteLogSegmentState,
RemotePartitionDeleteState).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class RemoteLogSegmentState(IntEnum):
    """Kafka's states of a remote segment."""

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
    """Kafka's states of the deletion of a tiered partition."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2

    def can_become(self, target: RemotePartitionDeleteState) -> bool:
        """Kafka's valid transitions, one step at a time; a state may be announced again."""
        return target - self in (0, 1)


class IsolationLevel(StrEnum):
    """Kafka's isolation levels: read_committed hides records of aborted and of open transactions."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class OnGap(StrEnum):
    """What a lookup does if offsets that no segment serves may hold an earlier match."""

    ANSWER = "answer"
    REFUSE = "refuse"


class CommittedOffsets(StrEnum):
    """Where `coldlog serve` keeps what consumer groups commit."""

    TABLE = "table"
    MEMORY = "memory"


class ServeOnGap(StrEnum):
    """What a Kafka client gets at offsets that no segment serves: an error, or the records after them."""

    ERROR = "error"
    SKIP = "skip"


class DriverJvm(StrEnum):
    """How the JVM of Spark's driver starts; `auto` decides by master and job."""

    AUTO = "auto"
    SMALL = "small"
    DEFAULT = "default"


class LookupEngine(StrEnum):
    """Who answers the requests of a job; `auto`: this process up to 100,000 requests, Spark more than that."""

    AUTO = "auto"
    SPARK = "spark"


class IndexDepth(StrEnum):
    """`sidecar`: the files beside a log, and no byte of it; `batch`: only headers and checksums; `record`: also the
    records' timestamps, so that lookups need no archive."""

    SIDECAR = "sidecar"
    BATCH = "batch"
    RECORD = "record"


class IndexStatus(StrEnum):
    """The state of coldlog's index of a segment; the `index_status` column of `segments`."""

    PENDING = "pending"
    INDEXED = "indexed"
    QUARANTINED = "quarantined"
    INCOMPLETE = "incomplete"
    GONE = "gone"
    ORPHAN = "orphan"
