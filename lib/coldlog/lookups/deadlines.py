"""deadlines: how does work that may hang end in time, and harm no other work?

Work runs in child processes, because only a process can be stopped wherever it hangs: at its deadline it is killed. One
child does one piece at a time; while all of them are busy and nothing comes, more are made, so that pieces that hang do
not hold up the others.
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
    """Why a piece has none."""

    EXPIRED = "its deadline came first"
    DIED = "its process died"


_PATIENCE_S = 0.05
"""So long nothing comes before another child is made."""
_PR_SET_PDEATHSIG = 1
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Piece(Generic[_Result]):
    """Something to do, until `deadline`, in seconds of time.time()."""

    run: Callable[[], _Result]
    deadline: float


@dataclass(slots=True)
class _Child:
    process: ForkProcess
    connection: Connection
    piece: int | None = None

    def kill(self) -> None:
        """Wherever it is."""
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
        return bool(self.waiting) or any(each.piece is not None for each in self.children)

    def expire(self, now: float) -> Iterator[int]:
        """Pieces whose time is over: those that wait are dropped, the children of the others killed."""
        late = []
        while self.waiting and self.pieces[self.waiting[0]].deadline <= now:
            late.append(self.waiting.popleft())
        for child in [each for each in self.children if each.piece is not None]:
            assert child.piece is not None
            if self.pieces[child.piece].deadline <= now:
                late.append(child.piece)
                self.dismiss(child)
        yield from late

    def hand_out(self, now: float) -> None:
        """Gives idle children work, and makes more of them where that does not help."""
        idle = [each for each in self.children if each.piece is None]
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
        not_its = [ours, *(each.connection for each in self.children)]
        process = _fork.Process(target=_work, args=(self.pieces, its, not_its), daemon=False)
        process.start()
        its.close()
        self.children.append(_Child(process, ours))
        return self.children[-1]

    def dismiss(self, child: _Child) -> None:
        self.children.remove(child)
        child.kill()

    def next_event(self, now: float) -> float:
        """Seconds until something must be looked at, if nothing comes."""
        busy = [self.pieces[each.piece].deadline for each in self.children if each.piece is not None]
        times = busy + [self.pieces[number].deadline for number in islice(self.waiting, 1)]
        if self.waiting and len(self.children) < self.most:
            times.append(now + _PATIENCE_S)
        return max(0.0, min(times) - now)

    def receive(self, seconds: float) -> Iterator[tuple[int, _Result | NoResult]]:
        """What comes within that time."""
        busy = {each.connection: each for each in self.children if each.piece is not None}
        for connection in wait(list(busy), seconds):
            child = busy[connection]  # type: ignore[index]  # of those that were given
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
    """(number of the piece, its result) as they come; what a piece raises is raised here.

    Those with the earliest deadline begin first.
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
    """Has this process killed when its parent ends, however that ends; where the system can do that (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _work(pieces: Sequence[Piece[_Result]], connection: Connection, not_ours: Sequence[Connection]) -> None:
    end_with_parent()
    for each in not_ours:
        each.close()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            number = connection.recv()
            result: object = None
            error: BaseException | None = None
            try:
                result = pieces[number].run()
            except BaseException as failed:  # noqa: BLE001 - handed over whole, and raised by the parent
                error = failed
            connection.send((result, error))
    os._exit(0)
