"""virtual_clock: a clock whose time passes only when somebody waits; waiting takes no time."""

from __future__ import annotations

import threading
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
