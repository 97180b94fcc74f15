"""Define the request and the answers of a fetch of records.

As in Kafka's Fetch of one partition. Numbers and names of errors are Kafka's (Errors of 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from coldlog.errors import UsageError
from coldlog.model.arguments import check_partition, whole_number
from coldlog.model.states import IsolationLevel
from coldlog.model.transactions import AbortedTransaction

DEFAULT_MAX_BYTES = 1 << 20
"""A consumer's default max.partition.fetch.bytes."""
DEFAULT_TIMEOUT_MS = 30_000
"""A consumer's default request.timeout.ms."""
DEFAULT_MAX_WAIT_MS = 500
"""A consumer's default fetch.max.wait.ms."""


class TimestampType(StrEnum):
    """Who set a record's timestamp: the producer or the broker."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class FetchErrorCode(IntEnum):
    """Kafka's error codes for a fetch."""

    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    THROTTLING_QUOTA_EXCEEDED = 89

    @property
    def meaning(self) -> str:
        """When a fetch gets it."""
        return _MEANING[self]


_MEANING = {
    FetchErrorCode.UNKNOWN_SERVER_ERROR: "only a pool: too many fetches wait, or the pool is closed",
    FetchErrorCode.OFFSET_OUT_OF_RANGE: "the offset is below the log start, after the end of the archive, or in no "
    "served segment; with read_committed also in a transaction that may have ended in a missing segment; the valid "
    "range is in `ends`",
    FetchErrorCode.CORRUPT_MESSAGE: "the batch is damaged, its object may not be read, or its segment is in "
    "quarantine; the message names segment, object and byte; or the archive has lost the end of the log",
    FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the archive does not have the partition",
    FetchErrorCode.REQUEST_TIMED_OUT: "the archive, the store or a table did not answer in time",
    FetchErrorCode.THROTTLING_QUOTA_EXCEEDED: "only a pool: the read quota allows the fetch too late; `throttle_ms` "
    "says how long to wait",
}


_RANGES = (
    ("partition", -(2**31), 2**31),
    ("offset", -(2**63), 2**63),
    ("max_bytes", 0, 2**63),
    ("timeout_ms", 0, 2**31),
)
"""Kafka's types: int32, int64, and a timeout of at most 24 days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A request for records of a partition from `offset` on: as many whole batches as fit into `max_bytes`, at least
    one.

    Integers of any type and the isolation level's text are accepted; anything else is a `UsageError`.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int = DEFAULT_MAX_BYTES
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    timeout_ms: int = DEFAULT_TIMEOUT_MS

    def __post_init__(self) -> None:
        check_partition(self.topic, self.partition)
        for name, least, limit in _RANGES:
            object.__setattr__(self, name, whole_number(f"{name} of a fetch", getattr(self, name), least, limit))
        try:
            object.__setattr__(self, "isolation_level", IsolationLevel(self.isolation_level))
        except ValueError as unfit:
            levels = " or ".join(level.value for level in IsolationLevel)
            raise UsageError(f"isolation_level of a fetch is {self.isolation_level!r}: expected {levels}") from unfit

    @property
    def is_committed(self) -> bool:
        """Records of aborted and of open transactions are not returned."""
        return self.isolation_level is IsolationLevel.READ_COMMITTED

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecord:
    """A record as a consumer gets it; `key`, `value` and a header's value may be None, which differs from empty.

    In header names, bytes that are not UTF-8 become U+FFFD, as in Kafka's consumer.
    """

    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnds:
    """The first offset and the ends of a partition in the archive; ends are exclusive.

    `end_offset` corresponds to a log's high watermark: no offset from it on is archived. From `last_stable_offset` on,
    which is at most `end_offset`, transactions are open. `topic_id` differs if the topic was created again; empty: it
    is unknown.
    """

    log_start_offset: int
    end_offset: int
    last_stable_offset: int
    topic_id: str = field(default="", compare=False)

    def readable_end(self, *, is_committed: bool) -> int:
        """The first offset that a reader with this isolation level does not get."""
        return self.last_stable_offset if is_committed else self.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """The records of a fetch. The next fetch must request `next_offset`, which may be higher than the offset after the
    last record: markers, aborted records and offsets that compaction removed are skipped. If there are no records and
    `next_offset` is the requested offset, the reader is at the end.

    `read_bytes` is the number of bytes read from logs. `aborted_transactions` are those that overlap the batches that
    were read, by first offset, as in Kafka's FetchDataInfo; their records are not in `records`. It is empty for readers
    of all records.
    """

    records: tuple[FetchedRecord, ...]
    next_offset: int
    ends: PartitionEnds
    read_bytes: int
    aborted_transactions: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailure:
    """The error of a fetch; `ends` is set if the partition is known.

    `resume_offset` is the first offset after the unreadable part, if known; continuing there skips the records before
    it. `throttle_ms`: a fetch before this time has passed is refused again.
    """

    error: FetchErrorCode
    message: str
    ends: PartitionEnds | None = None
    resume_offset: int | None = None
    throttle_ms: int = 0

    def __str__(self) -> str:
        return f"{self.error.name}: {self.message}"


FetchAnswer = FetchedRecords | FetchFailure
