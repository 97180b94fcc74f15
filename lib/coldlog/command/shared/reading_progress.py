"""Show on a terminal how far a command that writes records to a file or a pipe has come.

The line is on standard error, begins after two seconds, is written anew each second, and is gone when the command ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from coldlog.runtime.console import human_duration

_BEGIN_S, _STEP_S = 2.0, 1.0
_ERASED = "\r\x1b[K"


@dataclass(slots=True)
class ReadingProgress:
    """Offsets of one partition after another. `stream` is None if nothing is shown."""

    stream: TextIO | None
    clock: Callable[[], float] = time.monotonic
    _name: str = ""
    _first: int = 0
    _end: int = 0
    _begun_s: float = 0.0
    _next_s: float = field(init=False)
    _is_shown: bool = False

    def __post_init__(self) -> None:
        self._next_s = self.clock() + _BEGIN_S

    def begin(self, name: str, first: int, end: int) -> None:
        """Begin with the offsets from `first` to before `end` of a partition."""
        self._name, self._first, self._end, self._begun_s = name, first, end, self.clock()

    def reach(self, offset: int) -> None:
        """Say that everything before the offset is read."""
        if self.stream is None or (now := self.clock()) < self._next_s:
            return
        self._next_s = now + _STEP_S
        self._is_shown = True
        self.stream.write(f"{_ERASED}{self._text(offset, now - self._begun_s)}")
        self.stream.flush()

    def close(self) -> None:
        """Erase the line."""
        if self.stream is not None and self._is_shown:
            self.stream.write(_ERASED)
            self.stream.flush()

    def _text(self, offset: int, seconds: float) -> str:
        done, total = offset - self._first, self._end - self._first
        shown = f"{self._name}: {done:,} of {total:,} offsets"
        if done <= 0 or seconds <= 0:
            return shown
        rate = done / seconds
        return f"{shown}, {rate:,.0f} a second, {human_duration((total - done) / rate)} left"


def terminal_progress() -> ReadingProgress:
    """Return progress that is shown if standard error is a terminal and standard output is not."""
    is_shown = sys.stderr is not None and sys.stderr.isatty() and not sys.stdout.isatty()
    return ReadingProgress(sys.stderr if is_shown else None)
