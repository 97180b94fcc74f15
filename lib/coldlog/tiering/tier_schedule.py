"""Take partitions that are due from the table `tier_schedule`, and hold leases on them.

The rules are in `tiering.rules.schedule`. A run takes partitions that are due. It takes a limited number at a time, so
that others find work too; each time in one commit, with a lease for each partition. It renews its leases together while
it works (`keep`, each third of a lease), and returns each with the result. Two runs at the same time never share a
partition, on one machine or on several, if their clocks differ by less than a lease.

A run checks its lease (`require`) before each durable step. If the lease was not renewed in time, or another run has
taken the partition, `require` raises `LeaseLostError`, and this run does not touch the partition again. A run that is
suspended right after this check and continues later does at most one step. The order of events makes this step
harmless: by Kafka's rules a copy whose deletion has begun can no longer become finished.

If `warehouse.uri` is on S3, the table is there too; see `small_table`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from coldlog.errors import RetriableError
from coldlog.model.ids import TopicIdPartition
from coldlog.tables.definitions.tier.tier_schedule import TIER_SCHEDULE
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
"""A run takes this many partitions per thread at a time. With more, idle machines wait; with fewer, the table is read
more often."""


class LeaseLostError(RetriableError):
    """Another run processes the partition now, or may process it."""


class TierTask(StrEnum):
    """The kind of work on a partition. Each kind has a schedule of its own, so that one does not wait for the other."""

    COPY = "copy"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """See the settings of the same names. `holder` names this run. `ignores_times`: all partitions without a holder are
    due."""

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
        """Return the entries of a task as they are now."""
        return {each.partition: each for each in _entries(self.table.read(), task)}

    def take_due(
        self, task: TierTask, assigned: Collection[TopicIdPartition], *, at_most: int | None = None
    ) -> RunLeases:
        """Take the partitions that are due. `assigned` are all partitions of this broker; its other entries are
        removed. `at_most` limits how many are taken at a time, the longest due first; the rest is for other runs, or
        for this run's `refill`."""
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
        """Take due partitions as `take_due` does, except those that this run had already."""
        taken: dict[TopicIdPartition, ScheduledPartition] = {}

        def change(entries: list[ScheduledPartition]) -> list[ScheduledPartition]:
            taken.clear()
            due_now = list[ScheduledPartition]()
            now_ms, options = self.clock.now_ms(), self.options
            is_ours = [entry.assigned_by == options.broker_id or entry.partition in assigned for entry in entries]
            others = [entry for entry, is_our in zip(entries, is_ours, strict=True) if not is_our]
            ours = (entry for entry, is_our in zip(entries, is_ours, strict=True) if is_our)
            scheduled = assign(ours, assigned, now_ms=now_ms)
            longest_ms = max(options.process_interval_ms, options.retry_interval_ms)
            for entry in scheduled:
                is_open = entry.partition in assigned and entry.partition not in passed
                due = replace(entry, next_processing_ms=0) if options.ignores_times else entry
                due = mend_time(due, now_ms=now_ms, longest_interval_ms=longest_ms)
                held = take(due, options.holder, now_ms=now_ms, lease_ms=options.lease_ms) if is_open else None
                if held is not None:
                    due_now.append(
                        replace(held, next_processing_ms=entry.next_processing_ms, assigned_by=options.broker_id)
                    )
            taken.update({each.partition: each for each in longest_due_first(due_now)[:at_most]})
            kept = [taken.get(e.partition, replace(e, assigned_by=options.broker_id)) for e in scheduled]
            return [*others, *kept]

        self._change(task, change)
        return list(taken.values())

    def _change(
        self, task: TierTask, change: Callable[[list[ScheduledPartition]], Sequence[ScheduledPartition]]
    ) -> list[ScheduledPartition]:
        """Change the entries of a task in one commit, and return them."""

        def change_rows(rows: list[Row]) -> list[Row]:
            others = [row for row in rows if row["task"] != task.value]
            return [*others, *(_row(task, each) for each in change(_entries(rows, task)))]

        return _entries(self.table.change(change_rows), task)


