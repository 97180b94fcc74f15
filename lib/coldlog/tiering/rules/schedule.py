"""Decide when a partition is processed next, and by which run.

Each topic-partition has an entry: when it is to be processed next (0: it is new and due at once), which run processes
it now (a lease that expires), and the last error. The rules are functions from entries to entries:

assigned       a new partition gets an entry; if it was marked deleted and comes back, the mark is removed
unassigned     its entry is removed; while it is being processed it is marked deleted, and removed when that ends
due            its time has come, no run holds it, it is not marked deleted; the longest due first
processed      next: now + rlm.process.interval.ms; the error is removed
failed         next: now + rlm.retry.interval.ms; the error is kept

A run whose lease has ended changes nothing once another run has taken the partition. If a next time is further away
than the interval, or a lease is longer than any lease may be, then the clock of its writer was ahead: the partition is
due, and the lease has ended. So a shorter interval also takes effect at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from coldlog.model.ids import TopicIdPartition

LONGEST_LEASE_MS = 86_400_000
"""The largest value of `tier.lease_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The run that processes a partition, and until when no other run may."""

    holder: str
    expires_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPartition:
    """An entry. Times are epoch milliseconds. `failed_ms` is the time of the last error; None: there is none.
    `assigned_by` is the broker that the entry belongs to."""

    partition: TopicIdPartition
    next_processing_ms: int = 0
    lease: Lease | None = None
    is_marked_deleted: bool = False
    last_error: str | None = None
    failed_ms: int | None = None
    assigned_by: int = -1

    def is_held(self, now_ms: int) -> bool:
        """True if a run processes it."""
        return self.lease is not None and now_ms < self.lease.expires_ms <= now_ms + LONGEST_LEASE_MS

    def is_due(self, now_ms: int) -> bool:
        """True if a run may take it."""
        return not self.is_marked_deleted and not self.is_held(now_ms) and self.next_processing_ms <= now_ms


def assign(
    entries: Iterable[ScheduledPartition], assigned: Collection[TopicIdPartition], *, now_ms: int
) -> list[ScheduledPartition]:
    """Return the entries when exactly `assigned` are this host's partitions; sorted by partition."""
    known = {each.partition: each for each in entries}
    kept = [
        replace(each, is_marked_deleted=each.partition not in assigned)
        for each in known.values()
        if each.partition in assigned or each.is_held(now_ms)
    ]
    new = [ScheduledPartition(partition=each) for each in set(assigned) - known.keys()]
    return sorted(kept + new, key=lambda each: each.partition)


def mend_time(entry: ScheduledPartition, *, now_ms: int, longest_interval_ms: int) -> ScheduledPartition:
    """Return the entry, due now if its time is further away than a run of now would set it."""
    is_beyond = entry.next_processing_ms > now_ms + longest_interval_ms
    return replace(entry, next_processing_ms=now_ms) if is_beyond else entry


def longest_due_first(entries: Iterable[ScheduledPartition]) -> list[ScheduledPartition]:
    """Return entries in the order of processing: runs that are cut short then still reach all of them."""
    return sorted(entries, key=lambda each: (each.next_processing_ms, each.partition))


def take(entry: ScheduledPartition, holder: str, *, now_ms: int, lease_ms: int) -> ScheduledPartition | None:
    """Return the entry with a lease of `holder`; None if it is not due or another run holds it. A lease that `holder`
    has already is extended."""
    is_renewal = entry.is_held(now_ms) and entry.lease is not None and entry.lease.holder == holder
    if not is_renewal and not entry.is_due(now_ms):
        return None
    return replace(entry, lease=Lease(holder=holder, expires_ms=now_ms + lease_ms))


def end_processed(
    entry: ScheduledPartition, holder: str, *, now_ms: int, process_interval_ms: int
) -> ScheduledPartition | None:
    """Return the entry after a success; None: it is removed."""
    return _end(entry, holder, next_ms=now_ms + process_interval_ms, error=None, failed_ms=None)


def end_failed(
    entry: ScheduledPartition, holder: str, error: str, *, now_ms: int, retry_interval_ms: int
) -> ScheduledPartition | None:
    """Return the entry after an error of the storage; None: it is removed."""
    return _end(entry, holder, next_ms=now_ms + retry_interval_ms, error=error, failed_ms=now_ms)


def _end(
    entry: ScheduledPartition, holder: str, *, next_ms: int, error: str | None, failed_ms: int | None
) -> ScheduledPartition | None:
    if entry.lease is None or entry.lease.holder != holder:
        return entry
    if entry.is_marked_deleted:
        return None
    return replace(entry, next_processing_ms=next_ms, lease=None, last_error=error, failed_ms=failed_ms)
