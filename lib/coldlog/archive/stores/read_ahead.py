"""read_ahead: which bytes behind those that were just read are already on their way?

A store that takes tens of milliseconds to answer, and gives each connection a fraction of the bandwidth, is walked
through fast only if the next ranges are asked for while the last is looked at. Who walks a log reads windows of some
MiB, each beginning inside or right behind the one before (a batch that was cut is read again with the next).

A read of 1 MiB or more at the beginning of an object, one whose reader says `until` where it reads on, or one that goes
on from the read before it, begins a walk: from then on blocks of `part_bytes` behind it are fetched at the same time,
`read_ahead_bytes` of them at most, and none behind `until`. What a read meets of the window before it is copied from
there, the rest from the blocks. So a walk holds `read_ahead_bytes` and two windows at most, the last and the next, and
asks for no byte twice. Small reads here and there begin none: they are one request each.

All of a walk is of one content: an object that is replaced meanwhile is refused (OBJECT_UNREADABLE). A thread has one
walk at a time; reading another object in large windows ends it, and what was under way is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

WALKED_BYTES = 1 << 20
"""Shorter reads are of single batches and small files."""

StartPart = Callable[[int, memoryview], Future[None]]
"""Begins to fill the memory with the bytes from a position on of the object, and of the content, that is walked."""


@dataclass(frozen=True, slots=True)
class _Block:
    start: int
    content: memoryview
    filled: Future[None]

    @property
    def stop(self) -> int:
        return self.start + len(self.content)


@dataclass(slots=True, kw_only=True)
class Walk:
    """One object that is read from front to back, up to `until` (None: its end); `window` is what was given last, from
    `window_start` on."""

    start_part: StartPart
    object_bytes: int
    until: int | None
    window: memoryview
    window_start: int
    block_bytes: int
    ahead_bytes: int
    _blocks: deque[_Block] = field(default_factory=deque, init=False)
    _started_stop: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._started_stop = self.window_stop
        self._start_blocks()

    @property
    def window_stop(self) -> int:
        """Where the window ends."""
        return self.window_start + len(self.window)

    @property
    def _bound(self) -> int:
        return self.object_bytes if self.until is None else min(self.object_bytes, self.until)

    @property
    def is_done(self) -> bool:
        """The window ends where the walk does."""
        return self.window_stop >= self._bound

    def goes_on(self, position: int) -> bool:
        """A read from there continues the walk."""
        return self.window_start < position <= self.window_stop

    def read(self, position: int, length: int, until: int | None) -> memoryview:
        """Bytes from a position at which the walk goes on, up to `until`; behind an error it cannot go on."""
        self.until = None if until is None else max(until, position + length)
        at, stop = self.window_stop, max(self.window_stop, min(position + length, self.object_bytes))
        whole = np.empty(stop - position, dtype=np.uint8).data
        whole[: at - position] = self.window[position - self.window_start :]
        while at < stop:
            self._start_blocks()
            block, end = self._blocks[0], min(self._blocks[0].stop, stop)
            block.filled.result()
            whole[at - position : end - position] = block.content[at - block.start : end - block.start]
            if end == block.stop:
                self._blocks.popleft()
            at = end
        self.window, self.window_start = whole.toreadonly(), position
        self._start_blocks()
        return self.window[:length]

    def end(self) -> None:
        """Drops what is under way."""
        for block in self._blocks:
            block.filled.cancel()
        self._blocks.clear()

    def _start_blocks(self) -> None:
        """As many as fit into the bound, one at least."""
        while self._started_stop < self._bound:
            stop = min(self._started_stop + self.block_bytes, self._bound)
            if self._blocks and stop - self._blocks[0].start > self.ahead_bytes:
                return
            content = np.empty(stop - self._started_stop, dtype=np.uint8).data
            self._blocks.append(_Block(self._started_stop, content, self.start_part(self._started_stop, content)))
            self._started_stop = stop