class RunLeases:
    """The leases of one run. Its threads share them."""

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
        self._has_taken_all = False
        self.retried_count = 0
        """How many of the partitions had failed in their last run."""

    @property
    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """Return the partitions that this run holds now, the longest due first."""
        with self._lock:
            return tuple(self._until_ms)

    def refill(self, unfinished_count: int) -> tuple[TopicIdPartition, ...]:
        """Take more due partitions if at most half of `at_most` are unfinished; never one twice. Take none once nothing
        else was due. If the table does not answer and work remains, return none; the next call tries again."""
        with self._lock:
            if self._has_taken_all or (self._at_most is not None and unfinished_count > self._at_most // 2):
                return ()
            wanted, asked_ms = (
                None if self._at_most is None else self._at_most - unfinished_count,
                self._schedule.clock.monotonic_ms(),
            )
            try:
                taken = self._schedule._take(self._task, self._assigned, passed=self._passed, at_most=wanted)
            except RetriableError:
                if unfinished_count:
                    return ()
                raise
            if not self._until_ms:
                self._renewed_ms = asked_ms
            self._until_ms |= {each.partition: each.lease.expires_ms for each in taken if each.lease is not None}
            found = tuple(each.partition for each in taken)
            self._passed.update(found)
            self.retried_count += sum(each.failed_ms is not None for each in taken)
            self._has_taken_all = wanted is None or len(found) < wanted
            return found

    def require(self, partition: TopicIdPartition) -> None:
        """Renew the leases if it is time. Raise `LeaseLostError` if another run may hold the partition."""
        self.keep()
        with self._lock:
            until_ms = self._until_ms.get(partition)
            clock, lease_ms = self._schedule.clock, self._schedule.options.lease_ms
            is_late = clock.monotonic_ms() - self._renewed_ms >= lease_ms
            if until_ms is None or is_late or clock.now_ms() >= until_ms:
                self._until_ms.pop(partition, None)
                raise LeaseLostError(
                    f"this run's lease of {partition.topic}-{partition.partition} has ended, so another run may "
                    f"{self._task.value} it now; the next run does the rest"
                )

    def keep(self) -> None:
        """Renew all leases when a third of their time is over; call this often. If the table does not answer, the next
        call tries again."""
        with self._lock:
            lease_ms = self._schedule.options.lease_ms
            if self._until_ms and self._schedule.clock.monotonic_ms() - self._renewed_ms >= lease_ms // 3:
                try:
                    self._write(is_renewal=True)
                except RetriableError:
                    return

    def end(self, partition: TopicIdPartition, error: str | None) -> None:
        """Note the result of a partition. The next change of the table returns its lease, at the latest `close`."""
        with self._lock:
            if self._until_ms.pop(partition, None) is not None:
                self._ended[partition] = error

    def close(self) -> None:
        """Return all leases. A partition that was not processed is due as before."""
        with self._lock:
            if self._ended or self._until_ms:
                self._write(is_renewal=False)

    def _write(self, *, is_renewal: bool) -> None:
        options, clock = self._schedule.options, self._schedule.clock
        asked_ms = clock.monotonic_ms()

        def change(entries: list[ScheduledPartition]) -> list[ScheduledPartition]:
            changed = (self._changed(entry, is_renewal=is_renewal) for entry in entries)
            return [entry for entry in changed if entry is not None]

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
        if entry.lease is None or entry.lease.holder != options.holder:
            return entry
        if entry.partition in self._ended:
            error = self._ended[entry.partition]
            if error is None:
                interval_ms = options.process_interval_ms
                return end_processed(entry, options.holder, now_ms=now_ms, process_interval_ms=interval_ms)
            return end_failed(entry, options.holder, error, now_ms=now_ms, retry_interval_ms=options.retry_interval_ms)
        if is_renewal:
            # Do not renew a lease that has ended: another run may have held the partition since.
            longer = take(entry, options.holder, now_ms=now_ms, lease_ms=options.lease_ms)
            return longer if longer is not None and entry.is_held(now_ms) else entry
        return None if entry.is_marked_deleted else replace(entry, lease=None)


def tier_schedule_table(warehouse_uri: str) -> SmallTable:
    """Return the table of the schedule in a warehouse; it may not exist yet."""
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
