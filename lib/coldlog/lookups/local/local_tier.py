"""local_tier: what does the part of a log know that is not archived yet?

The port between lookups and the records a broker still holds itself. Three kinds: none, a broker's log directory
(`log_directory_tier`) and a live broker (`live_broker_tier`). Isolation, fencing, special timestamps and
routing are the caller's business: a tier says where its log begins and ends, and which record is the first at or after
a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOffset:
    """A record; the leader epoch of its batch is -1 where it states none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLogState:
    """Where one partition's log begins and ends; ends are exclusive.

    `leader_epoch` is the current leader's, -1 where it is not known. `highest_tiered_offset` is inclusive, -1 where
    nothing is tiered, None where the tier does not know; so is `earliest_pending_offset`, the first that is yet to be
    tiered, -1 where none is. `topic_id` is as Kafka writes it, None where it is not known: a topic may be made anew.
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
    """What is asked of a local tier. Can be pickled; each process that asks opens its own files and connections.

    Errors of every method: `RetriableError` for a broker or disk that does not answer, `ArchiveError` for bytes that
    are damaged, `UsageError` for a tier that is not there at all; its `NotAuthorizedError` is said of one topic, its
    `NotSupportedError` of one question.
    """

    @property
    def covers_archive(self) -> bool:
        """`find_offset` knows the archived part of the log too: a broker does."""

    def read_state(self, topic: str, partition: int) -> LocalLogState | None:
        """As it is now; None where the tier has no such partition."""

    def find_offset(
        self, topic: str, partition: int, timestamp_ms: int, from_offset: int, *, broker_compatible: bool = False
    ) -> FoundOffset | None:
        """The lowest offset from `from_offset` on whose record is at or after `timestamp_ms`, decided or not.

        `broker_compatible`: only the segment is searched that a broker searches.
        """

    def find_max_timestamp(self, topic: str, partition: int) -> FoundOffset | None:
        """The record with the largest timestamp of those held locally, the lowest offset on ties."""

    def leader_epoch_at(self, topic: str, partition: int, offset: int) -> int:
        """The epoch of the leader that wrote, or would write, at `offset`; -1 where it is not known."""

    def close(self) -> None:
        """Lets go of files and connections."""
