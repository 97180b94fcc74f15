"""Fetch the next ranges of an object in advance while it is read in sequence.

A store may need tens of milliseconds for an answer and give each connection a fraction of the bandwidth. Then a
sequential read is fast only if the next ranges are requested while the last one is processed. A reader of a log reads
windows of some MiB. Each window begins inside or directly after the previous one (a cut batch is read again with the
next window).

A sequential read is called a walk. A read of at least 1 MiB begins a walk if it is at the beginning of an object, if
its reader gives `until`, or if it continues the previous read. From then on the following blocks of `part_bytes` are
fetched concurrently, at most `read_ahead_bytes` and none after `until`. The next read copies its overlap with the last
window from that window and the rest from the blocks. So a walk holds at most `read_ahead_bytes` and two windows, the
last and the next, and requests no byte twice. Small random reads begin no walk; each is one request.

A walk reads one version of the object: if the object is replaced, the read is refused (OBJECT_UNREADABLE). A thread has
one walk at a time. Reading another object in large windows ends the walk and drops its pending requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

WALKED_BYTES = 1 << 20
"""Shorter reads are those of single batches and small files."""

StartPart = Callable[[int, memoryview], Future[None]]
"""Starts to fill the memory with the bytes at a position of the walk's object, in the version that the walk reads."""


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
    """One object that is read in sequence up to `until` (None: its end); `window` is the last returned window, which
    begins at `window_start`."""

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
        """The end of the window."""
        return self.window_start + len(self.window)

    @property
    def _bound(self) -> int:
        return self.object_bytes if self.until is None else min(self.object_bytes, self.until)

    @property
    def is_done(self) -> bool:
        """The window reaches the end of the walk."""
        return self.window_stop >= self._bound

    def continues(self, position: int) -> bool:
        """A read at `position` continues the walk."""
        return self.window_start < position <= self.window_stop

    def read(self, position: int, length: int, until: int | None) -> memoryview:
        """Read at a position that continues the walk; `until` is its new end. After an error the walk is unusable."""
        self.until = None if until is None else max(until, position + length)
        start, stop = self.window_stop, max(self.window_stop, min(position + length, self.object_bytes))
        whole = np.empty(stop - position, dtype=np.uint8).data
        whole[: start - position] = self.window[position - self.window_start :]
        while start < stop:
            self._start_blocks()
            block, end = self._blocks[0], min(self._blocks[0].stop, stop)
            block.filled.result()
            whole[start - position : end - position] = block.content[start - block.start : end - block.start]
            if end == block.stop:
                self._blocks.popleft()
            start = end
        self.window, self.window_start = whole.toreadonly(), position
        self._start_blocks()
        return self.window[:length]

    def end(self) -> None:
        """Cancel the pending requests."""
        for block in self._blocks:
            block.filled.cancel()
        self._blocks.clear()

    def _start_blocks(self) -> None:
        """Start as many blocks as fit into `ahead_bytes`, at least one."""
        while self._started_stop < self._bound:
            stop = min(self._started_stop + self.block_bytes, self._bound)
            if self._blocks and stop - self._blocks[0].start > self.ahead_bytes:
                return
            content = np.empty(stop - self._started_stop, dtype=np.uint8).data
            self._blocks.append(_Block(self._started_stop, content, self.start_part(self._started_stop, content)))
            self._started_stop = stop
