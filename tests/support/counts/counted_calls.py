"""Count what a function does, because counts, unlike times, are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def count_calls(run: Callable[[], object]) -> int:
    """The calls of functions, of Python's and of C's, that Python code makes while `run` runs in this thread."""
    count = 0

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


class CountedBytes:
    """Bytes that count how many of them were taken, in place of a memoryview."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self.taken = 0

    def __len__(self) -> int:
        return len(self._content)

    def __getitem__(self, place: int | slice) -> int | memoryview:
        taken = self._content[place]
        self.taken += 1 if isinstance(taken, int) else len(taken)
        return taken
