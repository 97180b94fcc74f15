"""Find the first archived record at or after a time.

At record depth the stairs in the tables answer. At batch depth the tables only name a batch, at sidecar depth an
interval of the log. Reading it is returned as a separate question, because an archive may be slow; a batch or interval
is read once for all requests that it answers.

At sidecar depth the largest timestamp of a segment may be one that no record has (`index.log_intervals`). If such a
segment has no answer, the next segments are searched one by one. MAX_TIMESTAMP is then not known (NOT_DECODED).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coldlog.errors import AnsweredTooLateError, ArchiveError, ColdlogError, RetriableError
from coldlog.lookups.damage.damaged_segments import find_damage
from coldlog.lookups.index_rows import NOTHING, Int64s
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.questions import Answers, Flags, Indices, PartitionQuestions, iter_runs
from coldlog.lookups.served_index import FoundBatch, FoundInterval, ServedIndex, WarehouseFiles
from coldlog.lookups.sought_stairs import FoundStairs, SegmentPlace, ServedSegments
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp

if TYPE_CHECKING:
    from coldlog.lookups.search.batch_lookup import BatchReader


@dataclass(frozen=True, slots=True)
class BatchQuestion:
    """A batch of the archive to read for the requests at `where`; `segment` is a row of `segments`."""

    segment: Mapping[str, object]
    batch: FoundBatch
    where: Indices
    timestamps_ms: Int64s

    def answer(self, reader: BatchReader | None, answers: Answers) -> None:
        """Read the batch and answer the requests. The error is NOT_DECODED without a reader, or that of the archive."""
        if reader is None:
            answers.errors[self.where] = ErrorCode.NOT_DECODED
            return
        try:
            stairs = reader.read_stairs(self.segment, self.batch)
        except (ArchiveError, RetriableError) as failed:
            _put_failure(answers, self.where, self.segment, failed)
        else:
            for at, timestamp_ms in zip(self.where.tolist(), self.timestamps_ms.tolist(), strict=True):
                if (found := stairs.first_at_or_after(timestamp_ms)) is not None:
                    answers.find(at, found)
                else:  # the index says that the batch has one: no record has the maximum of the batch's header
                    answers.errors[at] = ErrorCode.CORRUPT_MESSAGE


@dataclass(frozen=True, slots=True)
class IntervalQuestion:
    """An interval of a log of the archive to read for the requests at `where`. `segment` is a row of `segments`,
    `following` searches the segments after it; None: as a broker, that segment alone is searched."""

    segment: Mapping[str, object]
    interval: FoundInterval
    where: Indices
    timestamps_ms: Int64s
    is_latest: Flags
    following: LaterSegments | None

    def answer(self, reader: BatchReader | None, answers: Answers) -> None:
        """Read the interval and answer the requests. The error is NOT_DECODED without a reader, or that of the
        archive."""
        if reader is None:
            answers.errors[self.where] = ErrorCode.NOT_DECODED
            return
        found_count = 0
        try:
            found = reader.search_interval(self.segment, self.interval, self.timestamps_ms.tolist())
            for at, record in zip(self.where.tolist(), found, strict=False):
                answers.find(at, record)
                found_count += 1
        except (ArchiveError, RetriableError) as failed:
            _put_failure(answers, self.where[found_count:], self.segment, failed)
            return
        is_missing = np.arange(len(self.where)) >= found_count
        answers.errors[self.where[is_missing & self.is_latest]] = ErrorCode.NOT_DECODED
        is_missing &= ~self.is_latest
        if not is_missing.any() or self.following is None:
            return
        try:
            self.following.answer(reader, answers, self.where[is_missing], self.timestamps_ms[is_missing])
        except RetriableError as failed:
            unanswered = self.where[is_missing]
            answers.errors[unanswered[answers.offsets[unanswered] < 0]] = _code_of(failed)


def _put_failure(answers: Answers, where: Indices, segment: Mapping[str, object], failed: ColdlogError) -> None:
    answers.errors[where] = _code_of(failed)
    damage = find_damage(segment, failed) if isinstance(failed, ArchiveError) else None
    if damage is not None:
        answers.damages.append(damage)


def _code_of(failed: ColdlogError) -> ErrorCode:
    if isinstance(failed, ArchiveError):
        return ErrorCode.CORRUPT_MESSAGE
    is_late = isinstance(failed, AnsweredTooLateError)
    return ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.KAFKA_STORAGE_ERROR


ArchiveQuestion = BatchQuestion | IntervalQuestion


@dataclass(frozen=True, slots=True)
class LaterSegments:
    """The served segments of a partition from `number` on. They are searched in their order, with tables of their own:
    this runs in another thread than the index that is open."""

    files: WarehouseFiles
    segments: ServedSegments
    number: int

    def answer(self, reader: BatchReader, answers: Answers, where: Indices, timestamps_ms: Int64s) -> None:
        """Answer the requests at `where`; those stay without an answer for which no segment has one."""
        with closing(ServedIndex(self.files)) as index:
            for number in range(self.number, len(self.segments.segment_ids)):
                is_open = (answers.offsets[where] < 0) & answers.have(ErrorCode.NONE)[where]
                where, timestamps_ms = where[is_open], timestamps_ms[is_open]
                if not len(where):
                    return
                self._answer_from(index, number, reader, answers, where, timestamps_ms)

    def _answer_from(
        self,
        index: ServedIndex,
        number: int,
        reader: BatchReader,
        answers: Answers,
        where: Indices,
        timestamps_ms: Int64s,
    ) -> None:
        segments = self.segments
        if segments.is_read(number):
            place, is_latest = segments.place(number), np.zeros(len(where), dtype=np.bool_)
            make = _interval_questions if segments.is_at_sidecar_depth[number] else _batch_questions
            for question in make(index, place, where, timestamps_ms, is_latest, None):
                question.answer(reader, answers)
            return
        runs = [(number, 0, len(where))]
        _put(answers, where, index.find_stairs(segments, runs, timestamps_ms))


def search_archive(
    index: ServedIndex, facts: PartitionFacts, segments: ServedSegments, questions: PartitionQuestions
) -> tuple[Answers, list[ArchiveQuestion]]:
    """Answer times and MAX_TIMESTAMP from the tables, and return the batches and intervals that must be read."""
    answers = Answers.nothing(questions.count)
    to_read: list[ArchiveQuestion] = []
    sought_ms = _sought(questions, facts)
    at_segment = np.searchsorted(segments.running_max_ms, sought_ms)
    is_latest = questions.asks(SpecialTimestamp.MAX_TIMESTAMP)
    at_segment[is_latest] = np.searchsorted(segments.exact_running_max_ms, sought_ms[is_latest])
    remote = np.flatnonzero((sought_ms != NOTHING) & (at_segment < len(segments.segment_ids)))
    # Put the requests of a segment next to each other.
    remote = remote[np.lexsort((sought_ms[remote], at_segment[remote]))]
    sought_ms = sought_ms[remote]
    runs = list(iter_runs(at_segment[remote]))
    if any(segments.is_read(number) for number, _, _ in runs):
        for number, first, last in runs:
            if not segments.is_read(number):
                continue
            where, place = remote[first:last], segments.place(number)
            make = _interval_questions if segments.is_at_sidecar_depth[number] else _batch_questions
            later = None if index.broker_compatible else LaterSegments(index.files, segments, number + 1)
            to_read += make(index, place, where, sought_ms[first:last], is_latest[where], later)
        runs = [run for run in runs if not segments.is_read(run[0])]
    if runs:
        _put(answers, remote, index.find_stairs(segments, runs, sought_ms))
    return answers, to_read


def _put(answers: Answers, where: Indices, found: FoundStairs) -> None:
    answers.offsets[where] = found.offsets
    answers.timestamps_ms[where] = found.timestamps_ms
    answers.leader_epochs[where] = found.leader_epochs


def _sought(questions: PartitionQuestions, facts: PartitionFacts) -> Int64s:
    """Return the times to search for, NOTHING where there is none. MAX_TIMESTAMP searches for the largest itself."""
    latest = NOTHING if facts.max_timestamp_ms is None else facts.max_timestamp_ms
    sought: Int64s = np.where(questions.timestamps_ms >= 0, questions.timestamps_ms, NOTHING)
    sought[questions.asks(SpecialTimestamp.MAX_TIMESTAMP)] = latest
    return sought


def _batch_questions(
    index: ServedIndex,
    place: SegmentPlace,
    where: Indices,
    timestamps_ms: Int64s,
    _is_latest: Flags,
    _following: LaterSegments | None,
) -> Iterator[BatchQuestion]:
    by_position: dict[int, tuple[FoundBatch, list[int]]] = {}
    for number, timestamp_ms in enumerate(timestamps_ms.tolist()):
        batch = index.find_batch(place, timestamp_ms)
        if batch is not None:
            by_position.setdefault(batch.position, (batch, []))[1].append(number)
    row = index.find_segment_row(place) if by_position else {}
    for batch, numbers in by_position.values():
        yield BatchQuestion(row, batch, where[numbers], timestamps_ms[numbers])


def _interval_questions(
    index: ServedIndex,
    place: SegmentPlace,
    where: Indices,
    timestamps_ms: Int64s,
    is_latest: Flags,
    following: LaterSegments | None,
) -> Iterator[IntervalQuestion]:
    by_position: dict[int, tuple[FoundInterval, list[int]]] = {}
    for number, timestamp_ms in enumerate(timestamps_ms.tolist()):
        interval = index.find_interval(place, timestamp_ms)
        if interval is not None:
            by_position.setdefault(interval.position, (interval, []))[1].append(number)
    row = index.find_segment_row(place) if by_position else {}
    for interval, numbers in by_position.values():
        yield IntervalQuestion(row, interval, where[numbers], timestamps_ms[numbers], is_latest[numbers], following)
