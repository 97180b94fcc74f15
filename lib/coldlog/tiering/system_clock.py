"""Give the tier the time of this machine."""

from __future__ import annotations

import time


class SystemClock:
    """A Clock of this machine."""

    def now_ms(self) -> int:
        """Return epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds since the machine started."""
        return time.monotonic_ns() // 1_000_000

    def wait_ms(self, duration_ms: int) -> None:
        """Sleep."""
        time.sleep(duration_ms / 1000)
