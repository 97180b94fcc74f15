"""Find the records of a replay that come late, and by how much.

A record's place in the order of a replay is the running maximum of the timestamps of its partition, then topic and
partition (coldlog.replay.order). A record is late if one with a later place was replayed before it. The lateness is the
difference of the running maxima: 0 ms if only topic and partition differ. A timestamp that decreases within its
partition makes no record late.
"""

from __future__ import annotations

from collections.abc import Mapping

TopicPartition = tuple[str, int]


class Lateness:
    """The lateness of the records of one task, as they are replayed. `reached_ms` is the running maximum of each
    partition so far."""

    def __init__(self, reached_ms: Mapping[TopicPartition, int]) -> None:
        self._reached_ms = dict(reached_ms)
        self._furthest = max(((reached, place) for place, reached in reached_ms.items()), default=None)

    def reached_ms(self, place: TopicPartition) -> int | None:
        """Return the largest timestamp of a partition that was replayed; None if there is none."""
        return self._reached_ms.get(place)

    def forget(self, place: TopicPartition) -> None:
        """Forget a partition, because it is replayed again from an earlier record on."""
        self._reached_ms.pop(place, None)

    def add(self, place: TopicPartition, timestamp_ms: int) -> int | None:
        """Add the next replayed record; return how late it is in milliseconds, None if it is not late."""
        reached = self._reached_ms[place] = max(timestamp_ms, self._reached_ms.get(place, timestamp_ms))
        if self._furthest is None or self._furthest <= (reached, place):
            self._furthest = (reached, place)
            return None
        return self._furthest[0] - reached
