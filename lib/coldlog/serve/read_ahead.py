"""Read the slice that a consumer asks for next while it still receives the one before.

A consumer asks for the next offset of a partition when it has the last answer, so each fetch from a bucket costs a
round trip. A request that begins where the connection's previous answer for the partition ended, at most `KEPT_S`
later, is sequential. After the first one a slice is read ahead, after each further one another, up to `_MOST_SLICES`:
each is planned with the partition's limit from where the one before ends, and read in a fetch thread.

Each request is planned as if nothing were read ahead, from the tables of that moment and within its own limits. It
gets the bytes if its plan has the same batches of the same segment, or the first of them. It waits for a read that is
under way. Otherwise, or if the read ahead has failed, the request reads by itself. A failed read ahead is not
reported.

A slice is read ahead only if a fetch thread stays free, if it fits into `serve.read_ahead_bytes` together with all
others, and if the read quota allows it at once. It is charged then, and not again when a request takes it or reads it
anew because it failed. Slices are dropped if the partition is asked for another offset, or for none within `KEPT_S`,
and with the connection. A read that is dropped under way counts as memory until it has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
_MOST_SLICES = 4
"""Of a partition of a connection."""
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
            if ahead.is_dropped or ahead.is_released or self.held_bytes + size_bytes > self.limit_bytes:
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
    held_bytes: int = 0
    is_released: bool = False
    is_dropped: bool = False
    is_taken: bool = False

    @property
    def found(self) -> FetchedBatches | None:
        """Return what was read; None if the read failed or has not ended."""
        if not self.reading.done() or self.reading.cancelled() or self.reading.exception() is not None:
            return None
        return self.reading.result()

    def following(self) -> FetchRequest | None:
        """Return the request after this one; None if it is not known before the log is read."""
        if self.planned is None or not self.planned.served.has_batches:
            return None
        return replace(self.request, offset=_end_of(self.planned))

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


@dataclass(slots=True, eq=False, kw_only=True)
class _Sequence:
    """A partition of a connection: where its last answer ended and when it was made, how many requests in a row were
    sequential, and the slices after it. `request` is that of the first slice."""

    next_offset: int = -1
    level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    answered_s: float = 0.0
    count: int = 0
    request: FetchRequest | None = None
    slices: deque[AheadSlice] = field(default_factory=deque)
    expiry: asyncio.TimerHandle | None = None


class ReadAhead:
    """What is read ahead for one connection. Use it in the event loop's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sequences: OrderedDict[_Place, _Sequence] = OrderedDict()
        self._has_ended = False

    @property
    def has_any(self) -> bool:
        """Whether the last answer of any partition is known."""
        return bool(self._sequences)

    async def find(self, place: _Place, offset: int, level: IsolationLevel) -> AheadSlice | None:
        """Return the slice that was read ahead, or is, for a request of this offset. Those for others are dropped."""
        sequence = self._sequences.get(place)
        if sequence is None or not sequence.slices:
            return None
        ahead = sequence.slices[0]
        if (ahead.request.offset, ahead.request.isolation_level) == (offset, level):
            await ahead.is_planned.wait()
            if ahead.planned is not None and (not ahead.reading.done() or ahead.found is not None):
                return ahead
        self._drop(sequence)
        return None

    async def take(self, place: _Place, ahead: AheadSlice, plan: LogSlice) -> FetchedBatches | None:
        """Return the batches of a plan that the slice covers; None if they could not be read ahead. What follows is
        read meanwhile."""
        ahead.is_taken = True
        sequence = self._sequences.get(place)
        if sequence is not None and sequence.slices and sequence.slices[0] is ahead:
            sequence.slices.popleft()
            sequence.request = ahead.following()
            self._extend(sequence)
        if not ahead.reading.done():
            await asyncio.wait([ahead.reading])
        self._context.read_ahead.release(ahead)
        found = ahead.found
        if found is None:
            return None
        batches = first_batches(found, plan)
        self._context.metrics.read_ahead_hits.inc()
        self._context.metrics.read_ahead_unused_bytes.inc(max(0, found.size_bytes - batches.size_bytes))
        return batches

    def go_on(self, place: _Place, offset: int, max_bytes: int, found: FetchedBatches) -> None:
        """Note where the answer to a request of `offset` ends; read on from there if that was sequential.
        `max_bytes` is the limit of the partition in the next request."""
        if not self._context.read_ahead.limit_bytes:
            return
        loop, request, following = asyncio.get_running_loop(), found.log_slice.request, _end_of(found.log_slice)
        sequence, now_s, level = self._sequences.pop(place, None) or _Sequence(), loop.time(), request.isolation_level
        is_sequential = (sequence.next_offset, sequence.level) == (offset, level)
        if not is_sequential or now_s - sequence.answered_s > KEPT_S:
            self._drop(sequence)
            sequence = _Sequence()
        else:
            sequence.count += 1
        if sequence.slices and sequence.slices[0].request.offset != following:
            self._drop(sequence)
        sequence.next_offset, sequence.level, sequence.answered_s = following, level, now_s
        sequence.request = replace(request, offset=following, max_bytes=max_bytes)
        self._sequences[place] = sequence
        if len(self._sequences) > _MOST_PLACES:
            self._drop(self._sequences.popitem(last=False)[1])
        self._extend(sequence)
        if sequence.expiry is not None:
            sequence.expiry.cancel()
        sequence.expiry = loop.call_later(KEPT_S, self._drop, sequence)

    def end(self) -> None:
        """Drop everything: the connection has ended."""
        self._has_ended = True
        for sequence in self._sequences.values():
            self._drop(sequence)

    def _extend(self, sequence: _Sequence) -> None:
        """Begin to read one more slice, if its place is known and there may be one."""
        context, loop = self._context, asyncio.get_running_loop()
        request = sequence.slices[-1].following() if sequence.slices else sequence.request
        if self._has_ended or context.is_stopping or not context.read_ahead.limit_bytes or request is None:
            return
        if len(sequence.slices) >= min(sequence.count, _MOST_SLICES):
            return
        ahead = AheadSlice(request=request)

        def note_planned() -> None:
            ahead.is_planned.set()
            if sequence.slices and sequence.slices[-1] is ahead:
                self._extend(sequence)

        def read() -> FetchedBatches | None:
            try:
                _plan(context, ahead)
            finally:
                with suppress(RuntimeError):  # The loop has ended.
                    loop.call_soon_threadsafe(note_planned)
            return None if ahead.planned is None else _read(context, ahead.planned)

        reading = context.fetch_threads.run_spare(read, context.request_seconds)
        if reading is None:
            return
        sequence.slices.append(ahead)
        ahead.reading = loop.create_task(_without_errors(reading))
        ahead.reading.add_done_callback(lambda _: self._finish(ahead))

    def _finish(self, ahead: AheadSlice) -> None:
        ahead.is_planned.set()
        if ahead.found is None or ahead.is_dropped or ahead.is_taken:
            self._release(ahead)

    def _drop(self, sequence: _Sequence) -> None:
        if sequence.expiry is not None:
            sequence.expiry.cancel()
        while sequence.slices:
            ahead = sequence.slices.popleft()
            ahead.is_dropped = True
            if ahead.reading.done():
                self._release(ahead)

    def _release(self, ahead: AheadSlice) -> None:
        if ahead.found is not None and not ahead.is_taken and not ahead.is_released:
            self._context.metrics.read_ahead_unused_bytes.inc(ahead.found.size_bytes)
        self._context.read_ahead.release(ahead)


