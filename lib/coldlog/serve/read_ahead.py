"""Read the slice that a consumer asks for next while it still receives the one before.

A consumer asks for the next offset of a partition when it has the last answer, so each fetch from a bucket costs a
round trip. A request that begins where the connection's previous answer for the partition ended, at most `KEPT_S`
later, is sequential. After its answer the next slice is planned with the partition's limit and read in a fetch thread.
The next request is planned as without it, from the tables of that moment and within its own limits. The bytes are its
answer if it is planned as the same batches of the same segment, or as the first of them; it waits for a read that is
under way. In all other cases it reads by itself, also if the read ahead has failed, of which nobody hears.

A slice is read ahead only if a fetch thread stays free, if it fits into `serve.read_ahead_bytes` together with all
others, and if the read quota allows it at once. It is charged then, and not again when a request takes it or reads it
anew because it failed. There is one a partition of a connection. It is dropped after `KEPT_S`, with the connection, or
when the partition is asked for another offset. A read that is dropped under way counts as memory until it has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from coldlog.errors import ColdlogError
from coldlog.model.fetch import FetchedRecords, FetchFailure, FetchRequest
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.serve.threads import check_wanted

if TYPE_CHECKING:
    from coldlog.serve.context import Context

KEPT_S = 10.0
_MOST_PLACES = 1000
"""Of so many partitions a connection's last offsets are known."""
_Place = tuple[str, int]


class ReadAheadBytes:
    """The memory that slices of all connections share. Threads share it.

    `limit_bytes` may change; 0 reads nothing ahead."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._turn = threading.Lock()

    def reserve(self, ahead: AheadSlice, size_bytes: int) -> bool:
        """Reserve memory for a slice; return False if there is not enough, or nobody wants the slice any more."""
        with self._turn:
            if ahead.is_released or self.held_bytes + size_bytes > self.limit_bytes:
                return False
            ahead.held_bytes = size_bytes
            self.held_bytes += size_bytes
            return True

    def release(self, ahead: AheadSlice) -> None:
        """Return what a slice has reserved, once."""
        with self._turn:
            self.held_bytes -= ahead.held_bytes
            ahead.held_bytes, ahead.is_released = 0, True


@dataclass(slots=True, eq=False, kw_only=True)
class AheadSlice:
    """A slice that is read ahead for a request; `planned` is None until it is planned, reserved and charged."""

    request: FetchRequest
    planned: LogSlice | None = None
    is_planned: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Task[FetchedBatches | None] = field(init=False)
    expiry: asyncio.TimerHandle = field(init=False)
    held_bytes: int = 0
    is_released: bool = False
    is_dropped: bool = False

    @property
    def found(self) -> FetchedBatches | None:
        """Return what was read; None if the read failed or has not ended."""
        if not self.reading.done() or self.reading.cancelled() or self.reading.exception() is not None:
            return None
        return self.reading.result()

    def covers(self, plan: LogSlice) -> bool:
        """Whether a request that is planned so may get the slice, or the first batches of it."""
        planned = self.planned
        if planned is None or (plan.served, plan.bounds) != (planned.served, planned.bounds):
            return False
        # How many batches an interval gives depends on the limit; with batches the plan says it.
        limit = plan.request.max_bytes if plan.served.has_batches else planned.request.max_bytes
        if plan.request != replace(planned.request, max_bytes=limit) or len(plan.batches) > len(planned.batches):
            return False
        ours, theirs = (
            np.stack((each.position, each.size_bytes, each.base_offset, each.last_offset))[:, : len(plan.batches)]
            for each in (planned.batches, plan.batches)
        )
        return bool((ours == theirs).all())


class ReadAhead:
    """What is read ahead for one connection. Use it in the event loop's thread."""

    def __init__(self, context: Context, kept_s: float = KEPT_S) -> None:
        self._context = context
        self._kept_s = kept_s
        self._slices: dict[_Place, AheadSlice] = {}
        self._ends: OrderedDict[_Place, tuple[int, IsolationLevel, float]] = OrderedDict()
        """Where the last answer ended, and when it was made."""
        self._has_ended = False

    async def find(self, place: _Place, offset: int, level: IsolationLevel) -> AheadSlice | None:
        """Return the slice that was read ahead, or is, for a request of this offset. One for another is dropped."""
        ahead = self._slices.get(place)
        if ahead is None:
            return None
        if (ahead.request.offset, ahead.request.isolation_level) == (offset, level):
            await ahead.is_planned.wait()
            if ahead.planned is not None and (not ahead.reading.done() or ahead.found is not None):
                return ahead
        self._drop(place)
        return None

    async def take(self, place: _Place, ahead: AheadSlice, plan: LogSlice) -> FetchedBatches | None:
        """Return the batches of a plan that the slice covers; None if they could not be read ahead."""
        await asyncio.wait([ahead.reading])
        found = ahead.found
        if found is None:
            return None
        batches = first_batches(found, plan)
        self._context.metrics.read_ahead_hits.inc()
        self._context.metrics.read_ahead_unused_bytes.inc(max(0, found.size_bytes - batches.size_bytes))
        if self._slices.get(place) is ahead:
            del self._slices[place]
        ahead.expiry.cancel()
        self._context.read_ahead.release(ahead)
        return batches

    def go_on(self, place: _Place, offset: int, max_bytes: int, found: FetchedBatches) -> None:
        """Note where the answer to a request of `offset` ends; read on from there if that was sequential.
        `max_bytes` is the limit of the partition in the next request."""
        self._drop(place)
        log_slice, now_s = found.log_slice, asyncio.get_running_loop().time()
        following = min(int(log_slice.batches.last_offset[-1]), log_slice.bounds.to_offset) + 1
        level = log_slice.request.isolation_level
        before = self._ends.pop(place, None)
        self._ends[place] = following, level, now_s
        if len(self._ends) > _MOST_PLACES:
            self._ends.popitem(last=False)
        if before is not None and before[:2] == (offset, level) and now_s - before[2] <= self._kept_s:
            self._begin(place, replace(log_slice.request, offset=following, max_bytes=max_bytes))

    def end(self) -> None:
        """Drop everything: the connection has ended."""
        self._has_ended = True
        for place in list(self._slices):
            self._drop(place)

    def _begin(self, place: _Place, request: FetchRequest) -> None:
        context, loop = self._context, asyncio.get_running_loop()
        if self._has_ended or context.is_stopping or not context.read_ahead.limit_bytes:
            return
        ahead = AheadSlice(request=request)
        reading = context.fetch_threads.run_spare(partial(_read, context, loop, ahead), context.request_seconds)
        if reading is None:
            return
        self._slices[place] = ahead
        ahead.reading = loop.create_task(_without_errors(reading))
        ahead.reading.add_done_callback(lambda _: self._finish(ahead))
        ahead.expiry = loop.call_later(self._kept_s, self._expire, place, ahead)

    def _finish(self, ahead: AheadSlice) -> None:
        ahead.is_planned.set()
        if ahead.found is None or ahead.is_dropped:
            self._release_unused(ahead)

    def _expire(self, place: _Place, ahead: AheadSlice) -> None:
        if self._slices.get(place) is ahead:
            self._drop(place)

    def _drop(self, place: _Place) -> None:
        ahead = self._slices.pop(place, None)
        if ahead is not None:
            ahead.is_dropped = True
            ahead.expiry.cancel()
            if ahead.reading.done():
                self._release_unused(ahead)

    def _release_unused(self, ahead: AheadSlice) -> None:
        if ahead.found is not None and not ahead.is_released:
            self._context.metrics.read_ahead_unused_bytes.inc(ahead.found.size_bytes)
        self._context.read_ahead.release(ahead)


