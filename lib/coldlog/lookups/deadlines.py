"""Run pieces of work that may hang, each until its deadline and without harm to the others.

Work runs in child processes, because only a process can be stopped wherever it hangs: it is killed at its deadline. A
child does one piece at a time. If all children are busy and no result arrives, more children are made, so that pieces
that hang do not hold up the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class NoResult(Enum):
    """Why a piece has no result."""

    EXPIRED = "its deadline came first"
    DIED = "its process died"


_PATIENCE_S = 0.05
"""Make another child if no result arrives within this time."""
_PR_SET_PDEATHSIG = 1
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Piece(Generic[_Result]):
    """Work to do until `deadline`, in seconds of time.time()."""

    run: Callable[[], _Result]
    deadline: float


@dataclass(slots=True)
class _Child:
    process: ForkProcess
    connection: Connection
    piece: int | None = None

    def kill(self) -> None:
        """Kill the child wherever it is."""
        self.process.kill()
        self.process.join()
        self.connection.close()


@dataclass(slots=True)
class _Crew(Generic[_Result]):
    pieces: Sequence[Piece[_Result]]
    most: int
    waiting: deque[int]
    children: list[_Child] = field(default_factory=list)
    last_news: float = 0.0

    @property
    def is_at_work(self) -> bool:
        return bool(self.waiting) or any(child.piece is not None for child in self.children)

    def expire(self, now: float) -> Iterator[int]:
        """Yield the pieces whose deadline has passed: drop those that wait, kill the children that run the others."""
        late = []
        while self.waiting and self.pieces[self.waiting[0]].deadline <= now:
            late.append(self.waiting.popleft())
        for child in [child for child in self.children if child.piece is not None]:
            assert child.piece is not None
            if self.pieces[child.piece].deadline <= now:
                late.append(child.piece)
                self.dismiss(child)
        yield from late

    def hand_out(self, now: float) -> None:
        """Give pieces to idle children; make more children if there is none and none may finish soon."""
        idle = [child for child in self.children if child.piece is None]
        while self.waiting and (idle or self._may_grow(now)):
            child = idle.pop() if idle else self._hire()
            child.piece = self.waiting.popleft()
            child.connection.send(child.piece)

    def _may_grow(self, now: float) -> bool:
        if len(self.children) >= self.most:
            return False
        is_stuck = now - self.last_news > _PATIENCE_S
        if is_stuck:
            self.last_news = now
        return is_stuck or len(self.children) < len(os.sched_getaffinity(0))

    def _hire(self) -> _Child:
        ours, its = _fork.Pipe()
        not_its = [ours, *(child.connection for child in self.children)]
        process = _fork.Process(target=_work, args=(self.pieces, its, not_its), daemon=False)
        process.start()
        its.close()
        self.children.append(_Child(process, ours))
        return self.children[-1]

    def dismiss(self, child: _Child) -> None:
        self.children.remove(child)
        child.kill()

    def next_event(self, now: float) -> float:
        """Return the seconds until the next deadline, or until another child may be made."""
        busy = [self.pieces[child.piece].deadline for child in self.children if child.piece is not None]
        times = busy + [self.pieces[number].deadline for number in islice(self.waiting, 1)]
        if self.waiting and len(self.children) < self.most:
            times.append(now + _PATIENCE_S)
        return max(0.0, min(times) - now)

    def receive(self, seconds: float) -> Iterator[tuple[int, _Result | NoResult]]:
        """Yield the results that arrive within that time."""
        busy = {child.connection: child for child in self.children if child.piece is not None}
        for connection in wait(list(busy), seconds):
            child = busy[connection]  # type: ignore[index]  # wait() returns some of its arguments
            number, child.piece = child.piece, None
            assert number is not None
            try:
                result, error = child.connection.recv()
            except (EOFError, OSError):
                self.dismiss(child)
                yield number, NoResult.DIED
                continue
            if error is not None:
                raise error
            self.last_news = time.time()
            yield number, result


def run_pieces(pieces: Sequence[Piece[_Result]], most_at_once: int) -> Iterator[tuple[int, _Result | NoResult]]:
    """Yield (number of the piece, its result) in the order of arrival. Raise here what a piece raises.

    The pieces with the earliest deadline begin first.
    """
    in_order = sorted(range(len(pieces)), key=lambda number: pieces[number].deadline)
    crew = _Crew(pieces, most_at_once, deque(in_order), last_news=time.time())
    try:
        while crew.is_at_work:
            now = time.time()
            for number in crew.expire(now):
                yield number, NoResult.EXPIRED
            crew.hand_out(now)
            if crew.is_at_work:
                yield from crew.receive(crew.next_event(now))
    finally:
        for child in list(crew.children):
            crew.dismiss(child)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends in any way (only on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _work(pieces: Sequence[Piece[_Result]], connection: Connection, not_ours: Sequence[Connection]) -> None:
    end_with_parent()
    for inherited in not_ours:
        inherited.close()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            number = connection.recv()
            result: object = None
            error: BaseException | None = None
            try:
                result = pieces[number].run()
            except BaseException as failed:  # noqa: BLE001 - sent unchanged, and raised by the parent
                error = failed
            connection.send((result, error))
    os._exit(0)
