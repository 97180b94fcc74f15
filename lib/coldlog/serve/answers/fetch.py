"""Answer Fetch with whole batches as the log has them.

All partitions are planned first, so that the bytes of the answer are known: `max_bytes` bounds all of it,
`partition_max_bytes` each partition, and the first batch of the answer is sent whole. Then they are read at the same
time. The answer begins with another partition each time, or the first would starve the others. A fetch that has
nothing to say waits for new tables, at most as long as the client allows.

A reader of committed records gets the aborted transactions that overlap its records, by first offset, and nothing from
the last stable offset on. Sessions are not kept (session id 0). Offsets in a gap are CORRUPT_MESSAGE, which reaches the
application: OFFSET_OUT_OF_RANGE would make the client jump without a word. A partition that is not read within
`serve.request_seconds` is KAFKA_STORAGE_ERROR, after which clients ask again; the others of the fetch are served. A
partition that the read quota does not allow now, or for which no thread is free soon, gets no records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from coldlog.errors import ColdlogError
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.serve.answer_writer import Values
from coldlog.serve.answers.offsets import find_partition
from coldlog.serve.context import Context
from coldlog.serve.messages import Request
from coldlog.serve.read_ahead import AheadSlice, ReadAhead
from coldlog.serve.security.rights import Rights
from coldlog.serve.threads import QueueFullError

_MOST_BYTES = 64 << 20
"""Of one answer, whatever the client allows."""
_FAILED = ErrorCode.kafka_storage_error, ErrorCode.corrupt_message
_MOST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One partition of a fetch. `name` is empty if there is no topic of this id."""

    name: str
    number: int
    offset: int
    max_bytes: int
    current_leader_epoch: int

    @property
    def place(self) -> tuple[str, int]:
        return self.name, self.number


_Plan = LogSlice | FetchedRecords | FetchFailure | ErrorCode
_Planned = tuple[PartitionEnds | None, _Plan, AheadSlice | None]
"""What is to be read, or the answer, and the slice that was read ahead for it."""


async def answer_fetch(context: Context, request: Request) -> Values:
    """Records of each partition that is named."""
    body = request.body
    is_committed = getattr(body, "isolation_level", 0) == 1
    known = await _names(context, request.rights, body.topics)
    names = [""] * len(body.topics) if known is None else known
    asked = [
        _Asked(
            name=name,
            number=each.partition,
            offset=each.fetch_offset,
            max_bytes=max(0, each.partition_max_bytes),
            current_leader_epoch=getattr(each, "current_leader_epoch", -1),
        )
        for name, topic in zip(names, body.topics, strict=True)
        for each in topic.partitions
    ]
    first = request.correlation_id % len(asked) if asked else 0
    most_bytes = min(_MOST_BYTES, max(0, getattr(body, "max_bytes", _MOST_BYTES)))
    news = context.news

    async def fetch_all() -> tuple[list[Values], int]:
        if known is None:
            return [_answer(each, ErrorCode.kafka_storage_error, None) for each in asked], 0
        found, throttled_ms = await _fetch(context, request, asked, first, most_bytes, is_committed=is_committed)
        if throttled_ms:
            context.metrics.throttled(throttled_ms)
        return found, throttled_ms

    answers, throttle_ms = await fetch_all()
    wait_s = min(_MOST_WAIT_S, max(0.0, body.max_wait.total_seconds()))
    if not any(_says_something(answer) for answer in answers) and not context.is_stopping and wait_s > 0:
        with suppress(TimeoutError), request.presence.waiting():
            async with asyncio.timeout(min(wait_s, throttle_ms / 1000) if throttle_ms else wait_s):
                await news.wait()
        if throttle_ms or news.is_set():
            answers, throttle_ms = await fetch_all()
    rest = iter(answers)
    return {
        "error_code": ErrorCode.none,
        "session_id": 0,
        "throttle_time": throttle_ms,
        "responses": [
            {
                "topic": name,
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [next(rest) for _ in topic.partitions],
            }
            for name, topic in zip(names, body.topics, strict=True)
        ],
    }


async def _names(context: Context, rights: Rights, topics: Sequence[Any]) -> list[str] | None:
    """Return the names of topics, which later versions ask for by id; an empty one where there is no such topic, or the
    client may not see it. None if they cannot be read in time."""
    if not topics or hasattr(topics[0], "topic"):
        return [topic.topic for topic in topics]
    view = context.view
    known = [topic.topic_id and view.known_name_of(topic.topic_id) for topic in topics]
    if None in known:
        read = await context.find(lambda: [topic.topic_id and view.name_of(topic.topic_id) for topic in topics])
        if read is None:
            return None
        known = read
    return [name if name and name in rights.topics else "" for name in known]


