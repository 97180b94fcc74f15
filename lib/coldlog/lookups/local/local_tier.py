"""Define what lookups need of the part of a log that is not archived yet.

This is the port between lookups and the records that a broker still holds itself. There are three kinds: none, a
broker's log directory (`log_directory_tier`) and a live broker (`live_broker_tier`). The caller applies isolation,
fencing, special timestamps and routing. A tier only says where its log begins and ends, and which record is the first
at or after a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from coldlog.lookups.local.local_batches import LocalBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOffset:
    """A record. `leader_epoch` is that of its batch, -1 if the batch has none. `is_exact` is false if offsets that no
    segment serves may hold an earlier match; None: not known. Two records are equal whether they are exact or not."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    is_exact: bool | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLogState:
    """Where one partition's log begins and ends; ends are exclusive.

    `leader_epoch` is the current leader's, -1 if unknown. `highest_tiered_offset` is inclusive: -1 if nothing is
    tiered, None if the tier does not know. `earliest_pending_offset` is the first offset still to be tiered: -1 if
    there is none, None if the tier does not know. `topic_id` is in Kafka's text form, None if unknown; it changes if a
    topic is deleted and created again.
    """

    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    highest_tiered_offset: int | None = None
    earliest_pending_offset: int | None = None
    topic_id: str | None = None


class LocalTier(Protocol):
    """A local tier. Can be pickled; each process opens its own files and connections.

    All methods raise `RetriableError` if a broker or disk does not answer, `ArchiveError` for damaged bytes, and
    `UsageError` if the tier does not exist; `NotAuthorizedError` is about one topic, `NotSupportedError` about one
    question.
    """

    @property
    def covers_archive(self) -> bool:
        """True if `find_offset` also knows the archived part of the log, as a broker does."""

    def until(self, deadline: float | None) -> LocalTier:
        """Return the same tier, whose questions give a broker the time until the deadline, in seconds of time.time().

        Questions of any other tier, and without a deadline, are as long as the tier's own settings allow.
        """

    def read_state(self, topic: str, partition: int) -> LocalLogState | None:
        """Return the state as it is now; None if the tier does not have the partition."""

    def find_offset(
        self, topic: str, partition: int, timestamp_ms: int, from_offset: int, *, broker_compatible: bool = False
    ) -> FoundOffset | None:
        """Return the lowest offset from `from_offset` on whose record is at or after `timestamp_ms`, decided or not.

        `broker_compatible`: search only the segment that a broker searches.
        """

    def find_max_timestamp(self, topic: str, partition: int) -> FoundOffset | None:
        """Return the local record with the largest timestamp, the lowest offset on ties."""

    def leader_epoch_at(self, topic: str, partition: int, offset: int) -> int:
        """Return the epoch of the leader that wrote, or would write, at `offset`; -1 if unknown."""

    def close(self) -> None:
        """Close files, and the connections of this thread."""


class LocalLog(LocalTier, Protocol):
    """A local tier whose records can be read."""

    def until(self, deadline: float | None) -> LocalLog:
        """As `LocalTier.until`."""

    def read_batches(
        self, topic: str, partition: int, offset: int, max_bytes: int, *, is_committed: bool = False
    ) -> LocalBatches | None:
        """Return whole batches from the first that ends at or after `offset` on, at most `max_bytes` but at least one;
        None if there is none. `is_committed`: the aborted transactions are asked for too."""

    def close_all(self) -> None:
        """Close files, and the connections of all threads, which must not ask any more."""
