"""Let one job at a time write a warehouse on S3, and stop a writer whose lease has ended.

A job that writes holds a lease: the object `.coldlog-writers/<number>` in the warehouse. The job puts it on the
condition that the name does not exist (`If-None-Match: *`), and puts it again every few seconds. The holder of the
highest number is the writer. Another job takes the next number when that lease was released, or was not put again for
`ttl_s` seconds by the store's clock. So a killed job blocks others for at most `ttl_s`.

A lease alone is not enough: a writer that was paused past its end may wake in the middle of a commit. So every commit
of the holder carries Delta's transaction identifier `APPLICATION` with a version that starts with the lease's number.
If the previous lease was not released after a success, the new holder first commits its number to every table, before
any read (`Warehouse.fence`). Delta makes no commit whose version is not above the newest one in the table, and none
that conflicts with a commit of the same application. `confirm` reports this to the late writer.

Numbers must never fall, because Delta silently skips a commit under a number that was used before. But the objects can
be lost, by a lifecycle rule or in a copy of the warehouse. So if there is no lease, a first one is put as number 0. It
holds a number from the store's clock, far above all earlier numbers, from which leases continue. Its state is `left`.

A store that ignores the condition is refused with `UsageError`; to find out, the same object is put twice.
Errors: `LeaseHeldError` while another job writes, `LeaseLostError` if this job has lost the warehouse, `RetriableError`
if the store does not answer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.tables.leases.lease_objects import COMMITS_PER_LEASE, HELD, LEFT, RELEASED, LeaseObjects

APPLICATION = "coldlog.writer"
"""The `txnAppId` of every commit under a lease."""

DEFAULT_TTL_S = 60.0
_KEPT_LEASES = 8


class LeaseHeldError(RetriableError):
    """Another job is writing the warehouse."""


class LeaseLostError(RetriableError):
    """Another job writes the warehouse now, or may do so; the next run repeats what this one has not published."""


@dataclass(slots=True, kw_only=True)
class WarehouseLease:
    """The lease `number` of the warehouse at `uri`, held by this process.

    `was_abandoned`: the previous lease was not released after a success, so a commit of its writer may still arrive.
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
        """The `txnVersion` that blocks every earlier lease."""
        return self.number * COMMITS_PER_LEASE

    def next_version(self) -> int:
        """The `txnVersion` of the next commit."""
        return self.first_version + next(self._commits)

    def require(self) -> None:
        """Raise `LeaseLostError` if the lease may have ended."""
        if self._monotonic() - self._renewed_s > self.ttl_s:
            why = "" if self._refusal is None else f" ({self._refusal})"
            raise self._lost(f"its lease {self.number} was not renewed for {self.ttl_s:.0f} s{why}")

    def confirm(self) -> None:
        """Raise `LeaseLostError` unless the store still has this lease as the newest."""
        newest = self._store.find_newest()
        if newest is None or (newest.number, newest.holder) != (self.number, self._store.holder):
            by = "none" if newest is None else f"lease {newest.number} ({newest.holder})"
            raise self._lost(f"its lease {self.number} was taken over by {by}")

    def renew(self) -> None:
        """Put the lease's object again; must be called more often than every `ttl_s`.

        If no call succeeds in time, `require` reports the store's last error.
        """
        asked_s = self._monotonic()
        try:
            self._store.put(self.number, HELD)
        except ColdlogError as failed:
            self._refusal = failed
            # The credentials may have expired and been replaced.
            self._store.open_anew()
            return
        self._renewed_s, self._refusal = asked_s, None

    def release(self, *, is_finished: bool) -> None:
        """Let others write at once; `is_finished`: no commit of this job can still arrive."""
        self._store.put(self.number, RELEASED if is_finished else LEFT)

    def _lost(self, why: str) -> LeaseLostError:
        return LeaseLostError(f"this job may no longer write the warehouse {self.uri}: {why}; run it again")


@contextmanager
def holding_lease(uri: str, bucket: str, prefix: str, *, ttl_s: float = DEFAULT_TTL_S) -> Iterator[WarehouseLease]:
    """Hold a lease of the warehouse: renew it in the background and release it at the end."""
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
        # A lease that cannot be released ends by itself.
        with suppress(ColdlogError):
            lease.release(is_finished=is_finished)


def take_lease(
    uri: str, bucket: str, prefix: str, *, ttl_s: float, monotonic: Callable[[], float] = time.monotonic
) -> WarehouseLease:
    """Take the next lease if the newest one has ended."""
    store = LeaseObjects(bucket, prefix, uri)
    newest = store.find_newest() or store.begin()
    if newest.state == HELD and newest.age_s <= ttl_s:
        raise LeaseHeldError(
            f"another job ({newest.holder}) is writing the warehouse {uri}; run one at a time, or, if it was killed, "
            f"wait {max(1, round(ttl_s - newest.age_s))} s for its lease to end"
        )
    number = newest.following_number
    asked_s = monotonic()
    if not store.create(number):
        raise LeaseHeldError(f"another job has just started to write the warehouse {uri}; run one at a time")
    if store.create(number):
        raise UsageError(
            f"the store of {uri} ignores If-None-Match, so two jobs would overwrite each other's commits; use a store "
            "with conditional writes, or put the warehouse elsewhere"
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
