"""warehouse_lease: who may write to a warehouse on S3 now, and what becomes of a writer that comes too late?

A job that writes holds a lease: the object `.coldlog-writers/<number>` in the warehouse, which it has put on the
condition that nothing had that name (`If-None-Match: *`), and which it puts again every few seconds. The highest number
is the writer. Another job takes the next number when that one was released, or was not put again for `ttl_s` seconds by
the store's own clock. So a job that was killed keeps others away for `ttl_s` at the most.

A lease alone protects nothing: a writer that was paused past its end may wake in the middle of a commit. So every
commit of a lease's holder carries Delta's transaction identifier `APPLICATION` with a version that begins with the
lease's number, and whoever follows a lease that was not released at a good end commits its own number to every table
before it reads any (`Warehouse.fence`). Delta makes no commit whose version is not above the newest one in the table,
and none that has met another one of the same application on its way; the late writer is told so by `confirm`.

Numbers must not fall, though the objects may get lost, by a lifecycle rule or a copy of the warehouse without them: a
commit under a number that was there before would be left out without a word. So where there is no lease a first one is
put, as number 0, that tells from the store's clock where to go on, far above all that were; it counts as left.

A store that does not honour the condition is refused with `UsageError`: it is asked, by putting the same object twice.
Errors: `LeaseHeldError` while another job writes, `LeaseLostError` when this one has lost the warehouse,
`RetriableError` when the store does not answer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.tables.delta.lease_objects import COMMITS_PER_LEASE, HELD, LEFT, RELEASED, LeaseObjects

APPLICATION = "coldlog.writer"
"""The `txnAppId` of every commit under a lease."""

DEFAULT_TTL_S = 60.0
_KEPT_LEASES = 8


class LeaseHeldError(RetriableError):
    """Another job is writing the warehouse."""


class LeaseLostError(RetriableError):
    """Another job writes the warehouse now, or may; what this one has not published is taken up by the next run."""


@dataclass(slots=True, kw_only=True)
class WarehouseLease:
    """The lease `number` of the warehouse at `uri`, held by this process.

    `was_abandoned`: the one before it did not come to a good end, so its writer may still be on its way.
    """

    uri: str
    number: int
    was_abandoned: bool
    ttl_s: float
    _store: LeaseObjects
    _monotonic: Callable[[], float]
    _renewed_s: float
    _commits: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _refusal: ColdlogError | None = None

    @property
    def first_version(self) -> int:
        """The `txnVersion` that shuts out every earlier lease."""
        return self.number * COMMITS_PER_LEASE

    def next_version(self) -> int:
        """The `txnVersion` of the next commit."""
        return self.first_version + next(self._commits)

    def require(self) -> None:
        """Refuses to go on when the lease may have ended by now."""
        if self._monotonic() - self._renewed_s > self.ttl_s:
            why = "" if self._refusal is None else f" ({self._refusal})"
            raise self._lost(f"its lease {self.number} was not renewed for {self.ttl_s:.0f} s{why}")

    def confirm(self) -> None:
        """Asks the store whether this lease is still the newest."""
        newest = self._store.find_newest()
        if newest is None or (newest.number, newest.holder) != (self.number, self._store.holder):
            by = "none" if newest is None else f"lease {newest.number} ({newest.holder})"
            raise self._lost(f"its lease {self.number} was taken over by {by}")

    def renew(self) -> None:
        """Puts the lease's object again; to be called more often than every `ttl_s`. What the store says to a turn that
        fails is told by `require`, if none succeeds in time."""
        asked_s = self._monotonic()
        try:
            self._store.put(self.number, HELD)
        except ColdlogError as failed:
            self._refusal = failed
            # Credentials may have been put in place of those that ended.
            self._store.open_anew()
            return
        self._renewed_s, self._refusal = asked_s, None

    def release(self, *, is_finished: bool) -> None:
        """Lets others write at once; `is_finished`: no commit is on its way."""
        self._store.put(self.number, RELEASED if is_finished else LEFT)

    def _lost(self, why: str) -> LeaseLostError:
        return LeaseLostError(f"this job no longer writes the warehouse {self.uri}: {why}; run it again")


@contextmanager
def holding_lease(uri: str, bucket: str, prefix: str, *, ttl_s: float = DEFAULT_TTL_S) -> Iterator[WarehouseLease]:
    """A lease of the warehouse, renewed in the background and released at the end."""
    lease = take_lease(uri, bucket, prefix, ttl_s=ttl_s)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(ttl_s / 4):
            lease.renew()

    thread = threading.Thread(target=renew, name="coldlog-lease", daemon=True)
    thread.start()
    is_finished = False
    try:
        yield lease
        is_finished = True
    finally:
        ended.set()
        thread.join()
        # What is done is done: a lease that cannot be released now ends by itself.
        with suppress(ColdlogError):
            lease.release(is_finished=is_finished)


def take_lease(
    uri: str, bucket: str, prefix: str, *, ttl_s: float, monotonic: Callable[[], float] = time.monotonic
) -> WarehouseLease:
    """The next lease, if the newest one has ended."""
    store = LeaseObjects(bucket, prefix, uri)
    newest = store.find_newest() or store.begin()
    if newest.state == HELD and newest.age_s <= ttl_s:
        raise LeaseHeldError(
            f"another job ({newest.holder}) is writing the warehouse {uri}; run one at a time. If it was killed, its "
            f"lease ends in {max(1, round(ttl_s - newest.age_s))} s"
        )
    number = newest.following_number
    asked_s = monotonic()
    if not store.create(number):
        raise LeaseHeldError(f"another job has just begun to write the warehouse {uri}; run one at a time")
    if store.create(number):
        raise UsageError(
            f"the store of {uri} puts objects although they exist (If-None-Match is ignored): two jobs would overwrite "
            "each other's commits; use a store with conditional writes, or a warehouse elsewhere"
        )
    store.forget_before(number - _KEPT_LEASES)
    return WarehouseLease(
        uri=uri,
        number=number,
        was_abandoned=newest.state != RELEASED,
        ttl_s=ttl_s,
        _store=store,
        _monotonic=monotonic,
        _renewed_s=asked_s,
    )
