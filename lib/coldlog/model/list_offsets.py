"""Define the special timestamps, error codes and routes of ListOffsets.

Numbers and names are Kafka's (ListOffsetsRequest and Errors of 4.2). coldlog's own error codes are higher than Kafka's.
LOCAL_REQUIRED and OPEN_TRANSACTION mean that the archive alone cannot give the answer. NOT_DECODED means that the
tables alone cannot: the answer is in a batch or interval whose records were not indexed. lookup_offsets reads it and
answers.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

OLDEST_VERSION = 1
"""The oldest version of ListOffsetsRequest; Kafka 4.0 removed version 0."""

NEWEST_VERSION = 11
"""The newest version of ListOffsetsRequest; the default of a request without a version."""

UNKNOWN_EPOCH = -1
"""As current leader epoch of a request: do not fence. As leader epoch of an answer: the batch has none."""

DEFAULT_TIMEOUT = -1
"""As timeout of a request: use the setting's."""


class SpecialTimestamp(IntEnum):
    """Timestamps with a special meaning."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6

    @property
    def since_version(self) -> int:
        """The first version of ListOffsetsRequest with this timestamp."""
        return _SINCE_VERSION[self]


_SINCE_VERSION = {
    SpecialTimestamp.LATEST: 1,
    SpecialTimestamp.EARLIEST: 1,
    SpecialTimestamp.MAX_TIMESTAMP: 7,
    SpecialTimestamp.EARLIEST_LOCAL: 8,
    SpecialTimestamp.LATEST_TIERED: 9,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}

TIMEOUT_SINCE_VERSION = 10
"""A request of an earlier version has no timeout."""

ISOLATION_LEVEL_SINCE_VERSION = 2
"""A request of an earlier version has no isolation level: it is read_uncommitted."""

LEADER_EPOCH_SINCE_VERSION = 4
"""A request or answer of an earlier version has no leader epoch."""


class ErrorCode(IntEnum):
    """Kafka's error codes; codes from 10,000 on are coldlog's."""

    NONE = 0
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    LOCAL_REQUIRED = 10_001
    OPEN_TRANSACTION = 10_002
    STALE_INDEX = 10_003
    NOT_DECODED = 10_004
    ARCHIVE_INCOMPLETE = 10_005

    @property
    def meaning(self) -> str:
        """What it means, and what to do."""
        return _MEANING[self]


_MEANING = {
    ErrorCode.NONE: "the request is answered",
    ErrorCode.CORRUPT_MESSAGE: "the batch that holds the answer is damaged, in the archive or in the log directory; "
    "damage in the archive is reported, and the next run of run_pipeline reads that log completely; or the log was "
    "deleted or replaced in the archive since the last run: run the pipeline, then ask again",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "neither the archive nor the local tier has the partition",
    ErrorCode.REQUEST_TIMED_OUT: "there was no answer before the deadline, or a broker answered that; "
    "the job list_offsets counts it in `coldlog.list_offsets_expirations`; ask again, or set a longer timeout",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the brokers do not allow this user to describe the topic",
    ErrorCode.UNSUPPORTED_VERSION: "the version is not in 1 to 11, or neither that version nor the brokers know the "
    "special timestamp, or the timestamp is NULL",
    ErrorCode.INVALID_REQUEST: "the request names the partition twice, or the isolation level does not exist",
    ErrorCode.KAFKA_STORAGE_ERROR: "the archive or the local tier could not be read; ask again",
    ErrorCode.FENCED_LEADER_EPOCH: "`current_leader_epoch` is lower than the newest leader epoch of the partition",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "`current_leader_epoch` is higher than every known leader epoch",
    ErrorCode.LOCAL_REQUIRED: "the archive alone cannot know the answer; search on from `local_start_offset`, or name "
    "a local tier",
    ErrorCode.OPEN_TRANSACTION: "read_committed: the answer is at or after the start of a transaction that is open at "
    "the end of the archive",
    ErrorCode.STALE_INDEX: "segments were archived after the last run and the broker no longer has them; run the "
    "pipeline, then ask again",
    ErrorCode.NOT_DECODED: "in SQL: the answer is in a segment that was indexed at batch or sidecar depth; the jobs "
    "and `OffsetReader` with an archive read that part of its log. MAX_TIMESTAMP at sidecar depth: no record has the "
    "largest timestamp of Kafka's time index",
    ErrorCode.ARCHIVE_INCOMPLETE: "offsets from `passed_over_from_offset` on may hold an earlier record, and no "
    "segment serves them; see `coldlog.archive_problems`, or set `lookup.on_gap=answer`",
}


class Route(StrEnum):
    """Where an answer was looked up."""

    METADATA = "metadata"
    REMOTE_THEN_LOCAL = "remote_then_local"
    LOCAL_ONLY = "local_only"
