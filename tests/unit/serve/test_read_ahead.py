"""Test which slices are read ahead, which requests get them, and that their memory and quota are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from coldlog.errors import RetriableError
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.records.aborted_transactions import NOTHING_ABORTED
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.source.archived_log import BatchPlaces, ServedSegment
from coldlog.serve.context import Context
from coldlog.serve.read_ahead import KEPT_S, AheadSlice, ReadAhead, ReadAheadBytes
from coldlog.serve.telemetry.metrics import Metrics
from coldlog.serve.threads import Threads

PLACE = ("orders", 0)
LEVEL = IsolationLevel.READ_UNCOMMITTED
BATCH_BYTES, BATCH_OFFSETS, LOG_END = 100, 10, 1000
SLICE_BYTES = 4 * BATCH_BYTES
ENDS = PartitionEnds(log_start_offset=0, end_offset=LOG_END, last_stable_offset=LOG_END)


def segment(build_number: int = 1, *, has_batches: bool = True) -> ServedSegment:
    return ServedSegment(
        segment=cast(Any, "the segment"),
        build_number=build_number,
        from_offset=0,
        to_offset=LOG_END - 1,
        last_offset=LOG_END - 1,
        end_offset=LOG_END,
        size_bytes=None,
        min_timestamp_ms=None,
        max_timestamp_ms=None,
        has_batches=has_batches,
    )


@dataclass(slots=True, kw_only=True)
class Archive:
    """Ten offsets a batch, from the log's first byte on. `read` does what a test says before it returns."""

    served: ServedSegment = field(default_factory=segment)
    reads: list[int] = field(default_factory=list)
    before_read: Callable[[], None] = lambda: None
    cut_to: int = 1000
    """A read returns so many batches at most, as of a damaged log."""

    def plan(self, request: FetchRequest) -> LogSlice | FetchedRecords | FetchFailure:
        if request.offset >= LOG_END:
            return FetchedRecords(records=(), next_offset=request.offset, ends=ENDS, read_bytes=0)
        first = request.offset // BATCH_OFFSETS
        numbers = np.arange(first, min(first + max(1, request.max_bytes // BATCH_BYTES), LOG_END // BATCH_OFFSETS))
        return LogSlice(
            request=request,
            served=self.served,
            batches=BatchPlaces(
                base_offset=numbers * BATCH_OFFSETS,
                last_offset=numbers * BATCH_OFFSETS + BATCH_OFFSETS - 1,
                position=numbers * BATCH_BYTES,
                size_bytes=np.full(len(numbers), BATCH_BYTES),
                max_timestamp_ms=numbers,
                min_timestamp_ms=numbers,
            ),
            bounds=RecordBounds(from_offset=request.offset, to_offset=LOG_END - 1),
            aborted=NOTHING_ABORTED,
            next_offset=int(numbers[-1]) * BATCH_OFFSETS + BATCH_OFFSETS,
            ends=ENDS,
        )

    def read(self, log_slice: LogSlice) -> FetchedBatches | FetchedRecords | FetchFailure:
        self.reads.append(log_slice.request.offset)
        self.before_read()
        part = log_slice.first_batches(self.cut_to)
        # The layout read more than was asked for.
        log = memoryview(bytes(at // BATCH_BYTES % 251 for at in range(LOG_END // BATCH_OFFSETS * BATCH_BYTES)))
        return FetchedBatches(pieces=(log[part.position : part.position + part.size_bytes],), log_slice=part)


@dataclass(slots=True)
class Quota:
    """Charges whatever is asked for, or nothing."""

    charged: list[int] = field(default_factory=list)
    is_used_up: bool = False

    def charge_now(self, size_bytes: int) -> bool:
        if not self.is_used_up:
            self.charged.append(size_bytes)
        return not self.is_used_up


@dataclass(slots=True, kw_only=True)
class World:
    """A connection that has read the first slice and the one after it, so that a third one may be read ahead."""

    archive: Archive
    quota: Quota
    context: Context
    ahead: ReadAhead

    def request(self, offset: int, max_bytes: int = SLICE_BYTES, level: IsolationLevel = LEVEL) -> FetchRequest:
        return FetchRequest(topic=PLACE[0], partition=0, offset=offset, max_bytes=max_bytes, isolation_level=level)

    def plan(self, offset: int, max_bytes: int = SLICE_BYTES) -> LogSlice:
        plan = self.archive.plan(self.request(offset, max_bytes))
        assert isinstance(plan, LogSlice)
        return plan

    def answer(self, offset: int, level: IsolationLevel = LEVEL) -> None:
        """Do what a fetch does that has read a slice itself."""
        plan = cast(LogSlice, self.archive.plan(self.request(offset, level=level)))
        found = FetchedBatches(pieces=(memoryview(b""),), log_slice=plan)
        self.ahead.go_on(PLACE, offset, SLICE_BYTES, found)

    def answer_two(self) -> None:
        self.answer(0)
        self.answer(40)

    async def find(self, offset: int = 80, level: IsolationLevel = LEVEL) -> AheadSlice | None:
        return await self.ahead.find(PLACE, offset, level)

    async def take(self, offset: int = 80, max_bytes: int = SLICE_BYTES) -> FetchedBatches | None:
        plan, ahead = self.plan(offset, max_bytes), await self.find(offset)
        if ahead is None or not ahead.covers(plan):
            return None
        return await self.ahead.take(PLACE, ahead, plan)

    @property
    def held_bytes(self) -> int:
        return self.context.read_ahead.held_bytes

    @property
    def counts(self) -> tuple[float, float]:
        """Hits and unused bytes."""
        registry = self.context.metrics.registry
        names = "coldlog_serve_read_ahead_hits_total", "coldlog_serve_read_ahead_unused_bytes_total"
        hits, unused = (registry.get_sample_value(name) or 0.0 for name in names)
        return hits, unused


@contextmanager
def world(*, limit_bytes: int = 10 * SLICE_BYTES, threads: int = 4) -> Iterator[World]:
    archive, quota = Archive(), Quota()
    with closing(Threads("test", threads)) as fetch_threads:
        context = cast(
            Context,
            SimpleNamespace(
                view=archive,
                fetch_threads=fetch_threads,
                request_seconds=3600.0,
                metrics=Metrics(),
                quota=quota,
                read_ahead=ReadAheadBytes(limit_bytes),
                is_stopping=False,
            ),
        )
        yield World(archive=archive, quota=quota, context=context, ahead=ReadAhead(context))


def run(test: Callable[[World], Awaitable[None]], **options: Any) -> None:
    async def begin() -> None:
        with world(**options) as made:
            await test(made)

    asyncio.run(begin())


def test_the_request_after_two_that_follow_each_other_gets_what_was_read_ahead() -> None:
    async def test(made: World) -> None:
        made.answer(0)
        assert await made.find(40) is None, "one request is no sequence"
        made.answer(40)
        found = await made.take()
        assert found is not None
        assert [bytes(piece) for piece in found.pieces] == [bytes([8] * 100 + [9] * 100 + [10] * 100 + [11] * 100)]
        assert memoryview(found.pieces[0].obj).nbytes == SLICE_BYTES, "what the layout read around it is not kept"
        assert (made.counts, made.quota.charged[0]) == ((1, 0), SLICE_BYTES)

    run(test)


def test_each_sequential_request_adds_a_slice_up_to_four_and_each_is_read_once() -> None:
    async def test(made: World) -> None:
        made.answer_two()
        held = []
        for offset in range(80, 400, 40):
            await _settle()
            held.append(made.held_bytes // SLICE_BYTES)
            found = await made.take(offset)
            assert found is not None
            made.ahead.go_on(PLACE, offset, SLICE_BYTES, found)
        await _settle()
        assert held == [1, 2, 3, 4, 4, 4, 4, 4]
        assert sorted(made.archive.reads) == list(range(80, 560, 40))
        assert made.quota.charged == [SLICE_BYTES] * len(made.archive.reads)
        made.ahead.end()
        assert (made.held_bytes, made.counts) == (0, (8, 4 * SLICE_BYTES))

    run(test, threads=8)


def test_the_memory_of_a_slice_is_free_if_the_connection_ends_while_it_waits() -> None:
    async def test(made: World) -> None:
        begun, done = threading.Event(), threading.Event()
        made.archive.before_read = _hang(begun, done)
        made.answer_two()
        ahead = await made.find()
        assert ahead is not None
        taking = asyncio.create_task(made.ahead.take(PLACE, ahead, made.plan(80)))
        await asyncio.sleep(0)
        taking.cancel()
        made.ahead.end()
        done.set()
        await _settle()
        assert made.held_bytes == 0

    run(test)


def test_a_request_with_a_lower_limit_gets_the_first_batches_and_one_with_a_higher_limit_nothing() -> None:
    async def test(made: World) -> None:
        made.answer_two()
        assert await made.take(max_bytes=SLICE_BYTES + BATCH_BYTES) is None
        found = await made.take(max_bytes=BATCH_BYTES)
        assert found is not None
        assert [bytes(piece) for piece in found.pieces] == [bytes([8] * 100)]
        assert found.log_slice.batches.base_offset.tolist() == [80]
        assert made.counts == (1, SLICE_BYTES - BATCH_BYTES)

    run(test)


def test_what_was_read_before_a_damaged_batch_is_the_answer() -> None:
    async def test(made: World) -> None:
        made.archive.cut_to = 2
        made.answer_two()
        found = await made.take()
        assert found is not None
        assert (found.size_bytes, len(found.log_slice.batches)) == (2 * BATCH_BYTES, 2)

    run(test)


@pytest.mark.parametrize("change", ["build", "bounds", "place", "skipped"])
def test_bytes_of_older_tables_are_not_the_answer_to_another_plan(change: str) -> None:
    async def test(made: World) -> None:
        made.answer_two()
        ahead, plan = await made.find(), made.plan(80)
        assert ahead is not None
        assert ahead.covers(plan)
        moved = replace(plan.batches, position=plan.batches.position + 1)
        other = {
            "build": replace(plan, served=segment(2)),
            "bounds": replace(plan, bounds=replace(plan.bounds, to_offset=500)),
            "place": replace(plan, batches=moved),
            "skipped": replace(plan, request=made.request(90)),
        }
        assert not ahead.covers(other[change])

    run(test)


def test_intervals_are_the_answer_only_to_a_request_with_the_same_limit() -> None:
    async def test(made: World) -> None:
        made.archive.served = segment(has_batches=False)
        made.answer_two()
        ahead = await made.find()
        assert ahead is not None
        assert (ahead.covers(made.plan(80)), ahead.covers(made.plan(80, BATCH_BYTES))) == (True, False)

    run(test)


def test_a_read_that_made_another_plan_is_not_the_answer() -> None:
    async def test(made: World) -> None:
        read = made.archive.read
        cast(Any, made.context).view = SimpleNamespace(
            plan=made.archive.plan, read=lambda plan: read(replace(plan, served=segment(2)))
        )
        made.answer_two()
        await _settle()
        assert (await made.find(), made.held_bytes) == (None, 0)

    run(test)


def test_a_seek_drops_what_was_read_ahead_and_reads_nothing_more() -> None:
    async def test(made: World) -> None:
        made.answer_two()
        await _settle()
        assert made.held_bytes == SLICE_BYTES
        assert await made.find(500) is None
        assert (made.held_bytes, made.counts) == (0, (0, SLICE_BYTES))
        made.answer(500)
        await _settle()
        assert made.archive.reads == [80]

    run(test)


def test_a_reader_at_the_other_isolation_level_gets_nothing() -> None:
    async def test(made: World) -> None:
        made.answer_two()
        assert await made.find(level=IsolationLevel.READ_COMMITTED) is None
        made.answer(80, IsolationLevel.READ_COMMITTED)
        assert await made.find(120, IsolationLevel.READ_COMMITTED) is None

    run(test)


def test_slices_above_the_memory_are_not_read_and_without_memory_none_is() -> None:
    async def test(made: World) -> None:
        made.context.read_ahead.limit_bytes = SLICE_BYTES
        other = ReadAhead(made.context)
        made.answer_two()
        await _settle()
        for offset in (0, 40):
            plan = made.plan(offset)
            other.go_on(PLACE, offset, SLICE_BYTES, FetchedBatches(pieces=(memoryview(b""),), log_slice=plan))
        assert await other.find(PLACE, 80, LEVEL) is None
        assert (made.archive.reads, made.held_bytes, made.quota.charged) == ([80], SLICE_BYTES, [SLICE_BYTES])
        made.ahead.end()
        made.context.read_ahead.limit_bytes = 0
        made.ahead = ReadAhead(made.context)
        made.answer_two()
        assert (await made.find(), made.archive.reads) == (None, [80])

    run(test)


def test_nothing_is_read_ahead_that_the_quota_does_not_allow_at_once() -> None:
    async def test(made: World) -> None:
        made.quota.is_used_up = True
        made.answer_two()
        assert (await made.find(), made.archive.reads) == (None, [])
        await _settle()
        assert made.held_bytes == 0

    run(test)


def test_a_read_ahead_that_fails_says_nothing_and_leaves_the_read_to_the_request() -> None:
    def fail() -> None:
        raise RetriableError("the store does not answer")

    async def test(made: World) -> None:
        made.archive.before_read = fail
        made.answer_two()
        await _settle()
        assert (await made.take(), made.held_bytes, made.counts) == (None, 0, (0, 0))
        failure = FetchFailure(error=FetchErrorCode.CORRUPT_MESSAGE, message="damaged", ends=ENDS)
        cast(Any, made.context).view = SimpleNamespace(plan=made.archive.plan, read=lambda _: failure)
        made.answer_two()
        await _settle()
        assert (await made.take(), made.held_bytes) == (None, 0)

    run(test)


def test_a_request_waits_for_the_read_that_is_under_way() -> None:
    async def test(made: World) -> None:
        begun, done = threading.Event(), threading.Event()
        made.archive.before_read = _hang(begun, done)
        made.answer_two()
        taking = asyncio.create_task(made.take())
        while not begun.is_set():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not taking.done()
        done.set()
        assert await taking is not None
        await _settle()
        assert (made.archive.reads, made.held_bytes) == ([80, 120], SLICE_BYTES)

    run(test)


def test_memory_of_a_dropped_read_is_free_only_when_it_has_ended() -> None:
    async def test(made: World) -> None:
        begun, done = threading.Event(), threading.Event()
        made.archive.before_read = _hang(begun, done)
        made.answer_two()
        while not begun.is_set():
            await asyncio.sleep(0)
        made.ahead.end()
        assert made.held_bytes == SLICE_BYTES
        done.set()
        await _settle()
        assert (made.held_bytes, made.counts) == (0, (0, SLICE_BYTES))

    run(test)


def test_what_nobody_asks_for_in_time_is_dropped_and_slow_consumers_get_nothing() -> None:
    async def test(made: World) -> None:
        loop, passed_s = asyncio.get_running_loop(), [0.0]
        cast(Any, loop).time = lambda: passed_s[0]
        made.answer_two()
        await _settle()
        assert made.held_bytes == SLICE_BYTES
        passed_s[0] += KEPT_S + 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert made.counts[1] == SLICE_BYTES
        made.answer(80)
        assert (await made.find(120), made.archive.reads) == (None, [80])

    run(test)


def test_nothing_is_read_ahead_for_a_connection_that_has_ended_or_while_the_endpoint_stops() -> None:
    async def test(made: World) -> None:
        made.answer_two()
        await _settle()
        made.ahead.end()
        made.answer_two()
        made.ahead = ReadAhead(made.context)
        made.context.is_stopping = True
        made.answer_two()
        await _settle()
        assert made.archive.reads == [80]

    run(test)


def test_the_last_free_thread_is_left_to_requests() -> None:
    async def test(made: World) -> None:
        made.answer_two()
        await _settle()
        assert (await made.find(), made.archive.reads) == (None, [])

    run(test, threads=1)


async def _settle() -> None:
    """Wait until every read ahead has ended."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    await asyncio.sleep(0)


def _hang(begun: threading.Event, done: threading.Event) -> Callable[[], None]:
    """Say that a read has begun, and end it only when a test says so."""

    def hang() -> None:
        begun.set()
        done.wait()

    return hang
