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
from coldlog.lookups.damage.damaged_segments import DamagedSegment
from coldlog.lookups.exactness import ask_local_tier, forget_refused, mark_exactness, refuse_inexact
from coldlog.lookups.index_rows import NOTHING
from coldlog.lookups.local.local_answers import LocalTail
from coldlog.lookups.local.local_tier import FoundOffset, LocalTier
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.questions import (
    LOCAL_ONLY,
    METADATA,
    REMOTE_THEN_LOCAL,
    Answers,
    Indices,
    PartitionQuestions,
    Questions,
    is_unsupported,
    iter_partitions,
)
from coldlog.lookups.search.archive_search import ArchiveQuestion, search_archive
from coldlog.lookups.served_index import ServedIndex, WarehouseFiles
from coldlog.model.list_offsets import (
    LEADER_EPOCH_SINCE_VERSION,
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
        for topic, partition, where in iter_partitions(questions, np.flatnonzero(~is_refused)):
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
            return self._as_gaps_allow(facts, questions, _without_local(facts, questions, found)).take(waiting)

        known = _without_local(facts, questions, found.copy() if batches else found)
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


def _route(facts: PartitionFacts | None, questions: PartitionQuestions, answers: Answers, local_start: int) -> None:
    """Set the routes. A time later than all timestamps of finished segments needs no read of the archive."""
    is_time = questions.timestamps_ms >= 0
    latest = None if facts is None else facts.routing_max_timestamp_ms
    is_remote = is_time if latest is None else is_time & (questions.timestamps_ms <= latest)
    is_local = (
        (is_time & ~is_remote)
        | questions.asks(SpecialTimestamp.LATEST)
        | questions.asks(SpecialTimestamp.EARLIEST_LOCAL)
    )
    answers.routes[:] = METADATA
    answers.routes[is_remote | questions.asks(SpecialTimestamp.MAX_TIMESTAMP)] = REMOTE_THEN_LOCAL
    answers.routes[is_local] = LOCAL_ONLY
    answers.local_starts[answers.routes != METADATA] = local_start


def _fence(questions: PartitionQuestions, answers: Answers, leader_epoch: int | None) -> None:
    """Refuse requests that name another leader epoch. The newest epoch of the archive may not be the newest of all."""
    if leader_epoch is not None and leader_epoch >= 0 and questions.leader_epochs.max() >= 0:
        is_fenced = (questions.leader_epochs >= 0) & (questions.versions >= LEADER_EPOCH_SINCE_VERSION)
        for where, error in (
            (questions.leader_epochs < leader_epoch, ErrorCode.FENCED_LEADER_EPOCH),
            (questions.leader_epochs > leader_epoch, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            answers.put(is_fenced & where, Answers.nothing(int(np.count_nonzero(is_fenced & where)), error))


def _hide_epochs(questions: PartitionQuestions, answers: Answers) -> Answers:
    answers.leader_epochs[questions.versions < LEADER_EPOCH_SINCE_VERSION] = UNKNOWN_EPOCH
    return answers


def _without_local(facts: PartitionFacts, questions: PartitionQuestions, answers: Answers) -> Answers:
    """Answer from the archive alone, with the offset at which a local search would begin."""
    _route(facts, questions, answers, facts.local_start_offset)
    for special in questions.specials:
        found = _special_from_archive(facts, special)
        if found is not None:
            for at in np.flatnonzero(questions.asks(special)).tolist():
                answers.find(at, found)
    # LATEST_TIERED without an offset is known: nothing is tiered. For all others a local tier must answer.
    is_missing = (answers.offsets < 0) & answers.have(ErrorCode.NONE)
    is_missing &= ~questions.asks(SpecialTimestamp.LATEST_TIERED)
    answers.errors[is_missing] = ErrorCode.LOCAL_REQUIRED
    answers.local_starts[is_missing] = facts.local_start_offset
    is_time = questions.timestamps_ms >= 0
    if facts.stable_offset is not None:
        is_ranked = is_time | questions.asks(SpecialTimestamp.MAX_TIMESTAMP)
        is_open = is_ranked & questions.is_committed & (answers.offsets >= facts.stable_offset)
        answers.refuse(is_open, ErrorCode.OPEN_TRANSACTION)
    _fence(questions, answers, facts.leader_epoch)
    mark_exactness(facts, questions, answers)
    return _hide_epochs(questions, answers)


def _special_from_archive(facts: PartitionFacts, special: SpecialTimestamp) -> FoundOffset | None:
    tiered = facts.latest_tiered_offset
    match special:
        case SpecialTimestamp.EARLIEST if facts.log_start_offset is not None or facts.earliest_offset is not None:
            return _at(facts, facts.first_offset)
        case SpecialTimestamp.LATEST_TIERED if tiered is not None:
            return _at(facts, tiered)
        case SpecialTimestamp.EARLIEST_PENDING_UPLOAD if tiered is not None:
            return _at(facts, max(tiered + 1, facts.first_offset))
    return None


def _at(facts: PartitionFacts, offset: int) -> FoundOffset:
    epoch = facts.leader_epoch_at(offset)
    return FoundOffset(offset=offset, timestamp_ms=NOTHING, leader_epoch=UNKNOWN_EPOCH if epoch is None else epoch)


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
        return _without_local(facts, questions, answers)
    if facts is not None and facts.topic_id and state.topic_id not in (None, facts.topic_id):
        # The topic was deleted and created again after the index was built, so the archive's answers do not apply.
        facts, answers = None, Answers.nothing(questions.count)
    tail = LocalTail(local, topic, partition, facts, state, broker_compatible=broker_compatible)
    _route(facts, questions, answers, tail.search_from)
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
    _fence(questions, answers, state.leader_epoch if state.leader_epoch >= 0 else known)
    forget_refused(answers)
    return _hide_epochs(questions, answers)


def open_lookup(
    files: WarehouseFiles, options: LookupOptions, report: Report | None = None
) -> tuple[ServedIndex, ListOffsets]:
    """Open the tables, and the lookup that answers from them as the options say. `report` is called with the damage
    that it finds in the archive; it must return at once."""
    index = ServedIndex(
        files, broker_compatible=options.broker_compatible, older_incarnations=options.older_incarnations
    )
    return index, ListOffsets(index, options.local, options.batches, options.on_gap, report)
