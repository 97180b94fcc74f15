"""schedule: when is a partition processed next, and by whom?

Each topic-partition has an entry: when it is to be processed next (0: it is new, at once), who processes it now (a
lease that ends by itself), the last error. Rules, as functions from entries to entries:

assigned       a partition that is new gets an entry; one that was marked deleted and comes back is unmarked
unassigned     its entry goes; while it is being processed it is marked deleted, and goes when that ends
due            its time has come, nobody holds it, it is not marked deleted; the longest due first
processed      next: now + rlm.process.interval.ms, the error is forgotten
failed         next: now + rlm.retry.interval.ms, the error is kept

Who comes back after its lease has ended and somebody else took the partition changes nothing. A time that lies farther
off than the interval, and a lease that ends later than any may, were written by a clock that was ahead: the one has
come, the other has ended. A shorter interval counts at once, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from coldlog.model.ids import TopicIdPartition

LONGEST_LEASE_MS = 86_400_000
"""Of what `tier.lease_ms` may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who processes a partition, and until when nobody else may."""

    holder: str
    expires_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPartition:
    """An entry. Times are epoch milliseconds; `failed_ms` is of the last error, None without one;
    `assigned_by` is the broker whose it is."""

    partition: TopicIdPartition
    next_processing_ms: int = 0
    lease: Lease | None = None
    is_marked_deleted: bool = False
    last_error: str | None = None
    failed_ms: int | None = None
    assigned_by: int = -1

    def is_held(self, now_ms: int) -> bool:
        """Somebody processes it."""
        return self.lease is not None and now_ms < self.lease.expires_ms <= now_ms + LONGEST_LEASE_MS

    def is_due(self, now_ms: int) -> bool:
        """It may be taken."""
        return not self.is_marked_deleted and not self.is_held(now_ms) and self.next_processing_ms <= now_ms


def assign(
    entries: Iterable[ScheduledPartition], assigned: Collection[TopicIdPartition], *, now_ms: int
) -> list[ScheduledPartition]:
    """The entries, when exactly `assigned` are this host's; by partition."""
    known = {each.partition: each for each in entries}
    kept = [
        replace(each, is_marked_deleted=each.partition not in assigned)
        for each in known.values()
        if each.partition in assigned or each.is_held(now_ms)
    ]
    new = [ScheduledPartition(partition=each) for each in set(assigned) - known.keys()]
    return sorted(kept + new, key=lambda each: each.partition)


def mend_time(entry: ScheduledPartition, *, now_ms: int, longest_interval_ms: int) -> ScheduledPartition:
    """The entry, due now where its time lies farther off than a run of now would have set it."""
    is_beyond = entry.next_processing_ms > now_ms + longest_interval_ms
    return replace(entry, next_processing_ms=now_ms) if is_beyond else entry


def longest_due_first(entries: Iterable[ScheduledPartition]) -> list[ScheduledPartition]:
    """In the order in which they are to be processed: runs that are cut short come round to all of them."""
    return sorted(entries, key=lambda each: (each.next_processing_ms, each.partition))


def take(entry: ScheduledPartition, holder: str, *, now_ms: int, lease_ms: int) -> ScheduledPartition | None:
    """The entry with a lease of `holder`'s; None where it is not due, or is held. One's own lease is taken longer."""
    is_own = entry.is_held(now_ms) and entry.lease is not None and entry.lease.holder == holder
    if not is_own and not entry.is_due(now_ms):
        return None
    return replace(entry, lease=Lease(holder=holder, expires_ms=now_ms + lease_ms))


def end_processed(
    entry: ScheduledPartition, holder: str, *, now_ms: int, process_interval_ms: int
) -> ScheduledPartition | None:
    """The entry after a success; None: it goes."""
    return _end(entry, holder, next_ms=now_ms + process_interval_ms, error=None, failed_ms=None)


def end_failed(
    entry: ScheduledPartition, holder: str, error: str, *, now_ms: int, retry_interval_ms: int
) -> ScheduledPartition | None:
    """The entry after an error of the storage; None: it goes."""
    return _end(entry, holder, next_ms=now_ms + retry_interval_ms, error=error, failed_ms=now_ms)


def _end(
    entry: ScheduledPartition, holder: str, *, next_ms: int, error: str | None, failed_ms: int | None
) -> ScheduledPartition | None:
    if entry.lease is None or entry.lease.holder != holder:
        return entry
    if entry.is_marked_deleted:
        return None
    return replace(entry, next_processing_ms=next_ms, lease=None, last_error=error, failed_ms=failed_ms)
