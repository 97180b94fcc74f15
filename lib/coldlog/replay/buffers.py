"""buffers: which of the records at hand comes next?

Of each partition of a task the records of its last fetch. The partition whose head has the least timestamp is next, of
equal ones the lesser topic, then the lesser partition (coldlog.replay.order); a heap of heads knows it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from coldlog.model.fetch import FetchedRecord

TopicPartition = tuple[str, int]


class RecordBuffers:
    """The records at hand of the partitions of one task."""

    def __init__(self, places: Iterable[TopicPartition]) -> None:
        self._records: dict[TopicPartition, deque[FetchedRecord]] = {place: deque() for place in sorted(places)}
        self._heads: list[tuple[int, TopicPartition]] = []
        self._empty = tuple(self._records)

    @property
    def empty(self) -> tuple[TopicPartition, ...]:
        """Partitions without a record at hand, in order."""
        return self._empty

    @property
    def has_records(self) -> bool:
        """Of any partition."""
        return bool(self._heads)

    def head_offset(self, place: TopicPartition) -> int | None:
        """Of the record of a partition that comes next; None: there is none at hand."""
        records = self._records[place]
        return records[0].offset if records else None

    def fill(self, place: TopicPartition, records: Iterable[FetchedRecord]) -> None:
        """Those that follow in a partition that has none at hand."""
        self._records[place].extend(records)
        self._push(place)
        self._find_empty()

    def take(self) -> tuple[TopicPartition, FetchedRecord]:
        """The next record; there must be one."""
        _, place = heapq.heappop(self._heads)
        record = self._records[place].popleft()
        self._push(place)
        if not self._records[place]:
            self._find_empty()
        return place, record

    def clear(self, place: TopicPartition) -> None:
        """Forgets the records of a partition."""
        self._records[place].clear()
        # Sorted it is a heap.
        self._heads = sorted(head for head in self._heads if head[1] != place)
        self._find_empty()

    def _push(self, place: TopicPartition) -> None:
        if self._records[place]:
            heapq.heappush(self._heads, (self._records[place][0].timestamp_ms, place))

    def _find_empty(self) -> None:
        self._empty = tuple(place for place, records in self._records.items() if not records)
