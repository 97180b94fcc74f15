"""Plan the partitions of a fetch, and read their slices.

The event loop plans, reads and sends a small fetch itself if it need not wait for a store: the tables are in memory,
and the logs are files that the system has in memory (`without_waiting`). To hand work over to a thread and back costs
as much as to send a megabyte.

Otherwise, from a file system, one thread plans all partitions, reads them one after another and begins to send the
answer. What it has not begun to read after `_PATIENCE_S` is read as from a bucket: all slices at the same time, each in
a thread of its own, each with its own deadline. The same happens if no thread would stay free.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

from kio.schema.errors import ErrorCode

from coldlog.archive.stores.without_waiting import WouldWaitError, without_waiting
from coldlog.errors import ColdlogError
from coldlog.records.fetch.slices import LogSlice
from coldlog.serve.answers.fetch_plans import AskedRecords, Found, PartitionPlan, no_records, plan_partitions
from coldlog.serve.context import Context
from coldlog.serve.read_ahead import AheadSlice, ReadAhead
from coldlog.serve.threads import QueueFullError

_PATIENCE_S = 0.1
_MOST_PARTITIONS, _MOST_BYTES = 16, 4 << 20
"""Of a fetch that the event loop answers. If nobody has checked its batches, that takes about a millisecond."""


class FetchWork:
    """The plans of one fetch, and what is read for them. `ahead` has what is read ahead for the connection."""

    def __init__(self, context: Context, asked: AskedRecords, ahead: ReadAhead | None) -> None:
        self._context, self._asked, self._ahead = context, asked, ahead
        self._left: deque[int] = deque()
        """The numbers of the partitions whose slices nobody reads yet."""
        self._found: dict[int, Found] = {}
        self._together: asyncio.Task[None] | None = None
        self._alone: frozenset[int] = frozenset()
        """Those whose slices are read each in a thread of its own."""
        self._turn = threading.Lock()
        self._is_planned = self._is_claimed = self._is_finishing = False
        """`_is_claimed`: the event loop has the answer, `_is_finishing`: the thread that has read everything has it."""
        self.plans: Sequence[PartitionPlan] = ()
        self.throttle_ms = 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to be read."""
        return all(not isinstance(each.plan, LogSlice) or at in self._found for at, each in enumerate(self.plans))

    async def begin(self, finish: Callable[[], None]) -> None:
        """Plan all partitions, and read them if that is quick; then `finish` was called where they were read. Raise
        `TimeoutError` if they are not planned in time."""
        context, ahead = self._context, await self._find_ahead()
        if self._does_at_once(ahead):
            finish()
            return
        reading = None
        if context.is_local:
            reading = context.fetch_threads.run_spare(lambda: self._do(ahead, finish), context.request_seconds)
        if reading is not None:
            await self._read_together(reading)
        elif not self._is_planned:
            await context.look_up(lambda: self._plan(ahead))
        self._alone = frozenset(iter(self._next, None))

    def get(self, number: int) -> Found:
        """Return what a partition gets, by its number in the fetch. It must be read."""
        plan = self.plans[number].plan
        return self._found[number] if isinstance(plan, LogSlice) else plan

    async def find(self, number: int) -> Found:
        """Wait until the partition is read, and return what it gets."""
        planned, context = self.plans[number], self._context
        if number in self._found or not isinstance(planned.plan, LogSlice):
            return self.get(number)
        try:
            if planned.taken is None and number not in self._alone and self._together is not None:
                await self._together
                return self._found[number]
            async with asyncio.timeout(context.request_seconds):
                return await self._find_alone(self._asked.partitions[number].place, planned.plan, planned.taken)
        except QueueFullError:
            return no_records(planned.plan)  # The client asks again.
        except TimeoutError:
            request, seconds = planned.plan.request, f"{context.request_seconds:g} s"
            context.report_once(f"{request}", f"{request}: the archive has not answered within {seconds}")
            return ErrorCode.kafka_storage_error

    async def _find_ahead(self) -> list[AheadSlice | None]:
        """Return what was read ahead for each partition."""
        partitions, ahead, level = self._asked.partitions, self._ahead, self._asked.level
        if ahead is None or not ahead.has_any:
            return [None] * len(partitions)
        async with asyncio.timeout(self._context.request_seconds):
            return [await ahead.find(each.place, each.offset, level) for each in partitions]

    async def _read_together(self, reading: Coroutine[None, None, None]) -> None:
        """Wait until all is planned, and read; or planned, and not read in `_PATIENCE_S`."""
        self._together = together = asyncio.create_task(reading)
        try:
            await asyncio.wait([together], timeout=_PATIENCE_S)
            while not self._is_planned and not together.done():
                await asyncio.wait([together], timeout=_PATIENCE_S)
            with self._turn:
                self._is_claimed = not self._is_finishing
            if self._is_finishing:
                await together
        except asyncio.CancelledError:
            together.cancel()
            raise
        except TimeoutError as hangs:
            raise ConnectionAbortedError("a part of the answer was sent, and the rest hangs") from hangs
        if not self._is_planned:
            together.result()

    async def _find_alone(self, place: tuple[str, int], plan: LogSlice, taken: AheadSlice | None) -> Found:
        context = self._context
        if self._ahead is not None and taken is not None:
            found = await self._ahead.take(place, taken, plan)
            if found is not None:
                return found
        return await context.read(lambda: _read(context, plan, self._asked.looks))

    def _does_at_once(self, ahead: Sequence[AheadSlice | None]) -> bool:
        """Plan and read without waiting; return whether everything is read. This is not tried if there is a read quota:
        a plan is charged to it, and a thread may have to plan again."""
        context, count = self._context, len(self._asked.partitions)
        may_try = context.is_local and context.quota.is_unlimited
        if not may_try or count > _MOST_PARTITIONS or any(ahead):
            return False
        try:
            with without_waiting():
                self._plan(ahead)
                if sum(each.plan.size_bytes for each in self.plans if isinstance(each.plan, LogSlice)) > _MOST_BYTES:
                    return False
                while self._left:
                    self._found[self._left[0]] = self._read(self._left[0])
                    self._left.popleft()
        except WouldWaitError:
            return False
        return True

    def _read(self, number: int) -> Found:
        plan = self.plans[number].plan
        assert isinstance(plan, LogSlice)
        return _read(self._context, plan, self._asked.looks)

    def _plan(self, ahead: Sequence[AheadSlice | None]) -> None:
        if self._is_planned:
            return
        self.plans, self.throttle_ms = plan_partitions(self._context, self._asked, ahead)
        self._left.extend(
            at for at, each in enumerate(self.plans) if isinstance(each.plan, LogSlice) and each.taken is None
        )
        self._is_planned = True

    def _do(self, ahead: Sequence[AheadSlice | None], finish: Callable[[], None]) -> None:
        self._plan(ahead)
        for number in iter(self._next, None):
            self._found[number] = self._read(number)
        with self._turn:
            self._is_finishing = not self._is_claimed and self.has_ended
        if self._is_finishing:
            finish()

    def _next(self) -> int | None:
        try:
            return self._left.popleft()
        except IndexError:
            return None


def _read(context: Context, plan: LogSlice, looks: int) -> Found:
    """Read a slice."""
    began: float | None = time.monotonic()
    try:
        return context.view.read(plan, looks, as_files=context.is_local)
    except WouldWaitError:
        began = None  # A thread reads it.
        raise
    except ColdlogError as failed:
        context.report_once(f"{plan.request}", f"{plan.request}: {failed}")
        return ErrorCode.kafka_storage_error
    finally:
        if began is not None:
            context.metrics.read_seconds.observe(time.monotonic() - began)
