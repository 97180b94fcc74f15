"""Limit the warnings that strangers can cause, so that they cannot fill the disk with lines."""

from __future__ import annotations

import time
from collections.abc import Callable

from coldlog.runtime.console import Console

_MOST_LINES = 10
_MINUTE_S = 60.0


class LineLimit:
    """Ten warnings of one kind a minute. The first one of a later minute says how many were left out before."""

    def __init__(self, console: Console, seconds: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._seconds = seconds
        self._until = seconds() + _MINUTE_S
        self._count = 0

    def warn(self, text: str) -> None:
        """Write the text, unless too much was written in this minute."""
        if self._seconds() >= self._until:
            left_out = max(0, self._count - _MOST_LINES)
            self._until, self._count = self._seconds() + _MINUTE_S, 0
            text += f" ({left_out} more such lines were left out before)" if left_out else ""
        self._count += 1
        if self._count <= _MOST_LINES:
            self._console.warn(text)
