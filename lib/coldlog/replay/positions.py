"""Track the positions of a reader in several partitions, and its lag in each.

A consumer of Kafka keeps the same (its SubscriptionState): the assigned partitions, the next offset of each, and the
last known end of each. `current_lag` uses only what is known and never asks (KIP-695). The ends are those of the last
`refresh`, which is the only call that reads anything, or of a fetch since then.

For readers of committed records a partition ends at its last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from coldlog.errors import UsageError
from coldlog.model.fetch import FetchedRecords, PartitionEnds
from coldlog.model.states import IsolationLevel

TopicPartition = tuple[str, int]


class EndsReader(Protocol):
    """An object that knows where partitions end, such as a `RecordFetcher`."""

    def refresh(self) -> None:
        """Open the newest version of the tables."""

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        """Return where a partition begins and ends; None if it is unknown."""


class PartitionPositions:
    """Positions and ends of the partitions that are assigned to one reader. Use it in one thread."""

    def __init__(self, reader: EndsReader, isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> None:
        self._reader = reader
        self._is_committed = IsolationLevel(isolation_level) is IsolationLevel.READ_COMMITTED
        self._positions: dict[TopicPartition, int | None] = {}
        self._ends: dict[TopicPartition, PartitionEnds] = {}

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """Return the assigned partitions, by topic and partition."""
        return tuple(sorted(self._positions))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; what is known of those that stay is kept."""
        self._positions = {place: self._positions.get(place) for place in partitions}
        self._ends = {place: ends for place, ends in self._ends.items() if place in self._positions}

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Set the next offset. Raise `UsageError` for a partition that is not assigned, or a negative offset."""
        place = self._assigned(topic, partition)
        if offset < 0:
            raise UsageError(f"cannot seek {topic}-{partition} to offset {offset}: it is negative")
        self._positions[place] = offset

    def position(self, topic: str, partition: int) -> int | None:
        """Return the next offset; None if there is none yet."""
        return self._positions[self._assigned(topic, partition)]

    def fetched(self, topic: str, partition: int, answer: FetchedRecords) -> None:
        """Note the next offset and the end that a fetch returned."""
        place = self._assigned(topic, partition)
        self._positions[place] = answer.next_offset
        self._ends[place] = answer.ends

    def refresh(self) -> None:
        """Read where all assigned partitions end now. Only this call may read tables."""
        self._reader.refresh()
        found = {place: self._reader.partition_ends(*place) for place in self._positions}
        self._ends = {place: ends for place, ends in found.items() if ends is not None}

    def current_lag(self, topic: str, partition: int) -> int | None:
        """Return the offsets between the position and the last known end; 0 at the end and after it.

        None if there is no position, or no end is known. A partition that is not assigned is a `UsageError`.
        """
        place = self._assigned(topic, partition)
        position, ends = self._positions[place], self._ends.get(place)
        if position is None or ends is None:
            return None
        return max(0, ends.readable_end(is_committed=self._is_committed) - position)

    def _assigned(self, topic: str, partition: int) -> TopicPartition:
        place = (topic, partition)
        if place not in self._positions:
            raise UsageError(f"partition {topic}-{partition} is not assigned to this reader")
        return place
