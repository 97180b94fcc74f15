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
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kio.schema.errors import ErrorCode

from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.fetch.stored_slices import StoredRange
from coldlog.serve.answer_writer import Values
from coldlog.serve.answers.fetch_plans import AskedPartition, AskedRecords, Found, first_partition
from coldlog.serve.answers.fetch_reads import FetchWork
from coldlog.serve.context import Context
from coldlog.serve.messages import Request, write_answer
from coldlog.serve.offered_topics import topic_uuid
from coldlog.serve.read_ahead import ReadAhead
from coldlog.serve.security.rights import Rights

_MOST_BYTES = 64 << 20
"""Of one answer, whatever the client allows."""
_LEVELS = {1: IsolationLevel.READ_COMMITTED}
_STORAGE_ERROR_FROM = 6
"""Clients with older versions need not know KAFKA_STORAGE_ERROR."""
_FAILED = ErrorCode.kafka_storage_error, ErrorCode.corrupt_message
_MOST_WAIT_S = 30.0


async def answer_fetch(context: Context, request: Request) -> Values:
    """Records of each partition that is named."""
    body, looks = request.body, context.view.looks
    known = await _names(context, request.rights, body.topics)
    names = [""] * len(body.topics) if known is None else known
    asked = [
        AskedPartition(
            name=name,
            topic_id=getattr(topic, "topic_id", None),
            number=each.partition,
            offset=each.fetch_offset,
            max_bytes=max(0, each.partition_max_bytes),
            current_leader_epoch=getattr(each, "current_leader_epoch", -1),
        )
        for name, topic in zip(names, body.topics, strict=True)
        for each in topic.partitions
    ]
    wanted = AskedRecords(
        partitions=asked,
        first=first_partition(request.correlation_id, len(asked)),
        most_bytes=min(_MOST_BYTES, max(0, getattr(body, "max_bytes", _MOST_BYTES))),
        level=_LEVELS.get(getattr(body, "isolation_level", 0), IsolationLevel.READ_UNCOMMITTED),
        rights=request.rights,
        looks=looks,
    )
    news = context.news

    def whole(answers: Sequence[Values], throttle_ms: int) -> Values:
        rest = map(_without_storage_error, answers) if request.version < _STORAGE_ERROR_FROM else iter(answers)
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

    async def fetch_all() -> tuple[list[Values], int]:
        if known is None:
            return [_answer(each, ErrorCode.kafka_storage_error, None) for each in asked], 0
        found, throttled_ms = await _fetch(context, request, wanted, whole)
        if throttled_ms:
            context.metrics.throttled(throttled_ms)
        return found, throttled_ms

    answers, throttle_ms = await fetch_all()
    wait_s = min(_MOST_WAIT_S, max(0.0, body.max_wait.total_seconds())) if _may_wait(asked, body) else 0
    if not any(_says_something(answer) for answer in answers) and not context.is_stopping and wait_s > 0:
        with suppress(TimeoutError), request.presence.waiting():
            async with asyncio.timeout(min(wait_s, throttle_ms / 1000) if throttle_ms else wait_s):
                await news.wait()
        if throttle_ms or news.is_set():
            answers, throttle_ms = await fetch_all()
    return whole(answers, throttle_ms)


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


def _may_wait(asked: Sequence[AskedPartition], body: Any) -> bool:
    """Whether there is something to wait for, and the client wants that."""
    return bool(asked) and getattr(body, "min_bytes", 1) > 0


def _says_something(answer: Values) -> bool:
    return bool(answer["records"]) or answer["error_code"] is not ErrorCode.none


async def _fetch(
    context: Context, request: Request, asked: AskedRecords, whole: Callable[[Sequence[Values], int], Values]
) -> tuple[list[Values], int]:
    """Return the answer of each partition, and how many milliseconds the client should wait. The thread that has read
    everything begins to send the answer if there are parts of files in it."""
    work, answers = FetchWork(context, asked, request.ahead), list[Values]()
    sending = request.outlet.open() if context.is_local else None

    def finish() -> None:
        for number, partition in enumerate(asked.partitions):
            answers.append(_answer_found(context, partition, work.plans[number].ends, work.get(number)))
        if sending is not None and any(isinstance(each["records"], StoredRange) for each in answers):
            sending.begin(write_answer(request, whole(answers, work.throttle_ms)))

    try:
        await work.begin(finish)
    except TimeoutError:
        return _late(context, asked), 0
    finally:
        request.outlet.close_unused()
    if not answers:
        reads = (_answer_partition(context, request.ahead, asked, work, at) for at in range(len(asked.partitions)))
        with context.metrics.fetches_waiting.track_inprogress():
            answers = await asyncio.gather(*reads)
    return answers, work.throttle_ms


