"""Queue reads of the remote tier so that they keep the read quota of one broker.

The quota is `remote.log.manager.fetch.max.bytes.per.second` (KIP-956). A read is offered with the bytes that it may
fetch and the time for which its caller waits. Its turn comes when the recent reads are within the quota (Kafka's
windowed rate) and the reads before it are paid for at the rate. If its turn would come after the caller's timeout, the
read is not accepted, and the caller gets the time after which to try again. A read that is not accepted takes no place
in the queue, so it does not delay others.

Nothing blocks here. A worker takes the read whose turn has come, or none. A read whose caller has given up meanwhile is
returned as stale. After a read, `settle` corrects the accepted bytes to the bytes that were fetched.
"""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.pacer import Pacer
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.windowed_rate import WindowedRate

_Read = TypeVar("_Read")


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


class FetchQueue(Generic[_Read]):
    """Reads that wait for their turn. Threads share the queue."""

    def __init__(self, config: QuotaConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._rate = WindowedRate(sample_count=config.window_count, sample_ms=config.window_ms)
        self._pacer = Pacer(bytes_per_second=config.bytes_per_second)
        self._waiting: list[tuple[int, int, int, int, _Read]] = []
        self._offered_count = 0
        self._lock = threading.RLock()

    def offer(self, read: _Read, *, size_bytes: int, timeout_ms: int) -> Accepted | Throttled:
        """Put a read into the queue if its turn comes within `timeout_ms`."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            wait_ms = self._throttle_ms(now_ms)
            if wait_ms > timeout_ms:
                return Throttled(throttle_ms=wait_ms)
            if not self._config.is_unlimited:
                self._pacer.add(size_bytes, now_ms)
            self._offered_count += 1
            entry = (now_ms + wait_ms, self._offered_count, now_ms + timeout_ms, size_bytes, read)
            heapq.heappush(self._waiting, entry)
            return Accepted(wait_ms=wait_ms)

    def take(self) -> Taken[_Read] | None:
        """Return the next read whose turn has come; None if there is none now."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if not self._waiting or self._waiting[0][0] > now_ms:
                return None
            _, _, deadline_ms, size_bytes, read = heapq.heappop(self._waiting)
            is_stale = now_ms > deadline_ms
            if is_stale:
                self.settle(accepted_bytes=size_bytes, fetched_bytes=0)
            return Taken(read=read, size_bytes=size_bytes, is_stale=is_stale)

    def next_turn_ms(self) -> int | None:
        """Return how long until the next turn comes; 0: it is now; None: the queue is empty."""
        with self._lock:
            if not self._waiting:
                return None
            return max(0, self._waiting[0][0] - self._clock.monotonic_ms())

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
        if self._config.is_unlimited:
            return 0
        windowed_ms = self._rate.throttle_ms(self._config.bytes_per_second, now_ms)
        return max(windowed_ms, self._pacer.throttle_ms(now_ms))
