"""Answer requests by the rules of ListOffsets.

`ListOffsets.answer_from_tables` answers what the tables decide, and returns the rest as work, one piece per partition:
to read parts of the archive (segments at batch or sidecar depth), or to ask a local tier. The pieces are independent,
so that a slow or broken one does not harm the others. The caller decides who runs them, and until when (`deadlines`).

The order of checks, the errors and the special timestamps are those of a broker (Kafka 4.2: ReplicaManager.fetchOffset,
UnifiedLog.fetchOffsetByTimestamp), with these differences:

- The answer is exact. A broker stops at the first segment that promises an answer; `broker_compatible` does the same. A
  live broker that is asked for the part that is not archived always uses its own rule.
- MAX_TIMESTAMP is that of the whole log including the archive, its lowest offset on ties. A broker's is only that of
  its local segments. As at a broker, records of the first local segment below the log start count.
- What the archive alone cannot know is an error (LOCAL_REQUIRED, OPEN_TRANSACTION, STALE_INDEX), not a guess. With a
  local tier two cases remain. MAX_TIMESTAMP, also of a live broker, is STALE_INDEX if segments were archived and left
  the broker since the index was built. With a log directory, EARLIEST_PENDING_UPLOAD is LOCAL_REQUIRED for a partition
  that has records and nothing archived, because no file says whether it is tiered.
- With a log directory, LATEST_TIERED and EARLIEST_PENDING_UPLOAD are those of the index. Later uploads are noticed only
  when their segments have left the directory (STALE_INDEX).
- Without a local tier, leader epochs are compared with the newest one in the archive, and a partition without archived
  segments is unknown.

Every answer says whether it is exact (`exactness`). With `OnGap.REFUSE`, one that is not is ARCHIVE_INCOMPLETE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from coldlog.errors import AnsweredTooLateError, ArchiveError, NotAuthorizedError, RetriableError
from coldlog.lookups.archive_rules import answer_without_local, fence, hide_epochs, route
from coldlog.lookups.damage.damaged_segments import DamagedSegment
from coldlog.lookups.exactness import ask_local_tier, forget_refused, mark_exactness, refuse_inexact
from coldlog.lookups.local.local_answers import LocalTail
from coldlog.lookups.local.local_tier import LocalTier
from coldlog.lookups.partition_facts import NO_LIMIT, PartitionFacts
from coldlog.lookups.questions import (
    Answers,
    AskedPartitions,
    Indices,
    PartitionQuestions,
    Questions,
    is_unsupported,
)
from coldlog.lookups.search.archive_search import ArchiveQuestion, search_archive
from coldlog.lookups.search.many_partitions import answer_many
from coldlog.lookups.served_index import ServedIndex, WarehouseFiles
from coldlog.model.list_offsets import (
    NEWEST_VERSION,
    UNKNOWN_EPOCH,
    ErrorCode,
    SpecialTimestamp,
)
from coldlog.model.states import IsolationLevel, OnGap

if TYPE_CHECKING:
    from coldlog.lookups.search.batch_lookup import BatchReader

DEFAULT_TIMEOUT_MS = 30_000
Report = Callable[[Sequence[DamagedSegment]], None]
_UNBOUNDED = (SpecialTimestamp.LATEST, SpecialTimestamp.EARLIEST, SpecialTimestamp.EARLIEST_LOCAL)
"""Special timestamps that are answered even if no consumer may read at their offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """How to answer requests that do not say it themselves, and what to use besides the tables.

    `older_incarnations`: those of a topic answer by their names (`model.incarnations`), without a local tier.
    `most_reads_at_once` limits how many partitions each task reads or asks at the same time, besides the tables.
    `report_damage`: an `OffsetReader` reports damage of the archive to the next build (`reported_damage`).
    """

    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    broker_compatible: bool = False
    on_gap: OnGap = OnGap.ANSWER
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    batches: BatchReader | None = None
    local: LocalTier | None = None
    most_reads_at_once: int = 64
    older_incarnations: bool = False
    report_damage: bool = True


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """The rest of one partition: `run` returns the answers of the requests at `where`, in that order. Brokers and the
    read quota get the time until its deadline, in seconds of time.time()."""

    where: Indices
    run: Callable[[float | None], Answers]
    reads_archive: bool


