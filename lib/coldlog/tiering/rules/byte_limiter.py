"""byte_limiter: when may the next bytes of a segment go?

A finer limit than the quota's, inside a segment: the quota lets a whole segment through at once, this spreads its bytes
(as Aiven's `upload.rate.limit.bytes.per.second` does). Pieces of all segments that are under way share it.
"""

from __future__ import annotations

import threading

from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.pacer import Pacer


class ByteLimiter:
    """For all threads of a process."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._clock = clock
        self._pacer = Pacer(bytes_per_second=bytes_per_second)
        self._lock = threading.Lock()

    def wait_for(self, size_bytes: int) -> None:
        """Returns when the bytes of a piece may go. In any time the rate is kept, and one piece beside it."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            wait_ms = self._pacer.throttle_ms(now_ms)
            # Behind those that wait already: its turn is taken now.
            self._pacer.add(size_bytes, now_ms)
        if wait_ms:
            self._clock.wait_ms(wait_ms)
