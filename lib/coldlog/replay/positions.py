"""positions: how far has a reader of several partitions come, and how much of each is left?

What a consumer of Kafka keeps (its SubscriptionState): the partitions that are assigned, the offset that comes next of
each, and where each ends as far as was last told. `current_lag` is told from that alone, never by asking (KIP-695): the
ends are those of the last `refresh`, which is the only call that reads anything, or of a fetch since then.

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
    """What knows where partitions end, such as a `RecordFetcher`."""

    def refresh(self) -> None:
        """Looks at the newest version of the tables."""

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        """Where a partition begins and ends; None: it is not known."""


class PartitionPositions:
    """Positions and ends of the partitions that one reader is assigned; for one thread."""

    def __init__(self, reader: EndsReader, isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> None:
        self._reader = reader
        self._is_committed = IsolationLevel(isolation_level) is IsolationLevel.READ_COMMITTED
        self._positions: dict[TopicPartition, int | None] = {}
        self._ends: dict[TopicPartition, PartitionEnds] = {}

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """In order of topics and partitions."""
        return tuple(sorted(self._positions))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """These and no others from now on; what is known of those that stay is kept."""
        self._positions = {place: self._positions.get(place) for place in partitions}
        self._ends = {place: ends for place, ends in self._ends.items() if place in self._positions}

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """The offset that comes next. A partition that is not assigned, or a negative offset, is a `UsageError`."""
        place = self._assigned(topic, partition)
        if offset < 0:
            raise UsageError(f"{topic}-{partition} cannot be read from offset {offset}: it is negative")
        self._positions[place] = offset

    def position(self, topic: str, partition: int) -> int | None:
        """The offset that comes next; None: there is none yet."""
        return self._positions[self._assigned(topic, partition)]

    def fetched(self, topic: str, partition: int, answer: FetchedRecords) -> None:
        """A fetch brought records and told where the partition ends."""
        place = self._assigned(topic, partition)
        self._positions[place] = answer.next_offset
        self._ends[place] = answer.ends

    def refresh(self) -> None:
        """Learns where all assigned partitions end now. The only call that may read tables."""
        self._reader.refresh()
        told = {place: self._reader.partition_ends(*place) for place in self._positions}
        self._ends = {place: ends for place, ends in told.items() if ends is not None}

    def current_lag(self, topic: str, partition: int) -> int | None:
        """Offsets between the position and the end that was last told; 0 at the end and behind it.

        None while there is no position, or no end is known; a partition that is not assigned is a `UsageError`.
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
