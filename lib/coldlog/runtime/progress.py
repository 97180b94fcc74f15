"""Say how far work that takes long has come: its share, its rate, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coldlog.runtime.console import human_bytes, human_duration


@dataclass(slots=True)
class Progress:
    """Work of so many bytes that begins now."""

    total_bytes: int
    clock: Callable[[], float] = time.monotonic
    _begun_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun_s = self.clock()

    def text(self, done_bytes: int) -> str:
        """Return "1.2 GB of 5.0 GB done, 120.0 MB/s, 32.0 s left"; without rate and time if nothing is done yet."""
        shown = f"{human_bytes(done_bytes)} of {human_bytes(self.total_bytes)} done"
        seconds = self.clock() - self._begun_s
        if done_bytes <= 0 or seconds <= 0:
            return shown
        left_s = (self.total_bytes - done_bytes) * seconds / done_bytes
        return f"{shown}, {human_bytes(round(done_bytes / seconds))}/s, {human_duration(left_s)} left"