def _end_of(log_slice: LogSlice) -> int:
    """Return what a consumer asks for after these batches."""
    return min(int(log_slice.batches.last_offset[-1]), log_slice.bounds.to_offset) + 1


def first_batches(found: FetchedBatches, plan: LogSlice) -> FetchedBatches:
    """Return those batches of a slice that was read which a plan that it covers has, with the plan's transactions."""
    count = len(plan.batches) if plan.served.has_batches else len(found.log_slice.batches)
    pieces, part = found.pieces, found.log_slice
    if count < len(part.batches):
        part = part.first_batches(count)
        pieces = (pieces[0][: part.size_bytes],)
    return FetchedBatches(pieces=pieces, log_slice=replace(part, aborted=plan.aborted, ends=plan.ends))


def _plan(context: Context, ahead: AheadSlice) -> None:
    """Plan a slice, if memory and quota allow it. Runs in a fetch thread."""
    planned = context.view.plan(ahead.request)
    check_wanted()
    if not isinstance(planned, LogSlice) or not context.read_ahead.reserve(ahead, planned.size_bytes):
        return
    if context.quota.charge_now(planned.size_bytes):
        ahead.planned = planned


def _read(context: Context, planned: LogSlice) -> FetchedBatches | None:
    """Read a slice; None if that is not possible. Runs in a fetch thread."""
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