def _says_something(answer: Values) -> bool:
    return bool(answer["records"]) or answer["error_code"] is not ErrorCode.none


async def _fetch(
    context: Context, request: Request, asked: Sequence[_Asked], first: int, most_bytes: int, *, is_committed: bool
) -> tuple[list[Values], int]:
    """Return the answer of each partition, and how many milliseconds the client should wait."""
    rights = request.rights
    try:
        async with asyncio.timeout(context.request_seconds):
            ahead = await _find_ahead(request.ahead, asked, is_committed=is_committed)
            planned, throttle_ms = await context.look_up(
                lambda: _plan(context, rights, asked, ahead, first, most_bytes, is_committed=is_committed)
            )
    except TimeoutError:
        for partition in asked:
            if partition.name in rights.topics:
                _count_failed(context, partition, ErrorCode.kafka_storage_error)
        return [_answer(partition, ErrorCode.kafka_storage_error, None) for partition in asked], 0
    reads = [
        _read(context, request.ahead, partition, most_bytes, *plan)
        for partition, plan in zip(asked, planned, strict=True)
    ]
    with context.metrics.fetches_waiting.track_inprogress():
        return await asyncio.gather(*reads), throttle_ms


async def _find_ahead(
    ahead: ReadAhead | None, asked: Sequence[_Asked], *, is_committed: bool
) -> list[AheadSlice | None]:
    """Return what was read ahead for each partition."""
    if ahead is None:
        return [None] * len(asked)
    return [await ahead.find(each.place, each.offset, _level(is_committed=is_committed)) for each in asked]


def _level(*, is_committed: bool) -> IsolationLevel:
    return IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED


def _plan(
    context: Context,
    rights: Rights,
    asked: Sequence[_Asked],
    ahead: Sequence[AheadSlice | None],
    first: int,
    most_bytes: int,
    *,
    is_committed: bool,
) -> tuple[list[_Planned], int]:
    """Plan every partition, from the first one on around, as long as bytes are left and the quota allows it. What was
    read ahead is charged already."""
    plans: dict[int, _Planned] = {}
    left, has_any, throttle_ms = most_bytes, False, 0
    for at in (*range(first, len(asked)), *range(first)):
        ends, plan = _plan_one(context, rights, asked[at], left, is_committed=is_committed)
        taken = None
        if isinstance(plan, LogSlice):
            if has_any and plan.size_bytes > left:
                plan = _nothing(plan)
            elif (read := ahead[at]) is not None and read.covers(plan):
                left, has_any, taken = max(0, left - plan.size_bytes), True, read
            elif isinstance(charged := _charge(context, plan.size_bytes), ErrorCode):
                plan = charged
            elif charged:
                context.metrics.throttled_partition(asked[at].name, plan.size_bytes)
                plan, throttle_ms = _nothing(plan), max(throttle_ms, charged)
            else:
                left, has_any = max(0, left - plan.size_bytes), True
        plans[at] = ends, plan, taken
    return [plans[at] for at in range(len(asked))], throttle_ms


def _charge(context: Context, size_bytes: int) -> int | ErrorCode:
    """Charge a read; return how long it is throttled, or the error of a shared quota that does not answer."""
    try:
        return context.quota.charge(size_bytes)
    except ColdlogError as failed:
        context.report_once("quota", f"the shared read quota does not answer: {failed}")
        return ErrorCode.kafka_storage_error


def _nothing(plan: LogSlice) -> FetchedRecords:
    return FetchedRecords(records=(), next_offset=plan.request.offset, ends=plan.ends, read_bytes=0)


def _plan_one(
    context: Context, rights: Rights, asked: _Asked, left: int, *, is_committed: bool
) -> tuple[PartitionEnds | None, _Plan]:
    if not asked.name:
        return None, ErrorCode.unknown_topic_id
    known = find_partition(context, rights, asked.name, asked.number, asked.current_leader_epoch)
    if isinstance(known, ErrorCode):
        return None, known
    if not known.is_archived and asked.offset == 0:
        return known.ends, FetchedRecords(records=(), next_offset=0, ends=known.ends, read_bytes=0)
    wanted = FetchRequest(
        topic=context.view.archive_name(asked.name),
        partition=asked.number,
        offset=asked.offset,
        max_bytes=min(asked.max_bytes, left),
        isolation_level=_level(is_committed=is_committed),
    )
    try:
        return known.ends, context.view.plan(wanted)
    except ColdlogError as failed:
        context.report_once(f"{wanted}", f"{wanted}: {failed}")
        return known.ends, ErrorCode.kafka_storage_error


