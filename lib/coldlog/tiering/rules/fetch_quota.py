"""Queue reads of the remote tier so that they keep the read quota of one broker.

The quota is `remote.log.manager.fetch.max.bytes.per.second` (KIP-956). A read is offered with the bytes that it may
fetch and the time for which its caller waits. Its turn comes when the recent reads are within the quota (Kafka's
windowed rate, as it was when the read was offered), and the reads before it, in the order of their offers, are paid for
at the rate. If its turn would come after the caller's timeout, the read is not accepted, and the caller gets the time
after which to try again. A read that is not accepted takes no place in the queue, so it does not delay others.

A read is charged when it is taken, not when it is offered. So what a failed read gives back brings the next turn
forward, and two turns are never at once. A turn that a worker takes late is charged from its time, at most 10 ms back.

Nothing blocks here. A worker takes the read whose turn has come, or none. A read whose caller has given up meanwhile is
returned as stale and not charged. After a read, `settle` corrects the accepted bytes to the bytes that were fetched.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.pacer import Pacer
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.windowed_rate import WindowedRate

_Read = TypeVar("_Read")
_LATEST_MS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The read is in the queue and waits at most this long; 0: its turn is now."""

    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """The read is not in the queue. Offer it again after this time."""

    throttle_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Generic[_Read]):
    """A read for a worker, with the bytes it was accepted for. Answer a stale one without reading."""

    read: _Read
    size_bytes: int
    is_stale: bool


class SharedReads(Protocol):
    """The quota that several processes share (`read_allowances`)."""

    def reserve(self, size_bytes: int, timeout_ms: int) -> Accepted | Throttled:
        """Reserve bytes for a read that waits at most `timeout_ms` for its turn."""

    def close(self) -> None:
        """Return what was not used."""


@dataclass(frozen=True, slots=True)
class _Offer(Generic[_Read]):
    """A read in the queue, and the time before which the window does not let it pass."""

    read: _Read
    size_bytes: int
    due_ms: int
    deadline_ms: int


class FetchQueue(Generic[_Read]):
    """Reads that wait for their turn. Threads share the queue."""

    def __init__(self, config: QuotaConfig, clock: Clock, shared: SharedReads | None = None) -> None:
        self._config = config
        self._clock = clock
        self._shared = shared
        self._rate = WindowedRate(sample_count=config.window_count, sample_ms=config.window_ms)
        self._pacer = Pacer(bytes_per_second=config.bytes_per_second)
        self._waiting: deque[_Offer[_Read]] = deque()
        self._lock = threading.RLock()

    def reserve(self, size_bytes: int, timeout_ms: int) -> Accepted | Throttled:
        """Reserve the bytes of a read with the other processes, before it is offered. This may take a while."""
        own_ms = self.throttle_ms() if self._shared is not None else 0
        if self._shared is None or own_ms > timeout_ms:
            # What is not reserved takes no turn from others.
            return Throttled(throttle_ms=own_ms) if own_ms > timeout_ms else Accepted(wait_ms=0)
        return self._shared.reserve(size_bytes, timeout_ms)

    def offer(
        self, read: _Read, *, size_bytes: int, timeout_ms: int, reserved: Accepted | Throttled | None = None
    ) -> Accepted | Throttled:
        """Put a read into the queue if its turn comes within `timeout_ms`, and not before it is `reserved`."""
        if isinstance(reserved, Throttled):
            return reserved
        least_ms = 0 if reserved is None else reserved.wait_ms
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            wait_ms = max(least_ms, self._throttle_ms(now_ms))
            # A turn that is reserved is kept, also if the reservation took a part of the time.
            timeout_ms = max(timeout_ms, least_ms)
            if wait_ms > timeout_ms:
                return Throttled(throttle_ms=wait_ms)
            windowed_ms = 0 if self._config.is_unlimited else self._windowed_ms(now_ms)
            due_ms = now_ms + max(least_ms, windowed_ms)
            self._waiting.append(_Offer(read, size_bytes, due_ms, now_ms + timeout_ms))
            return Accepted(wait_ms=wait_ms)

    def close(self) -> None:
        """Return what was reserved and not used."""
        if self._shared is not None:
            self._shared.close()

    def take(self) -> Taken[_Read] | None:
        """Return the next read whose turn has come; None if there is none now."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if not self._waiting:
                return None
            offer = self._waiting[0]
            is_stale, due_ms = now_ms > offer.deadline_ms, self._due_ms(offer, self._pacer)
            if due_ms > now_ms:
                return None
            self._waiting.popleft()
            if not is_stale and not self._config.is_unlimited:
                self._pacer.add(offer.size_bytes, max(due_ms, now_ms - _LATEST_MS))
            return Taken(read=offer.read, size_bytes=offer.size_bytes, is_stale=is_stale)

    def next_turn_ms(self) -> int | None:
        """Return how long until the next read may be taken; 0: now; None: the queue is empty."""
        with self._lock:
            if not self._waiting:
                return None
            return max(0, self._due_ms(self._waiting[0], self._pacer) - self._clock.monotonic_ms())

    def settle(self, *, accepted_bytes: int, fetched_bytes: int) -> None:
        """Record how many bytes an accepted read has fetched; 0 for one that failed."""
        with self._lock:
            self._rate.record(fetched_bytes, self._clock.monotonic_ms())
            if not self._config.is_unlimited:
                self._pacer.give_back(accepted_bytes - fetched_bytes)

    def throttle_ms(self) -> int:
        """Return how long a read that is offered now would wait."""
        with self._lock:
            return self._throttle_ms(self._clock.monotonic_ms())

    def _throttle_ms(self, now_ms: int) -> int:
        """Return how long a read waits behind all that are in the queue."""
        if self._config.is_unlimited:
            return 0
        planned, due_ms = replace(self._pacer), now_ms + self._windowed_ms(now_ms)
        for offer in self._waiting:
            planned.add(offer.size_bytes, max(now_ms, self._due_ms(offer, planned)))
        return max(due_ms, planned.paid_at_ms()) - now_ms

    def _windowed_ms(self, now_ms: int) -> int:
        return self._rate.throttle_ms(self._config.bytes_per_second, now_ms)

    def _due_ms(self, offer: _Offer[_Read], pacer: Pacer) -> int:
        return offer.due_ms if self._config.is_unlimited else max(offer.due_ms, pacer.paid_at_ms())
