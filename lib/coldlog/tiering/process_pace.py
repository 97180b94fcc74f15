"""Let the reads of one process wait for the read quota.

Reads are paid off at the quota, one after another (`rules.pacer`), so in any period the process reads at most the quota
plus one read. With `shared`, the process takes a second's worth of bytes at a time from the quota that all processes
keep together (`rules.read_allowances`).
"""

from __future__ import annotations

import threading
from contextlib import suppress

from coldlog.errors import RetriableError
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.fetch_quota import SharedReads, Throttled
from coldlog.tiering.rules.pacer import Pacer

_LONGEST_WAIT_MS = 2**40


class ProcessPace:
    """The pace of one process; its threads share it."""

    def __init__(self, bytes_per_second: int, clock: Clock, shared: SharedReads | None = None) -> None:
        self._clock = clock
        self._shared = shared
        self._pacer = Pacer(bytes_per_second=bytes_per_second)
        self._lock = threading.Lock()

    def wait_for(self, size_bytes: int) -> None:
        """Return when so many bytes may be read. Raise `RetriableError` if the shared quota does not answer."""
        if size_bytes and (wait_ms := self._reserve(size_bytes)):
            self._clock.wait_ms(wait_ms)

    def close(self) -> None:
        """Return what was reserved and not used, unless the shared quota does not answer."""
        if self._shared is not None:
            with suppress(RetriableError):
                self._shared.close()

    def _reserve(self, size_bytes: int) -> int:
        if self._shared is not None:
            while isinstance(answer := self._shared.reserve(size_bytes, _LONGEST_WAIT_MS), Throttled):
                self._clock.wait_ms(answer.throttle_ms)
            return answer.wait_ms
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            wait_ms = self._pacer.throttle_ms(now_ms)
            self._pacer.add(size_bytes, now_ms)
            return wait_ms