def first_batches(found: FetchedBatches, plan: LogSlice) -> FetchedBatches:
    """Return those batches of a slice that was read which a plan that it covers has, with the plan's transactions."""
    count = len(plan.batches) if plan.served.has_batches else len(found.log_slice.batches)
    pieces, part = found.pieces, found.log_slice
    if count < len(part.batches):
        part = part.first_batches(count)
        pieces = (pieces[0][: part.size_bytes],)
    return FetchedBatches(pieces=pieces, log_slice=replace(part, aborted=plan.aborted, ends=plan.ends))


def _read(context: Context, loop: asyncio.AbstractEventLoop, ahead: AheadSlice) -> FetchedBatches | None:
    """Plan a slice, and read it if memory and quota allow it. Runs in a fetch thread."""
    try:
        planned = context.view.plan(ahead.request)
        check_wanted()
        if not isinstance(planned, LogSlice) or not context.read_ahead.reserve(ahead, planned.size_bytes):
            return None
        if not context.quota.charge_now(planned.size_bytes):
            return None
        ahead.planned = planned
    finally:
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(ahead.is_planned.set)
    with context.metrics.read_seconds.time():
        found = context.view.read(planned)
    return _alone(found) if _is_of(found, planned) else None


def _is_of(found: FetchedBatches | FetchedRecords | FetchFailure, planned: LogSlice) -> TypeGuard[FetchedBatches]:
    """Whether these are batches of the plan, and not of another one that was made because its log is missing or
    damaged."""
    if not isinstance(found, FetchedBatches):
        return False
    part = found.log_slice
    return part.request == planned.request and part.served == planned.served and part.bounds == planned.bounds


def _alone(found: FetchedBatches) -> FetchedBatches:
    """Return the batches without bytes around them: a layout with chunks reads whole chunks."""
    pieces = tuple(
        piece if memoryview(piece.obj).nbytes <= len(piece) else memoryview(bytes(piece)) for piece in found.pieces
    )
    return replace(found, pieces=pieces)


async def _without_errors(reading: Coroutine[None, None, FetchedBatches | None]) -> FetchedBatches | None:
    try:
        return await reading
    except (TimeoutError, ColdlogError):
        return None
