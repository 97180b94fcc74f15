"""Find the first archived record at or after a time.

At record depth the stairs in the tables answer. At batch depth the tables only name a batch. Reading it is returned as
a separate question, because an archive may be slow; a batch is read once for all requests that it answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coldlog.errors import ArchiveError, RetriableError
from coldlog.lookups.questions import Answers, Indices, PartitionQuestions, iter_runs
from coldlog.lookups.served_index import (
    NOTHING,
    FoundBatch,
    Int64s,
    PartitionFacts,
    SegmentPlace,
    ServedIndex,
    ServedSegments,
)
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp

if TYPE_CHECKING:
    from coldlog.lookups.batch_lookup import BatchReader


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
        except ArchiveError:
            answers.errors[self.where] = ErrorCode.CORRUPT_MESSAGE
        except RetriableError:
            answers.errors[self.where] = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            for at, timestamp_ms in zip(self.where.tolist(), self.timestamps_ms.tolist(), strict=True):
                if (found := stairs.first_at_or_after(timestamp_ms)) is not None:
                    answers.find(at, found)
                else:  # the index says that the batch has one: no record has the maximum of the batch's header
                    answers.errors[at] = ErrorCode.CORRUPT_MESSAGE


def search_archive(
    index: ServedIndex,
    topic: str,
    partition: int,
    facts: PartitionFacts,
    segments: ServedSegments,
    questions: PartitionQuestions,
) -> tuple[Answers, list[BatchQuestion]]:
    """Answer times and MAX_TIMESTAMP from the tables, and return the batches that must be read."""
    answers = Answers.nothing(questions.count)
    batches: list[BatchQuestion] = []
    sought_ms = _sought(questions, facts)
    at_segment = np.searchsorted(segments.running_max_ms, sought_ms)
    is_latest = questions.asks(SpecialTimestamp.MAX_TIMESTAMP)
    at_segment[is_latest] = np.searchsorted(segments.exact_running_max_ms, sought_ms[is_latest])
    remote = np.flatnonzero((sought_ms != NOTHING) & (at_segment < len(segments.segment_ids)))
    # Put the requests of a segment next to each other.
    remote = remote[np.lexsort((sought_ms[remote], at_segment[remote]))]
    sought_ms = sought_ms[remote]
    runs = list(iter_runs(at_segment[remote]))
    if any(segments.is_at_batch_depth[number] for number, _, _ in runs):
        for number, first, last in runs:
            if segments.is_at_batch_depth[number]:
                where = remote[first:last]
                batches += _batch_questions(
                    index, segments.place(topic, partition, number), where, sought_ms[first:last]
                )
        runs = [run for run in runs if not segments.is_at_batch_depth[run[0]]]
    if runs:
        found = index.find_stairs((topic, partition), segments, runs, sought_ms)
        answers.offsets[remote] = found.offsets
        answers.timestamps_ms[remote] = found.timestamps_ms
        answers.leader_epochs[remote] = found.leader_epochs
    return answers, batches


def _sought(questions: PartitionQuestions, facts: PartitionFacts) -> Int64s:
    """Return the times to search for, NOTHING where there is none. MAX_TIMESTAMP searches for the largest itself."""
    latest = NOTHING if facts.max_timestamp_ms is None else facts.max_timestamp_ms
    sought: Int64s = np.where(questions.timestamps_ms >= 0, questions.timestamps_ms, NOTHING)
    sought[questions.asks(SpecialTimestamp.MAX_TIMESTAMP)] = latest
    return sought


def _batch_questions(
    index: ServedIndex, place: SegmentPlace, where: Indices, timestamps_ms: Int64s
) -> Iterator[BatchQuestion]:
    by_position: dict[int, tuple[FoundBatch, list[int]]] = {}
    for number, timestamp_ms in enumerate(timestamps_ms.tolist()):
        batch = index.find_batch(place, timestamp_ms)
        if batch is not None:
            by_position.setdefault(batch.position, (batch, []))[1].append(number)
    row = index.find_segment_row(place) if by_position else {}
    for batch, numbers in by_position.values():
        yield BatchQuestion(row, batch, where[numbers], timestamps_ms[numbers])
