"""idling: may a task choose a record though a partition of it has none at hand?

max.task.idle.ms of Kafka Streams (KIP-695, PartitionGroup of 4.2). A task always may while each partition has records
buffered. Of those that have none:

-1      all are passed over: the task goes on with what was read
0, N    one whose lag is not known is looked up first, one with lag is read first, whatever time that takes; one that is
        caught up, that is whose lag is known and zero, is waited for until N ms have passed since it was found so, and
        passed over then, until it has records or lag again

All partitions that are caught up are waited for at the same time. Kafka's class stops at the first one in its way, so
that the time of the next begins when that of the first is over, in an order of partitions that is not specified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

from coldlog.errors import UsageError

TopicPartition = tuple[str, int]

NEVER_WAIT = -1
"""max.task.idle.ms that passes over every partition without records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What stands between a task and its next record: partitions whose lag is not known, partitions that are to be
    read, and the monotonic time until which one that is caught up is waited for (None: there is none such)."""

    unknown: tuple[TopicPartition, ...] = ()
    lagging: tuple[TopicPartition, ...] = ()
    deadline_ms: int | None = None

    def is_ready(self, now_ms: int) -> bool:
        """Nothing."""
        return not self.unknown and not self.lagging and (self.deadline_ms is None or self.deadline_ms <= now_ms)


class TaskIdling:
    """Until when the partitions of one task are waited for. Below -1 is a `UsageError`."""

    def __init__(self, max_task_idle_ms: int) -> None:
        self.max_task_idle_ms = checked_idle_ms(max_task_idle_ms)
        self._deadlines: dict[TopicPartition, int] = {}

    def assess(self, lags: Mapping[TopicPartition, int | None], now_ms: int) -> Readiness:
        """Of the partitions without records at hand, and of their lags (None: not known), at a monotonic time. Of all
        others whatever was waited for is forgotten."""
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
    """max.task.idle.ms if it is one; a `UsageError` otherwise."""
    try:
        found = index(max_task_idle_ms)
    except TypeError as unfit:
        raise UsageError(f"max.task.idle.ms is a whole number of milliseconds, not {max_task_idle_ms!r}") from unfit
    if found < NEVER_WAIT:
        raise UsageError(
            f"max.task.idle.ms must be -1 (never wait), 0 (read all that is archived) or the milliseconds to wait for "
            f"more, not {found}"
        )
    return found