_Found = FetchedBatches | FetchedRecords | FetchFailure | ErrorCode


async def _read(
    context: Context,
    ahead: ReadAhead | None,
    asked: _Asked,
    most_bytes: int,
    ends: PartitionEnds | None,
    plan: LogSlice | _Found,
    taken: AheadSlice | None,
) -> Values:
    async def take(log_slice: LogSlice) -> FetchedBatches | None:
        return None if ahead is None or taken is None else await ahead.take(asked.place, taken, log_slice)

    found = await _read_slice(context, plan, take) if isinstance(plan, LogSlice) else plan
    if isinstance(found, FetchFailure):
        found = _error(context, asked, ends, found)
    if isinstance(found, ErrorCode):
        _count_failed(context, asked, found)
        return _answer(asked, found, ends)
    if isinstance(found, FetchedRecords):
        return _answer(asked, ErrorCode.none, ends)
    context.metrics.fetched(asked.name, found.size_bytes)
    if ahead is not None:
        ahead.go_on(asked.place, asked.offset, min(asked.max_bytes, most_bytes), found)
    return _answer(asked, ErrorCode.none, ends, found)


async def _read_slice(
    context: Context, plan: LogSlice, take: Callable[[LogSlice], Awaitable[FetchedBatches | None]]
) -> _Found:
    def read() -> _Found:
        with context.metrics.read_seconds.time():
            return context.view.read(plan)

    try:
        async with asyncio.timeout(context.request_seconds):
            ahead = await take(plan)
            return ahead if ahead is not None else await context.read(read)
    except QueueFullError:
        return _nothing(plan)  # The client asks again.
    except TimeoutError:
        seconds = f"{context.request_seconds:g} s"
        context.report_once(f"{plan.request}", f"{plan.request}: the archive has not answered within {seconds}")
        return ErrorCode.kafka_storage_error
    except ColdlogError as failed:
        context.report_once(f"{plan.request}", f"{plan.request}: {failed}")
        return ErrorCode.kafka_storage_error


def _count_failed(context: Context, asked: _Asked, error: ErrorCode) -> None:
    """Count what the archive did not answer. Names that only the client knows make no labels."""
    if error in _FAILED and context.view.is_known(asked.name, asked.number):
        context.metrics.failed_fetch(asked.name)


def _error(context: Context, asked: _Asked, ends: PartitionEnds | None, failure: FetchFailure) -> ErrorCode:
    """Return the code for a failure. What lies in the log and cannot be read is damage to the reader."""
    if (ends is not None and ends.log_start_offset <= asked.offset < ends.end_offset) or (
        failure.error is FetchErrorCode.CORRUPT_MESSAGE
    ):
        context.report_once(f"{asked.name}-{asked.number} at {asked.offset}", f"Fetch: {failure}")
        return ErrorCode.corrupt_message
    if failure.error is FetchErrorCode.OFFSET_OUT_OF_RANGE:
        return ErrorCode.offset_out_of_range
    return ErrorCode(int(failure.error))


def _answer(
    asked: _Asked, error: ErrorCode, ends: PartitionEnds | None, found: FetchedBatches | None = None
) -> dict[str, Any]:
    pieces = () if found is None else found.pieces
    return {
        "partition_index": asked.number,
        "error_code": error,
        "high_watermark": -1 if ends is None else ends.end_offset,
        "last_stable_offset": -1 if ends is None else ends.last_stable_offset,
        "log_start_offset": -1 if ends is None else ends.log_start_offset,
        "aborted_transactions": None if found is None else _aborted(found.log_slice),
        "records": pieces[0] if len(pieces) == 1 else b"".join(pieces),
    }


def _aborted(log_slice: LogSlice) -> list[Values] | None:
    """Return the aborted transactions that overlap the batches, by first offset; None to a reader of all records."""
    if not log_slice.request.is_committed:
        return None
    return [
        {"producer_id": each.producer_id, "first_offset": each.first_offset} for each in log_slice.overlapping_aborts()
    ]
