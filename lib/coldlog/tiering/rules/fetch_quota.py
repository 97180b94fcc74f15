"""fetch_quota: may a read of the remote tier wait for its turn, and when is that?

The read quota of one broker (KIP-956), `remote.log.manager.fetch.max.bytes.per.second`. A read is offered with the
bytes that it may fetch and the time for which its asker waits. Its turn comes when what was read lately is within the
quota (Kafka's windowed rate) and when the reads before it are paid for at the rate. A turn that comes after the asker
has gone is no use: the read is not accepted, and is told how long to stay away. It takes no place in the queue, so that
the reads of others are as soon as without it.

Nobody waits here. A worker takes the read whose turn has come, or nothing; one whose asker has gone meanwhile is handed
out as stale. What a read did fetch is settled with what it was accepted for.
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
    """The read waits in the queue for so long at the most; 0: its turn is now."""

    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """The read is not in the queue; it may be offered again after that time."""

    throttle_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Generic[_Read]):
    """A read for a worker, with the bytes it was accepted for; a stale one is to be answered, not to be read."""

    read: _Read
    size_bytes: int
    is_stale: bool


class FetchQueue(Generic[_Read]):
    """Reads that wait for their turn; for all threads of a process."""

    def __init__(self, config: QuotaConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._rate = WindowedRate(sample_count=config.window_count, sample_ms=config.window_ms)
        self._pacer = Pacer(bytes_per_second=config.bytes_per_second)
        self._waiting: list[tuple[int, int, int, int, _Read]] = []
        self._offered_count = 0
        self._lock = threading.RLock()

    def offer(self, read: _Read, *, size_bytes: int, timeout_ms: int) -> Accepted | Throttled:
        """Takes a read into the queue, if its turn comes within `timeout_ms`."""
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
        """The next read whose turn has come; None: no worker is needed now."""
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
        """How long until the next turn comes; 0: it is now; None: nobody waits."""
        with self._lock:
            if not self._waiting:
                return None
            return max(0, self._waiting[0][0] - self._clock.monotonic_ms())

    def settle(self, *, accepted_bytes: int, fetched_bytes: int) -> None:
        """A read that was accepted for so many bytes has fetched that many; of a failed one, 0."""
        with self._lock:
            self._rate.record(fetched_bytes, self._clock.monotonic_ms())
            if not self._config.is_unlimited:
                self._pacer.give_back(accepted_bytes - fetched_bytes)

    def throttle_ms(self) -> int:
        """How long a read that is offered now would wait."""
        with self._lock:
            return self._throttle_ms(self._clock.monotonic_ms())

    def _throttle_ms(self, now_ms: int) -> int:
        if self._config.is_unlimited:
            return 0
        windowed_ms = self._rate.throttle_ms(self._config.bytes_per_second, now_ms)
        return max(windowed_ms, self._pacer.throttle_ms(now_ms))
