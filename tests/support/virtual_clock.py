"""virtual_clock: a clock whose time passes only when somebody waits, and what was done at which pace by it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class VirtualClock:
    """A Clock for any number of threads; `waits` are the durations that were waited for."""

    time_ms: int = 1_700_000_000_000
    waits: list[int] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return self.time_ms

    def monotonic_ms(self) -> int:
        """The same time."""
        return self.time_ms

    def wait_ms(self, duration_ms: int) -> None:
        """Moves on."""
        with self._lock:
            self.time_ms += duration_ms
            self.waits.append(duration_ms)


def most_over_quota(copied: Sequence[tuple[int, int]], bytes_per_second: int) -> int:
    """The largest excess over the quota in any interval that begins and ends with a copy."""
    worst, running = 0, 0
    before_ms = copied[0][0] if copied else 0
    for time_ms, size_bytes in copied:
        running = max(0, running - (time_ms - before_ms) * bytes_per_second // 1000) + size_bytes
        worst, before_ms = max(worst, running), time_ms
    return worst