class ListOffsets:
    """Answers from the tables of a warehouse, its archive and a local tier. Use it in one thread; only `run` of
    different pieces of work may run in others."""

    def __init__(
        self,
        index: ServedIndex,
        local: LocalTier | None = None,
        batches: BatchReader | None = None,
        on_gap: OnGap = OnGap.ANSWER,
        report: Report | None = None,
    ) -> None:
        self._index = index
        self._local = local
        self._batches = batches
        self._on_gap = on_gap
        self._report = report

    def answer_from_tables(
        self, questions: Questions, report: Callable[[Indices, Answers], None]
    ) -> list[PartitionWork]:
        """Report the final answers of each partition with the places of their requests. Return the work that gives the
        other answers."""
        work: list[PartitionWork] = []
        is_refused = is_unsupported(questions) | questions.is_invalid
        refused = Answers.nothing(len(is_refused), ErrorCode.UNSUPPORTED_VERSION)
        refused.errors[questions.is_invalid] = ErrorCode.INVALID_REQUEST
        report(np.flatnonzero(is_refused), refused.take(is_refused))
        asked = AskedPartitions.of(questions, np.flatnonzero(~is_refused))
        others: Sequence[int] = range(len(asked))
        if self._local is None:
            others = answer_many(self._index, questions, asked, report)
        for number in others:
            topic, partition, where = asked.topics[number], asked.numbers[number], asked.requests_of(number)
            found, rest = self._answer_partition(topic, partition, PartitionQuestions.at(questions, where))
            if rest is None:
                report(where, found)
                continue
            is_final = np.ones(len(where), dtype=np.bool_)
            is_final[rest.where] = False
            report(where[is_final], found.take(is_final))
            work.append(replace(rest, where=where[rest.where]))
        return work

    def answer(self, questions: Questions) -> Answers:
        """Return all answers; run the pieces of work one after the other, without a deadline."""
        answers = Answers.nothing(len(questions.timestamps_ms))
        for piece in self.answer_from_tables(questions, answers.put):
            answers.put(piece.where, piece.run(None))
        return answers

    def answer_one(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        *,
        is_committed: bool = False,
        leader_epoch: int = UNKNOWN_EPOCH,
        version: int = NEWEST_VERSION,
    ) -> Answers:
        """Return the answer to one request that its version allows, without a deadline. `answer` takes six times as
        long for one, because it makes tables."""
        questions = PartitionQuestions.one(
            timestamp_ms, is_committed=is_committed, leader_epoch=leader_epoch, version=version
        )
        answers, rest = self._answer_partition(topic, partition, questions)
        return answers if rest is None else rest.run(None)

    def close_local(self) -> None:
        """Close the connections of this thread to the local tier."""
        if self._local is not None:
            self._local.close()

    def _answer_partition(
        self, topic: str, partition: int, questions: PartitionQuestions
    ) -> tuple[Answers, PartitionWork | None]:
        """Return the answers from the tables, and the work that gives the final answers to some requests."""
        known, local = self._index.partition(topic, partition), self._local
        if known is None:
            unknown = Answers.nothing(questions.count, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if local is None:
                return unknown, None
            facts, found = None, Answers.nothing(questions.count)
            batches: list[ArchiveQuestion] = []
        else:
            facts, segments = known
            found, batches = search_archive(self._index, facts, segments, questions)
        if local is None:
            assert facts is not None
            return self._read_batches(facts, questions, found, batches)

        def run(deadline: float | None) -> Answers:
            self._read(batches, found, deadline)
            is_compatible, tier = self._index.broker_compatible, local.until(deadline)
            answers = _with_local(tier, topic, partition, facts, questions, found, broker_compatible=is_compatible)
            return self._as_gaps_allow(facts, questions, answers)

        all_places = np.arange(questions.count)
        return found, PartitionWork(all_places, _as_answer(run, questions.count), reads_archive=self._can_read(batches))

    def _read_batches(
        self, facts: PartitionFacts, questions: PartitionQuestions, found: Answers, batches: list[ArchiveQuestion]
    ) -> tuple[Answers, PartitionWork | None]:
        """Answer without a local tier. Only requests that need a batch wait for the archive."""
        waiting = np.concatenate([batch.where for batch in batches] or [np.empty(0, dtype=np.intp)])

        def run(deadline: float | None) -> Answers:
            self._read(batches, found, deadline)
            return self._as_gaps_allow(facts, questions, answer_without_local(facts, questions, found)).take(waiting)

        known = answer_without_local(facts, questions, found.copy() if batches else found)
        answers = self._as_gaps_allow(facts, questions, known)
        return answers, PartitionWork(waiting, run, reads_archive=self._can_read(batches)) if batches else None

    def _can_read(self, batches: list[ArchiveQuestion]) -> bool:
        return bool(batches) and self._batches is not None

    def _read(self, batches: list[ArchiveQuestion], found: Answers, deadline: float | None) -> None:
        reader = None if self._batches is None else self._batches.until(deadline)
        for batch in batches:
            batch.answer(reader, found)
        if found.damages and self._report is not None:
            self._report(found.damages)

    def _as_gaps_allow(self, facts: PartitionFacts | None, questions: PartitionQuestions, answers: Answers) -> Answers:
        if self._on_gap is OnGap.REFUSE:
            refuse_inexact(facts, questions, answers)
        return answers


def _as_answer(run: Callable[[float | None], Answers], count: int) -> Callable[[float | None], Answers]:
    """Turn an error of one partition's archive or local tier into that partition's answers."""

    def run_or_answer_error(deadline: float | None) -> Answers:
        try:
            return run(deadline)
        except ArchiveError:
            return Answers.nothing(count, ErrorCode.CORRUPT_MESSAGE)
        except NotAuthorizedError:
            return Answers.nothing(count, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        except AnsweredTooLateError:
            return Answers.nothing(count, ErrorCode.REQUEST_TIMED_OUT)
        except RetriableError:
            return Answers.nothing(count, ErrorCode.KAFKA_STORAGE_ERROR)

    return run_or_answer_error


def _with_local(
    local: LocalTier,
    topic: str,
    partition: int,
    facts: PartitionFacts | None,
    questions: PartitionQuestions,
    answers: Answers,
    *,
    broker_compatible: bool,
) -> Answers:
    """Complete and limit the archive's answers by the local tier's state of the log."""
    state = local.read_state(topic, partition)
    if state is None:
        if facts is None:
            return Answers.nothing(questions.count, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return answer_without_local(facts, questions, answers)
    if facts is not None and facts.topic_id and state.topic_id not in (None, facts.topic_id):
        # The topic was deleted and created again after the index was built, so the archive's answers do not apply.
        facts, answers = None, Answers.nothing(questions.count)
    tail = LocalTail(local, topic, partition, facts, state, broker_compatible=broker_compatible)
    latest = None if facts is None else facts.routing_max_timestamp_ms
    route(questions, answers, NO_LIMIT if latest is None else latest, tail.search_from)
    fetchable = np.where(questions.is_committed, state.last_stable_offset, state.high_watermark)
    is_settled = (questions.timestamps_ms >= 0) & (answers.offsets >= state.log_start_offset)
    for at in np.flatnonzero(~is_settled & answers.have(ErrorCode.NONE)).tolist():
        timestamp_ms = int(questions.timestamps_ms[at])
        if timestamp_ms >= 0:
            tail.complete(answers, at, timestamp_ms)
        else:
            tail.answer_special(answers, at, SpecialTimestamp(timestamp_ms), int(fetchable[at]))
    searched_from, is_tier_known = tail.searched_from(questions.timestamps_ms, is_settled), tail.is_tier_known
    mark_exactness(facts, questions, answers, searched_from, is_tier_known=is_tier_known)
    ask_local_tier(tail, questions, answers)
    is_bounded = ~np.logical_or.reduce([questions.asks(special) for special in _UNBOUNDED])
    answers.refuse(is_bounded & answers.have(ErrorCode.NONE) & (answers.offsets >= fetchable), ErrorCode.NONE)
    known = facts.leader_epoch if facts is not None else None
    archived_epoch = UNKNOWN_EPOCH if known is None else known
    fence(questions, answers, state.leader_epoch if state.leader_epoch >= 0 else archived_epoch)
    forget_refused(answers)
    return hide_epochs(questions, answers)


def open_lookup(
    files: WarehouseFiles, options: LookupOptions, report: Report | None = None
) -> tuple[ServedIndex, ListOffsets]:
    """Open the tables, and the lookup that answers from them as the options say. `report` is called with the damage
    that it finds in the archive; it must return at once."""
    index = ServedIndex(
        files, broker_compatible=options.broker_compatible, older_incarnations=options.older_incarnations
    )
    return index, ListOffsets(index, options.local, options.batches, options.on_gap, report)
