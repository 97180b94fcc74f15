"""Limit the bytes per second inside a segment.

The quota admits a whole segment at once; this limit spreads its bytes (as Aiven's `upload.rate.limit.bytes.per.second`
does). All segments that are being copied share it.
"""

from __future__ import annotations

import threading

from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.pacer import Pacer


class ByteLimiter:
    """A rate limit that the threads of a process share."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._clock = clock
        self._pacer = Pacer(bytes_per_second=bytes_per_second)
        self._lock = threading.Lock()

    def wait_for(self, size_bytes: int) -> None:
        """Wait until a piece of that size may be sent. In any period at most the rate plus one piece is sent."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            wait_ms = self._pacer.throttle_ms(now_ms)
            # Take the place now, after the pieces that wait already.
            self._pacer.add(size_bytes, now_ms)
        if wait_ms:
            self._clock.wait_ms(wait_ms)
