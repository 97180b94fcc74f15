"""lateness: which records of a replay came after one that they should have preceded, and how late?

A record's place in the order of a replay is the running maximum of the timestamp over its partition, then topic and
partition (coldlog.replay.order). It is late if one with a later place was replayed before; by how much is the
difference of the running maxima, 0 ms where only topic and partition decide. A timestamp that falls within its
partition makes nothing late.
"""

from __future__ import annotations

from collections.abc import Mapping

TopicPartition = tuple[str, int]


class Lateness:
    """Of the records of one task, as they are replayed; `reached_ms` is the running maximum of each partition so
    far."""

    def __init__(self, reached_ms: Mapping[TopicPartition, int]) -> None:
        self._reached_ms = dict(reached_ms)
        self._furthest = max(((reached, place) for place, reached in reached_ms.items()), default=None)

    def reached_ms(self, place: TopicPartition) -> int | None:
        """The greatest timestamp of a partition that was replayed; None: none was."""
        return self._reached_ms.get(place)

    def forget(self, place: TopicPartition) -> None:
        """The partition is replayed from an earlier record on."""
        self._reached_ms.pop(place, None)

    def add(self, place: TopicPartition, timestamp_ms: int) -> int | None:
        """Of the record that is replayed next, how late it is in milliseconds; None: it is not."""
        reached = self._reached_ms[place] = max(timestamp_ms, self._reached_ms.get(place, timestamp_ms))
        if self._furthest is None or self._furthest <= (reached, place):
            self._furthest = (reached, place)
            return None
        return self._furthest[0] - reached
