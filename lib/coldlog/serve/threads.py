"""Run calls in threads, each with a deadline.

A call that has not begun at its deadline never does. A thread whose call has not returned by then is given up: a new
one takes its place, so that a store that hangs does not hold up what else is asked. It ends when its call returns, or
at the call's next `check_wanted`. At most `_MOST_GIVEN_UP` threads are given up at a time; calls that find no thread
after that wait for their deadline.

The threads do not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

_MOST_GIVEN_UP = 100
_ANY_NUMBER = 1 << 31
_Found = TypeVar("_Found")
_here = threading.local()
"""`call`: what this thread works on."""


class _Call:
    """One call, and the future of its answer, which belongs to the event loop."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.has_returned = self.is_given_up = False

    def finish(self, found: object, failure: BaseException | None) -> None:
        if self.answer.done():
            return
        if failure is None:
            self.answer.set_result(found)
        else:
            self.answer.set_exception(failure)


def check_wanted() -> None:
    """Raise `TimeoutError` in a thread whose call is given up: when a store that hung answers again, what nobody waits
    for would take its time."""
    call: _Call | None = getattr(_here, "call", None)
    if call is not None and call.is_given_up:
        raise TimeoutError("nobody waits for the answer")


class QueueFullError(TimeoutError):
    """Too many calls wait for a thread; later there may be room."""


class Threads:
    """At most `count` threads that work on calls in the order in which they are made. At most `max_pending` wait."""

    def __init__(self, name: str, count: int, max_pending: int = _ANY_NUMBER) -> None:
        self._name = name
        self._count = count
        self._max_pending = max_pending
        self._changed = threading.Condition()
        self._waiting: OrderedDict[_Call, None] = OrderedDict()
        self._threads = self._idle = self._given_up = 0
        self._is_closed = False
        self.expired = 0
        """How many calls did not return in time."""
        self.refused = 0
        """How many calls found the queue full."""
        self.busy_seconds = 0.0
        """How long threads have worked on calls that have returned."""

    @property
    def waiting(self) -> int:
        """How many calls have no thread yet."""
        return len(self._waiting)

    @property
    def count(self) -> int:
        """How many threads there may be."""
        return self._count

    @property
    def idle_share(self) -> float:
        """The share of threads that have nothing to do."""
        return max(0.0, 1 - (self._threads - self._idle) / self._count)

    @property
    def given_up(self) -> int:
        """How many threads hang."""
        return self._given_up

    async def run(self, call: Callable[[], _Found], seconds: float) -> _Found:
        """Return what the call returns. Raise `TimeoutError` if that takes longer than `seconds`, `QueueFullError` if
        too many wait."""
        if self._is_full():
            self.refused += 1
            raise QueueFullError("too many calls wait for a thread")
        asked = _Call(call)
        with self._changed:
            self._put(asked)
        found: _Found = await self._wait(asked, seconds)
        return found

    def run_spare(self, call: Callable[[], _Found], seconds: float) -> Coroutine[None, None, _Found] | None:
        """Begin a call that nobody has asked for, and return what awaits its answer; None if no thread would stay free
        beside it."""
        asked = _Call(call)
        with self._changed:
            if self._threads - self._idle + len(self._waiting) >= self._count - 1:
                return None
            self._put(asked)
        return self._wait(asked, seconds)

    async def _wait(self, asked: _Call, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await asked.answer
        except (TimeoutError, asyncio.CancelledError) as ended:
            self.expired += isinstance(ended, TimeoutError)
            self._give_up(asked)
            raise

    def resize(self, count: int, max_pending: int = _ANY_NUMBER) -> None:
        """Go on with so many threads, and so many calls that may wait."""
        with self._changed:
            self._count, self._max_pending = count, max_pending
            for _ in range(min(len(self._waiting), self._count - self._threads)):
                self._start_thread()
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads that have nothing to do; the others end after their call."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _is_full(self) -> bool:
        with self._changed:
            return len(self._waiting) >= max(self._max_pending, self._idle)

    def _put(self, asked: _Call) -> None:
        self._waiting[asked] = None
        if self._idle < len(self._waiting) and self._threads < self._count:
            self._start_thread()
        self._changed.notify()

    def _give_up(self, asked: _Call) -> None:
        with self._changed:
            if asked in self._waiting:
                del self._waiting[asked]
            elif not asked.has_returned and self._given_up < _MOST_GIVEN_UP:
                asked.is_given_up = True
                self._given_up += 1
                self._threads -= 1
                if self._idle < len(self._waiting):
                    self._start_thread()

    def _start_thread(self) -> None:
        self._threads += 1
        self._idle += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        # A thread that waits keeps neither its last call nor what this found: that may be large, or an open file.
        while self._call_next():
            _here.call = None

    def _call_next(self) -> bool:
        """Work on the next call; return whether this thread goes on."""
        asked = self._next()
        if asked is None:
            return False
        found, failure, _here.call, began = None, None, asked, time.monotonic()
        try:
            found = asked.call()
        except BaseException as failed:  # noqa: BLE001 - raised where the answer is awaited
            failure = failed
        with self._changed:
            asked.has_returned = True
            self.busy_seconds += time.monotonic() - began
            if asked.is_given_up:
                self._given_up -= 1
                return False
            # From now on, so that the next call does not start another thread.
            self._idle += 1
        with suppress(RuntimeError):  # The loop has ended.
            asked.loop.call_soon_threadsafe(asked.finish, found, failure)
        return True

    def _next(self) -> _Call | None:
        with self._changed:
            while not self._waiting and not self._is_closed and self._threads <= self._count:
                self._changed.wait()
            self._idle -= 1
            if self._is_closed or self._threads > self._count:
                self._threads -= 1
                return None
            return self._waiting.popitem(last=False)[0]