def _late(context: Context, asked: AskedRecords) -> list[Values]:
    """Return the answers if nothing could be planned in time."""
    for partition in asked.partitions:
        if partition.name in asked.rights.topics:
            _count_failed(context, partition, ErrorCode.kafka_storage_error)
    return [_answer(partition, ErrorCode.kafka_storage_error, None) for partition in asked.partitions]


async def _answer_partition(
    context: Context, ahead: ReadAhead | None, asked: AskedRecords, work: FetchWork, number: int
) -> Values:
    partition, found = asked.partitions[number], await work.find(number)
    answer = _answer_found(context, partition, work.plans[number].ends, found)
    if ahead is not None and isinstance(found, FetchedBatches):
        ahead.go_on(partition.place, partition.offset, min(partition.max_bytes, asked.most_bytes), found)
    return answer


def _answer_found(context: Context, partition: AskedPartition, ends: PartitionEnds | None, found: Found) -> Values:
    ends = _ends_of(found) or ends
    if isinstance(found, FetchFailure):
        found = _error(context, partition, found)
    if isinstance(found, FetchedBatches) and not _has_asked_id(partition, found):
        found = ErrorCode.unknown_topic_id
    if isinstance(found, ErrorCode):
        _count_failed(context, partition, found)
        return _answer(partition, found, ends)
    if isinstance(found, FetchedRecords):
        return _answer(partition, ErrorCode.none, ends)
    context.metrics.fetched(partition.name, found.size_bytes)
    return _answer(partition, ErrorCode.none, ends, found)


def _ends_of(found: Found) -> PartitionEnds | None:
    """Return the ends in the tables that the answer is of: newer ones may have been opened since it was planned."""
    if isinstance(found, FetchedBatches):
        return found.log_slice.ends
    return None if isinstance(found, ErrorCode) else found.ends


def _has_asked_id(asked: AskedPartition, found: FetchedBatches) -> bool:
    """Whether these are batches of the topic that was asked for. It may have been created again in newer tables, which
    were opened after its name was looked up: while the fetch waited for news, or because a log was missing."""
    return asked.topic_id is None or asked.topic_id == topic_uuid(found.log_slice.served.segment.topic_id)


def _count_failed(context: Context, asked: AskedPartition, error: ErrorCode) -> None:
    """Count what the archive did not answer. Names that only the client knows make no labels."""
    if error in _FAILED and context.view.is_known(asked.name, asked.number):
        context.metrics.failed_fetch(asked.name)


def _error(context: Context, asked: AskedPartition, failure: FetchFailure) -> ErrorCode:
    """Return the code for a failure, and report damage."""
    if failure.error is FetchErrorCode.CORRUPT_MESSAGE:
        context.report_once(f"{asked.name}-{asked.number} at {asked.offset}", f"Fetch: {failure}")
    return ErrorCode(int(failure.error))


def _answer(
    asked: AskedPartition, error: ErrorCode, ends: PartitionEnds | None, found: FetchedBatches | None = None
) -> dict[str, Any]:
    return {
        "partition_index": asked.number,
        "error_code": error,
        "high_watermark": -1 if ends is None else ends.end_offset,
        "last_stable_offset": -1 if ends is None else ends.last_stable_offset,
        "log_start_offset": -1 if ends is None else ends.log_start_offset,
        "aborted_transactions": None if found is None else _aborted(found.log_slice),
        "records": b"" if found is None else _records(found),
    }


def _without_storage_error(answer: Values) -> Values:
    """Return the error that a broker puts in its place: clients ask for metadata, and then again."""
    if answer["error_code"] is not ErrorCode.kafka_storage_error:
        return answer
    return {**answer, "error_code": ErrorCode.not_leader_or_follower}


def _records(found: FetchedBatches) -> memoryview | bytes | StoredRange:
    if found.stored is not None:
        return found.stored
    return found.pieces[0] if len(found.pieces) == 1 else b"".join(found.pieces)


def _aborted(log_slice: LogSlice) -> list[Values] | None:
    """Return the aborted transactions that overlap the batches, by first offset; None to a reader of all records."""
    if not log_slice.request.is_committed:
        return None
    return [
        {"producer_id": each.producer_id, "first_offset": each.first_offset} for each in log_slice.overlapping_aborts()
    ]
