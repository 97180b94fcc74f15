"""Answer ListOffsets and OffsetForLeaderEpoch.

Codes of coldlog's own never go out. A time after the archive's last record, and an offset that a reader of committed
records may not have yet, are offset -1 without an error. LATEST is the end of the archive, for readers of committed
records its last stable offset. An answer that would pass over a gap is CORRUPT_MESSAGE, unless gaps are passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from coldlog.errors import ColdlogError
from coldlog.lookups.index_rows import NOTHING
from coldlog.lookups.local.local_tier import FoundOffset
from coldlog.lookups.questions import Answers
from coldlog.model.list_offsets import UNKNOWN_EPOCH, SpecialTimestamp
from coldlog.model.list_offsets import ErrorCode as LookupCode
from coldlog.serve.answer_writer import Values
from coldlog.serve.archive_view import OffsetQuestion, ServedPartition
from coldlog.serve.context import Context
from coldlog.serve.messages import Request
from coldlog.serve.security.rights import Rights
from coldlog.serve.threads import QueueFullError

_SINCE_VERSION = {int(special): special.since_version for special in SpecialTimestamp}
_NO_VERSION = 1 << 15
_OF_RECORDS = SpecialTimestamp.MAX_TIMESTAMP
_MOST_AT_ONCE = 1_000
"""Questions of one request that are answered in the event loop: some milliseconds."""
_NOT_YET = (LookupCode.LOCAL_REQUIRED, LookupCode.OPEN_TRANSACTION)
_Place = tuple[str, int]


async def answer_list_offsets(context: Context, request: Request) -> Values:
    """Offsets for times and special timestamps, one for each partition that is named."""
    body = request.body
    is_committed = getattr(body, "isolation_level", 0) == 1
    asked = [(topic.name, each) for topic in body.topics for each in topic.partitions]
    places = [(name, each.partition_index) for name, each in asked]
    repeated = {place for place, count in Counter(places).items() if count > 1}
    questions = [
        OffsetQuestion(
            topic=name,
            partition=each.partition_index,
            timestamp_ms=each.timestamp,
            leader_epoch=getattr(each, "current_leader_epoch", UNKNOWN_EPOCH),
            is_committed=is_committed,
            version=request.version,
        )
        for name, each in asked
    ]

    answers = None if repeated else _answer_at_once(context, request.rights, questions)
    if answers is None:
        answers = await _answer_in_thread(context, request, questions, repeated)
    rest = iter(answers)
    return {
        "topics": [{"name": topic.name, "partitions": [next(rest) for _ in topic.partitions]} for topic in body.topics]
    }


def _answer_at_once(context: Context, rights: Rights, questions: Sequence[OffsetQuestion]) -> list[Values] | None:
    """Return the answers if nothing has to be read for them; then they need no thread, and no time limit."""
    if len(questions) > _MOST_AT_ONCE:
        return None
    answers: list[Values] = []
    for each in questions:
        known = context.view.known_partition(each.topic, each.partition)
        if known is None or each.topic not in rights.topics or each.leader_epoch not in (-1, known.leader_epoch):
            return None
        if each.timestamp_ms == SpecialTimestamp.LATEST:
            end = known.ends.readable_end(is_committed=each.is_committed)
            answers.append(_found(each.partition, end, -1, known.leader_epoch))
            continue
        found = context.view.known_offset(each)
        if found is None:
            return None
        answers.append(_found(each.partition, *found))
    return answers


async def _answer_in_thread(
    context: Context, request: Request, questions: Sequence[OffsetQuestion], repeated: set[_Place]
) -> list[Values]:
    looks = context.view.looks

    def look_up() -> list[Values]:
        return _look_up(context, request.rights, questions, repeated, looks)

    timeout = getattr(request.body, "timeout", None)
    timeout_ms = round(timeout.total_seconds() * 1000) if timeout is not None else 0
    try:
        with context.metrics.list_offsets_waiting.track_inprogress():
            seconds = (timeout_ms if timeout_ms > 0 else context.timeout_ms) / 1000
            # As in a broker: only what searches records may have to wait for others that do.
            is_search = any(each.timestamp_ms >= 0 or each.timestamp_ms == _OF_RECORDS for each in questions)
            return await (context.look_up_offsets if is_search else context.look_up)(look_up, seconds)
    except TimeoutError as late:
        if not isinstance(late, QueueFullError):
            _count_expired(context, request.rights, [(each.topic, each.partition) for each in questions])
        return [_refused(each.partition, ErrorCode.request_timed_out) for each in questions]


def _count_expired(context: Context, rights: Rights, places: Iterable[_Place]) -> None:
    """Count partitions that were not answered in time. Names that only the client knows make no labels."""
    for name, number in places:
        is_known = name in rights.topics and context.view.is_known(name, number)
        context.metrics.expired(*((name, str(number)) if is_known else ("", "")))


async def answer_epoch_ends(context: Context, request: Request) -> Values:
    """The end of a leader epoch, or of the largest one before it."""

    def answer(end: Callable[[str, Any], Values]) -> list[Values]:
        return [
            {"topic": topic.topic, "partitions": [end(topic.topic, each) for each in topic.partitions]}
            for topic in request.body.topics
        ]

    looks = context.view.looks
    found = await context.find(
        lambda: answer(lambda name, each: _epoch_end(context, request.rights, name, each, looks))
    )
    if found is None:
        found = answer(lambda _, each: _no_epoch_end(each.partition, ErrorCode.kafka_storage_error))
    return {"topics": found}


def find_partition(
    context: Context, rights: Rights, name: str, partition: int, epoch: int, *, looks: int
) -> ServedPartition | ErrorCode:
    """Return the partition; an error if the client may not see it, it is unknown, cannot be read, or has another leader
    epoch. If it does not have the client's epoch yet, this looks for newer tables; `looks` had begun when the request
    arrived."""
    known = _find(context, rights, name, partition, epoch)
    if known is not ErrorCode.unknown_leader_epoch:
        return known
    return find_newest(context, rights, name, partition, epoch, looks=looks)


def find_newest(
    context: Context, rights: Rights, name: str, partition: int, epoch: int, *, looks: int
) -> ServedPartition | ErrorCode:
    """Do the same with the newest tables. This is for answers from which a client concludes that the log ends before
    its offset, and goes back: it may have that offset, or its epoch, from another endpoint, which has opened newer
    tables."""
    return _find(context, rights, name, partition, epoch, looks=looks)


def _find(
    context: Context, rights: Rights, name: str, partition: int, epoch: int, *, looks: int | None = None
) -> ServedPartition | ErrorCode:
    if name not in rights.topics:
        return ErrorCode.topic_authorization_failed
    try:
        if looks is not None:
            context.view.look_again(looks)
        known = context.view.partition(name, partition)
    except ColdlogError as unreadable:
        context.report_once(f"{name}-{partition}", f"{name}-{partition}: {unreadable}")
        return ErrorCode.kafka_storage_error
    if known is None:
        return ErrorCode.unknown_topic_or_partition
    if 0 <= epoch < known.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch if epoch > known.leader_epoch >= 0 else known


def _look_up(
    context: Context, rights: Rights, questions: Sequence[OffsetQuestion], repeated: set[_Place], looks: int
) -> list[Values]:
    """Return the answers of all partitions in order. Only times and other questions of records are looked up."""
    answers: dict[int, Values] = {}
    rest: list[int] = []
    for at, each in enumerate(questions):
        known = _refuse(rights, each, repeated) or find_partition(
            context, rights, each.topic, each.partition, each.leader_epoch, looks=looks
        )
        if isinstance(known, ErrorCode):
            answers[at] = _refused(each.partition, known)
        elif each.timestamp_ms == SpecialTimestamp.LATEST:
            end = known.ends.readable_end(is_committed=each.is_committed)
            answers[at] = _found(each.partition, end, -1, known.leader_epoch)
        elif not known.is_archived:
            is_first = each.timestamp_ms in (SpecialTimestamp.EARLIEST, SpecialTimestamp.EARLIEST_LOCAL)
            answers[at] = _found(each.partition, 0 if is_first else -1, -1, -1)
        else:
            rest.append(at)
    found = _answers(context, [questions[at] for at in rest], looks)
    answers |= dict(zip(rest, found, strict=True))
    return [answers[at] for at in range(len(questions))]


def _refuse(rights: Rights, asked: OffsetQuestion, repeated: set[_Place]) -> ErrorCode | None:
    """Return why a question is refused before its partition is looked at, in the order of a broker; None if it is
    not."""
    if asked.topic not in rights.topics:
        return ErrorCode.topic_authorization_failed
    if (asked.topic, asked.partition) in repeated:
        return ErrorCode.invalid_request
    is_known = asked.timestamp_ms >= 0 or asked.version >= _SINCE_VERSION.get(asked.timestamp_ms, _NO_VERSION)
    return None if is_known else ErrorCode.unsupported_version


def _answers(context: Context, questions: Sequence[OffsetQuestion], looks: int) -> list[Values]:
    if not questions:
        return []
    try:
        answers = context.view.list_offsets(questions, looks)
    except ColdlogError as failed:
        context.console.warn(f"ListOffsets: {failed}")
        return [_refused(question.partition, ErrorCode.kafka_storage_error) for question in questions]
    return [_answer(context, *each) for each in zip(questions, answers, strict=True)]


def _answer(context: Context, question: OffsetQuestion, answers: Answers) -> Values:
    number, error = question.partition, LookupCode(int(answers.errors[0]))
    if error is LookupCode.LOCAL_REQUIRED and question.timestamp_ms == SpecialTimestamp.EARLIEST_LOCAL:
        return _found(number, int(answers.local_starts[0]), -1, -1)
    if error in _NOT_YET:
        return _found(number, -1, -1, -1)
    if error is LookupCode.ARCHIVE_INCOMPLETE:
        place = f"{question.topic}-{number}"
        context.report_once(
            f"{place} gap",
            f"{place}: an offset for {question.timestamp_ms} was refused: offsets from {answers.passed_from[0]} on may "
            "hold it, and no segment serves them; coldlog.archive_problems says why, serve.on_gap=skip passes over "
            "them",
        )
        return _refused(number, ErrorCode.corrupt_message)
    if error is not LookupCode.NONE:
        return _refused(
            number, ErrorCode(int(error)) if error < LookupCode.LOCAL_REQUIRED else ErrorCode.unknown_server_error
        )
    found = answers.found(0)
    return _found(number, -1, -1, -1) if found is None else _found(number, *_facts(found))


def _facts(found: FoundOffset) -> tuple[int, int, int]:
    timestamp_ms = -1 if found.timestamp_ms == NOTHING else found.timestamp_ms
    return found.offset, timestamp_ms, found.leader_epoch


def _found(partition: int, offset: int, timestamp_ms: int, leader_epoch: int) -> Values:
    return {
        "partition_index": partition,
        "error_code": ErrorCode.none,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


def _refused(partition: int, error: ErrorCode) -> Values:
    return {**_found(partition, -1, -1, -1), "error_code": error}


def _epoch_end(context: Context, rights: Rights, name: str, asked: object, looks: int) -> Values:
    number, epoch = int(getattr(asked, "partition")), int(getattr(asked, "leader_epoch"))  # noqa: B009 - kio's class
    named = name, number, int(getattr(asked, "current_leader_epoch", UNKNOWN_EPOCH))
    known = find_partition(context, rights, *named, looks=looks)
    if isinstance(known, ServedPartition) and epoch >= known.leader_epoch:
        known = find_newest(context, rights, *named, looks=looks)
    if isinstance(known, ErrorCode):
        return _no_epoch_end(number, known)
    found_epoch, end_offset = known.end_of_epoch(epoch)
    return {"error_code": ErrorCode.none, "partition": number, "leader_epoch": found_epoch, "end_offset": end_offset}


def _no_epoch_end(partition: int, error: ErrorCode) -> Values:
    return {"error_code": error, "partition": partition, "leader_epoch": -1, "end_offset": -1}
