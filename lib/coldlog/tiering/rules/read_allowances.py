"""Keep a read quota together with other processes, with few commits to the place that they share.

A process reserves an allowance: at least the bytes of one second at the quota, in the time after the allowances of all
others. It gives its reads bytes of the allowance without asking anybody. What is left when a read does not fit goes
into the next allowance. So the quota passes at least a second for each reservation, and one process does not make more
than one commit a second of reading, apart from the last, which returns what it has not used.

An allowance is valid for a fixed period, and so are its bytes. What is left at its end is returned with the next
reservation, if that comes within two seconds; later, the time has passed and nobody can use it. A read that is
throttled reserves nothing. Nothing here waits, apart from the commit itself.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.fetch_quota import Accepted, Throttled

_RETURNED_WITHIN_MS = 2000


class SharedOrder(Protocol):
    """The order in which all processes read."""

    def reserve(self, size_bytes: int, *, returned_bytes: int, longest_wait_ms: int) -> Accepted | Throttled:
        """Return bytes and reserve others behind all that are reserved, or do neither, if their time is too late."""

    def give_back(self, returned_bytes: int) -> None:
        """Return bytes."""


@dataclass(slots=True, kw_only=True)
class _Allowance:
    start_ms: int
    end_ms: int
    left_bytes: int


class ReadAllowances:
    """The part of the shared quota that this process holds. Threads share it."""

    def __init__(self, bytes_per_second: int, clock: Clock, shared: SharedOrder) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._shared = shared
        self._held: _Allowance | None = None
        self._unused_bytes, self._unused_since_ms = 0, 0
        self._lock = threading.Lock()

    def reserve(self, size_bytes: int, timeout_ms: int) -> Accepted | Throttled:
        """Reserve bytes for a read that waits at most `timeout_ms` for its turn."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._end(now_ms)
            held = self._held
            if held is None or held.left_bytes < size_bytes:
                return self._reserve_next(size_bytes, timeout_ms, now_ms)
            wait_ms = max(0, held.start_ms - now_ms)
            if wait_ms > timeout_ms:
                return Throttled(throttle_ms=wait_ms)
            held.left_bytes -= size_bytes
            return Accepted(wait_ms=wait_ms)

    def charge(self, size_bytes: int, longest_wait_ms: int) -> int:
        """Take bytes for a read that is made now, and return 0; or return after how many milliseconds to try again.
        The allowance of that time is reserved, if it comes within `longest_wait_ms`."""
        answer = self.reserve(size_bytes, longest_wait_ms)
        if isinstance(answer, Throttled):
            return answer.throttle_ms
        if answer.wait_ms:
            with self._lock:
                if self._held is not None:
                    self._held.left_bytes += size_bytes
        return answer.wait_ms

    def close(self) -> None:
        """Return what was not used; nothing, if a reservation hangs."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._end(self._clock.monotonic_ms())
            returned = self._unused_bytes + (self._held.left_bytes if self._held is not None else 0)
            self._held, self._unused_bytes = None, 0
            if returned:
                self._shared.give_back(returned)
        finally:
            self._lock.release()

    def _reserve_next(self, size_bytes: int, timeout_ms: int, now_ms: int) -> Accepted | Throttled:
        carried_bytes = self._held.left_bytes if self._held is not None else 0
        taken_bytes = max(size_bytes - carried_bytes, self._bytes_per_second)
        answer = self._shared.reserve(taken_bytes, returned_bytes=self._unused_bytes, longest_wait_ms=timeout_ms)
        if isinstance(answer, Accepted):
            self._unused_bytes = 0
            # The commit took a while: the allowance begins after it at the earliest, and ends as if it took no time.
            self._held = _Allowance(
                start_ms=self._clock.monotonic_ms() + answer.wait_ms,
                end_ms=now_ms + answer.wait_ms + -(-taken_bytes * 1000 // self._bytes_per_second),
                left_bytes=carried_bytes + taken_bytes - size_bytes,
            )
        return answer

    def _end(self, now_ms: int) -> None:
        """Let go of an allowance whose time has passed."""
        if self._held is not None and self._held.end_ms <= now_ms:
            self._unused_bytes += self._held.left_bytes
            self._unused_since_ms, self._held = self._held.end_ms, None
        if now_ms - self._unused_since_ms > _RETURNED_WITHIN_MS:
            self._unused_bytes = 0
