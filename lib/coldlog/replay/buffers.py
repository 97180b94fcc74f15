"""Buffer the records of a task's partitions, and choose the next one.

The buffer of a partition has the records of its last fetch. The partition whose first buffered record has the smallest
timestamp is next; of equal timestamps the smaller topic, then the smaller partition (coldlog.replay.order). A heap of
these first records finds it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from coldlog.model.fetch import FetchedRecord

TopicPartition = tuple[str, int]


class RecordBuffers:
    """The buffered records of the partitions of one task."""

    def __init__(self, places: Iterable[TopicPartition]) -> None:
        self._records: dict[TopicPartition, deque[FetchedRecord]] = {place: deque() for place in sorted(places)}
        self._heads: list[tuple[int, TopicPartition]] = []
        self._empty = tuple(self._records)

    @property
    def empty(self) -> tuple[TopicPartition, ...]:
        """Return the partitions without a buffered record, in order."""
        return self._empty

    @property
    def has_records(self) -> bool:
        """True if any partition has a buffered record."""
        return bool(self._heads)

    def head_offset(self, place: TopicPartition) -> int | None:
        """Return the offset of a partition's next buffered record; None if it has none."""
        records = self._records[place]
        return records[0].offset if records else None

    def fill(self, place: TopicPartition, records: Iterable[FetchedRecord]) -> None:
        """Add the following records of a partition that has none buffered."""
        self._records[place].extend(records)
        self._push(place)
        self._find_empty()

    def take(self) -> tuple[TopicPartition, FetchedRecord]:
        """Remove and return the next record; there must be one."""
        _, place = heapq.heappop(self._heads)
        record = self._records[place].popleft()
        self._push(place)
        if not self._records[place]:
            self._find_empty()
        return place, record

    def clear(self, place: TopicPartition) -> None:
        """Remove the buffered records of a partition."""
        self._records[place].clear()
        # A sorted list is a heap.
        self._heads = sorted(head for head in self._heads if head[1] != place)
        self._find_empty()

    def _push(self, place: TopicPartition) -> None:
        if self._records[place]:
            heapq.heappush(self._heads, (self._records[place][0].timestamp_ms, place))

    def _find_empty(self) -> None:
        self._empty = tuple(place for place, records in self._records.items() if not records)
