"""tier_schedule: which partitions may a run process now, and are they still its own?

The rules of `tier.schedule` over the table `tier_schedule` of a warehouse. A run takes partitions that are due, some at
a time so that others find work too, each time in one commit, with a lease of each; it renews its leases together while
it works (`keep`, a third of a lease apart), and gives each back with what came of it. Two runs at once share no
partition, on one machine or on several, as long as their clocks differ by less than a lease.

A lease is asked for (`require`) before each step that is durable: one that was not renewed in time, or that another run
has taken, is a `LeaseLostError`, and its partition is left alone from then on. A run that was stopped behind that
question and goes on later does one step at most; the order of events makes that step harmless: a copy whose deletion
was begun meanwhile is not finished any more, by Kafka's own rules.

Where `warehouse.uri` is on S3 the table is there; see `small_table`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from coldlog.errors import RetriableError
from coldlog.model.ids import TopicIdPartition
from coldlog.tables.definitions.tier_schedule import TIER_SCHEDULE
from coldlog.tables.delta.small_table import Row, SmallTable
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.schedule import (
    Lease,
    ScheduledPartition,
    assign,
    end_failed,
    end_processed,
    longest_due_first,
    mend_time,
    take,
)

TAKEN_PER_THREAD = 4
"""A run takes so many partitions at a time; more would keep idle machines waiting, fewer ask the table more often."""


class LeaseLostError(RetriableError):
    """Another run processes the partition now, or may."""


class TierTask(StrEnum):
    """What is done with a partition; each has a schedule of its own, so that none waits for another."""

    COPY = "copy"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """See the settings of the same names. `holder` is one run's name; `ignores_times`: whatever nobody holds is due."""

    holder: str
    broker_id: int = -1
    process_interval_ms: int = 30_000
    retry_interval_ms: int = 30_000
    lease_ms: int = 60_000
    ignores_times: bool = False


@dataclass(frozen=True, slots=True)
class TierSchedule:
    """The table of one warehouse, for one run."""

    table: SmallTable
    clock: Clock
    options: ScheduleOptions

    def entries(self, task: TierTask) -> dict[TopicIdPartition, ScheduledPartition]:
        """As they are now."""
        return {each.partition: each for each in _entries(self.table.read(), task)}

    def take_due(
        self, task: TierTask, assigned: Collection[TopicIdPartition], *, at_most: int | None = None
    ) -> RunLeases:
        """Takes what is due of exactly these partitions, which are this broker's; others of its go. `at_most`: so many
        at a time, the longest due first; the rest is for other runs, or for this one's `refill`."""
        leases = RunLeases(schedule=self, task=task, assigned=assigned, at_most=at_most)
        leases.refill(0)
        return leases

    def _take(
        self,
        task: TierTask,
        assigned: Collection[TopicIdPartition],
        *,
        passed: Collection[TopicIdPartition],
        at_most: int | None,
    ) -> list[ScheduledPartition]:
        """As `take_due`, but for what this run had already."""
        taken: dict[TopicIdPartition, ScheduledPartition] = {}

        def change(entries: list[ScheduledPartition]) -> list[ScheduledPartition]:
            taken.clear()
            due_now = list[ScheduledPartition]()
            now_ms, options = self.clock.now_ms(), self.options
            is_own = [each.assigned_by == options.broker_id or each.partition in assigned for each in entries]
            others = [each for each, own in zip(entries, is_own, strict=True) if not own]
            own = assign((each for each, own in zip(entries, is_own, strict=True) if own), assigned, now_ms=now_ms)
            longest_ms = max(options.process_interval_ms, options.retry_interval_ms)
            for each in own:
                is_open = each.partition in assigned and each.partition not in passed
                due = replace(each, next_processing_ms=0) if options.ignores_times else each
                due = mend_time(due, now_ms=now_ms, longest_interval_ms=longest_ms)
                held = take(due, options.holder, now_ms=now_ms, lease_ms=options.lease_ms) if is_open else None
                if held is not None:
                    due_now.append(
                        replace(held, next_processing_ms=each.next_processing_ms, assigned_by=options.broker_id)
                    )
            taken.update({each.partition: each for each in longest_due_first(due_now)[:at_most]})
            kept = [taken.get(each.partition, replace(each, assigned_by=options.broker_id)) for each in own]
            return [*others, *kept]

        self._change(task, change)
        return list(taken.values())

    def _change(
        self, task: TierTask, change: Callable[[list[ScheduledPartition]], Sequence[ScheduledPartition]]
    ) -> list[ScheduledPartition]:
        """The entries of a task, changed in one commit."""

        def change_rows(rows: list[Row]) -> list[Row]:
            others = [row for row in rows if row["task"] != task.value]
            return [*others, *(_row(task, each) for each in change(_entries(rows, task)))]

        return _entries(self.table.change(change_rows), task)


