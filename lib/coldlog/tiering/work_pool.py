"""Run work in threads whose number may change while they run.

The size of the pool is asked before each piece of work is begun, and at least each second. A larger size begins more at
once; with a smaller one, the pieces that run are finished, and none is begun until fewer run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Generic, Self, TypeVar

_Work = TypeVar("_Work")
_TICK_S = 1.0
_MOST_THREADS = 1024
"""The greatest size that the settings allow. A thread is made when there is work for it."""


class WorkPool(Generic[_Work]):
    """Pieces of work that wait or run. Use it in one thread."""

    def __init__(self, size: Callable[[], int], name: str) -> None:
        self._size = size
        self._threads = ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix=name)
        self._waiting = deque[tuple[Callable[[_Work], None], _Work]]()
        self._under_way: dict[Future[None], _Work] = {}

    @property
    def unfinished_count(self) -> int:
        """Return how many pieces wait or run."""
        return len(self._waiting) + len(self._under_way)

    def add(self, run: Callable[[_Work], None], pieces: Iterable[_Work]) -> None:
        """Run these pieces, after those that wait already."""
        self._waiting.extend((run, piece) for piece in pieces)
        self._begin()

    def wait(self) -> list[_Work]:
        """Wait for the end of pieces, at most a second, and return them. Raise what one of them raised."""
        self._begin()
        ended, _ = wait(self._under_way, timeout=_TICK_S, return_when=FIRST_COMPLETED)
        pieces = [self._under_way.pop(future) for future in ended]
        for future in ended:
            future.result()
        self._begin()
        return pieces

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Begin nothing more, and wait for what runs."""
        self._waiting.clear()
        self._threads.shutdown(wait=True)

    def _begin(self) -> None:
        while self._waiting and len(self._under_way) < self._size():
            run, piece = self._waiting.popleft()
            self._under_way[self._threads.submit(run, piece)] = piece
