"""Decide whether a task may choose a record while some of its partitions have none buffered.

This is max.task.idle.ms of Kafka Streams (KIP-695, PartitionGroup of 4.2). A task always may choose while each
partition has records buffered. For partitions that have none:

-1      they are skipped: the task continues with what was read
0, N    if the lag is unknown, it is looked up first; with lag, the partition is read first, however long that takes; if
        the partition is caught up (the lag is known and zero), the task waits until N ms have passed since then, and
        skips it after that, until it has records or lag again

The waits for all partitions that are caught up run at the same time. Kafka's class stops at the first such partition,
so that the next wait begins when that one is over, in an order of partitions that is not specified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

from coldlog.errors import UsageError

TopicPartition = tuple[str, int]

NEVER_WAIT = -1
"""The max.task.idle.ms with which every partition without records is skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What a task still needs before its next record: partitions whose lag is unknown, partitions to read, and the
    monotonic time until which it waits for partitions that are caught up (None: no wait)."""

    unknown: tuple[TopicPartition, ...] = ()
    lagging: tuple[TopicPartition, ...] = ()
    deadline_ms: int | None = None

    def is_ready(self, now_ms: int) -> bool:
        """True if nothing is needed any more."""
        return not self.unknown and not self.lagging and (self.deadline_ms is None or self.deadline_ms <= now_ms)


class TaskIdling:
    """Tracks how long a task waits for its partitions. A max.task.idle.ms below -1 is a `UsageError`."""

    def __init__(self, max_task_idle_ms: int) -> None:
        self.max_task_idle_ms = checked_idle_ms(max_task_idle_ms)
        self._deadlines: dict[TopicPartition, int] = {}

    def assess(self, lags: Mapping[TopicPartition, int | None], now_ms: int) -> Readiness:
        """Assess the partitions without buffered records at a monotonic time. `lags` are theirs (None: unknown). A wait
        for any other partition ends."""
        if self.max_task_idle_ms == NEVER_WAIT:
            return Readiness()
        until = now_ms + self.max_task_idle_ms
        self._deadlines = {place: self._deadlines.get(place, until) for place, lag in lags.items() if lag == 0}
        return Readiness(
            unknown=tuple(place for place, lag in lags.items() if lag is None),
            lagging=tuple(place for place, lag in lags.items() if lag),
            deadline_ms=max(self._deadlines.values(), default=None),
        )


def checked_idle_ms(max_task_idle_ms: int) -> int:
    """Return max.task.idle.ms if it is valid; raise `UsageError` if not."""
    try:
        found = index(max_task_idle_ms)
    except TypeError as unfit:
        raise UsageError(f"max.task.idle.ms must be whole milliseconds, not {max_task_idle_ms!r}") from unfit
    if found < NEVER_WAIT:
        raise UsageError(
            f"max.task.idle.ms must be -1 (never wait), 0 (read all that is archived) or the milliseconds to wait for "
            f"new records, not {found}"
        )
    return found