class RunLeases:
    """The leases of one run; for all its threads."""

    def __init__(
        self, *, schedule: TierSchedule, task: TierTask, assigned: Collection[TopicIdPartition], at_most: int | None
    ) -> None:
        self._schedule = schedule
        self._task = task
        self._assigned = assigned
        self._at_most = at_most
        self._lock = threading.RLock()
        self._until_ms: dict[TopicIdPartition, int] = {}
        self._renewed_ms = schedule.clock.monotonic_ms()
        self._ended: dict[TopicIdPartition, str | None] = {}
        self._passed = set[TopicIdPartition]()
        self._is_all = False

    @property
    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """That are this run's now, the longest due first."""
        with self._lock:
            return tuple(self._until_ms)

    def refill(self, left: int) -> tuple[TopicIdPartition, ...]:
        """Takes more of what is due, but nothing twice, when what is `left` is half of `at_most` or less; none once
        nothing else was due. A table that does not answer is asked again by the next call, if anything is left."""
        with self._lock:
            if self._is_all or (self._at_most is not None and left > self._at_most // 2):
                return ()
            wanted, asked_ms = (
                None if self._at_most is None else self._at_most - left,
                self._schedule.clock.monotonic_ms(),
            )
            try:
                taken = self._schedule._take(self._task, self._assigned, passed=self._passed, at_most=wanted)
            except RetriableError:
                if left:
                    return ()
                raise
            if not self._until_ms:
                self._renewed_ms = asked_ms
            self._until_ms |= {each.partition: each.lease.expires_ms for each in taken if each.lease is not None}
            found = tuple(each.partition for each in taken)
            self._passed.update(found)
            self._is_all = wanted is None or len(found) < wanted
            return found

    def require(self, partition: TopicIdPartition) -> None:
        """Renews what is to be renewed; `LeaseLostError` where the partition may be another run's."""
        self.keep()
        with self._lock:
            until_ms = self._until_ms.get(partition)
            clock, lease_ms = self._schedule.clock, self._schedule.options.lease_ms
            is_late = clock.monotonic_ms() - self._renewed_ms >= lease_ms
            if until_ms is None or is_late or clock.now_ms() >= until_ms:
                self._until_ms.pop(partition, None)
                raise LeaseLostError(
                    f"this run's lease of {partition.topic}-{partition.partition} has ended, and another run may "
                    f"{self._task.value} it now; what is left is done by the next run"
                )

    def keep(self) -> None:
        """To be called often: renews all leases once a third of their time has gone. A table that does not answer is
        asked again by the next call."""
        with self._lock:
            lease_ms = self._schedule.options.lease_ms
            if self._until_ms and self._schedule.clock.monotonic_ms() - self._renewed_ms >= lease_ms // 3:
                try:
                    self._write(is_renewal=True)
                except RetriableError:
                    return

    def end(self, partition: TopicIdPartition, error: str | None) -> None:
        """What came of a partition; its lease is given back with the next change of the table, at `close` at last."""
        with self._lock:
            if self._until_ms.pop(partition, None) is not None:
                self._ended[partition] = error

    def close(self) -> None:
        """All that this run took is given back; what it has not processed is due as before."""
        with self._lock:
            if self._ended or self._until_ms:
                self._write(is_renewal=False)

    def _write(self, *, is_renewal: bool) -> None:
        options, clock = self._schedule.options, self._schedule.clock
        asked_ms = clock.monotonic_ms()

        def change(entries: list[ScheduledPartition]) -> list[ScheduledPartition]:
            changed = (self._changed(each, is_renewal=is_renewal) for each in entries)
            return [each for each in changed if each is not None]

        entries = {each.partition: each for each in self._schedule._change(self._task, change)}
        self._ended.clear()
        now_ms = clock.now_ms()
        held = {
            partition: entry.lease
            for partition in self._until_ms
            if is_renewal and (entry := entries.get(partition)) is not None and entry.is_held(now_ms)
        }
        self._until_ms = {
            partition: lease.expires_ms
            for partition, lease in held.items()
            if lease is not None and lease.holder == options.holder
        }
        self._renewed_ms = asked_ms

    def _changed(self, entry: ScheduledPartition, *, is_renewal: bool) -> ScheduledPartition | None:
        options, now_ms = self._schedule.options, self._schedule.clock.now_ms()
        is_own = entry.lease is not None and entry.lease.holder == options.holder
        if not is_own:
            return entry
        if entry.partition in self._ended:
            error = self._ended[entry.partition]
            if error is None:
                interval_ms = options.process_interval_ms
                return end_processed(entry, options.holder, now_ms=now_ms, process_interval_ms=interval_ms)
            return end_failed(entry, options.holder, error, now_ms=now_ms, retry_interval_ms=options.retry_interval_ms)
        if is_renewal:
            # A lease that has ended is not taken again behind somebody's back: it may have been another's meanwhile.
            longer = take(entry, options.holder, now_ms=now_ms, lease_ms=options.lease_ms)
            return longer if longer is not None and entry.is_held(now_ms) else entry
        return None if entry.is_marked_deleted else replace(entry, lease=None)


def tier_schedule_table(warehouse_uri: str) -> SmallTable:
    """Where it lies, be it there or not."""
    return SmallTable(uri=warehouse_uri, table=TIER_SCHEDULE)


def _entries(rows: Iterable[Row], task: TierTask) -> list[ScheduledPartition]:
    return [_entry(row) for row in rows if row["task"] == task.value]


def _entry(row: Row) -> ScheduledPartition:
    values: dict[str, object] = {**row}
    holder, expires_ms = values.pop("lease_holder"), values.pop("lease_expires_ms")
    partition = TopicIdPartition(
        topic=str(values.pop("topic")), partition=_int(values.pop("partition")), topic_id=str(values.pop("topic_id"))
    )
    error, failed_ms = values["last_error"], values["failed_ms"]
    return ScheduledPartition(
        partition=partition,
        next_processing_ms=_int(values["next_processing_ms"]),
        lease=None if holder is None else Lease(holder=str(holder), expires_ms=_int(expires_ms)),
        is_marked_deleted=bool(values["is_marked_deleted"]),
        last_error=None if error is None else str(error),
        failed_ms=None if failed_ms is None else _int(failed_ms),
        assigned_by=_int(values["assigned_by"]),
    )


def _row(task: TierTask, entry: ScheduledPartition) -> Row:
    partition, lease = entry.partition, entry.lease
    return {
        "task": task.value,
        "topic": partition.topic,
        "partition": partition.partition,
        "topic_id": partition.topic_id,
        "next_processing_ms": entry.next_processing_ms,
        "lease_holder": None if lease is None else lease.holder,
        "lease_expires_ms": None if lease is None else lease.expires_ms,
        "is_marked_deleted": entry.is_marked_deleted,
        "last_error": entry.last_error,
        "failed_ms": entry.failed_ms,
        "assigned_by": entry.assigned_by,
    }


def _int(value: object) -> int:
    return int(str(value))
