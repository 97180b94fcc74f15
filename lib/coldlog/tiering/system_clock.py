"""system_clock: the machine's clock, for the tier."""

from __future__ import annotations

import time


class SystemClock:
    """A Clock."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Since the machine started."""
        return time.monotonic_ns() // 1_000_000

    def wait_ms(self, duration_ms: int) -> None:
        """Sleeps."""
        time.sleep(duration_ms / 1000)
