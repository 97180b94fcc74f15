"""list_offsets: what does each request get, by the rules of ListOffsets?

`ListOffsets.answer_from_tables` answers what the tables decide and leaves the rest as work, a piece a partition:
batches of the archive to read (segments at batch depth), a local tier to ask. Pieces are independent of each other, so
that a slow or broken one harms no other; who runs them, and until when, is the caller's business (`deadlines`).

Order of checks, errors and special timestamps are a broker's (Kafka 4.2: ReplicaManager.fetchOffset, UnifiedLog.
fetchOffsetByTimestamp), with these differences:

- The answer is exact where a broker stops at the first segment that promises one, unless `broker_compatible`. A live
  broker that is asked for what is not archived goes by its own rule, whatever is set.
- MAX_TIMESTAMP is that of the whole log, archive included, its lowest offset on ties, where a broker's is that of its
  local segments. As at a broker, records of the first local segment count that lie below the log start.
- What an archive alone cannot know is said (LOCAL_REQUIRED, OPEN_TRANSACTION, STALE_INDEX) rather than guessed. With a
  local tier that is: MAX_TIMESTAMP, also of a live broker, where segments were archived and left the broker since the
  index was made (STALE_INDEX); beside a log directory, EARLIEST_PENDING_UPLOAD of a partition that has records and
  nothing archived, since no file tells whether it is tiered (LOCAL_REQUIRED).
- Beside a log directory, LATEST_TIERED and EARLIEST_PENDING_UPLOAD are as the index knows: what was archived since
  shows when it has left the directory (STALE_INDEX).
- Without a local tier, leader epochs are held against the newest that the archive knows, and a partition of which
  nothing is archived is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from coldlog.errors import ArchiveError, NotAuthorizedError, RetriableError
from coldlog.lookups.archive_search import BatchQuestion, search_archive
from coldlog.lookups.batch_lookup import BatchReader
from coldlog.lookups.local.local_answers import LocalTail
from coldlog.lookups.local.local_tier import FoundOffset, LocalTier
from coldlog.lookups.questions import (
    LOCAL_ONLY,
    METADATA,
    REMOTE_THEN_LOCAL,
    Answers,
    Asked,
    Indices,
    Questions,
    is_unsupported,
    iter_partitions,
)
from coldlog.lookups.served_index import NOTHING, PartitionFacts, ServedIndex, WarehouseFiles
from coldlog.model.list_offsets import LEADER_EPOCH_SINCE_VERSION, UNKNOWN_EPOCH, ErrorCode, SpecialTimestamp
from coldlog.model.states import IsolationLevel

DEFAULT_TIMEOUT_MS = 30_000
_UNBOUNDED = (SpecialTimestamp.LATEST, SpecialTimestamp.EARLIEST, SpecialTimestamp.EARLIEST_LOCAL)
"""Told even where nobody may read what lies there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """How requests are answered that do not say otherwise, and with what help beside the tables.

    `most_reads_at_once` bounds how many partitions each task reads or asks at the same time, beyond the tables.
    """

    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    broker_compatible: bool = False
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    batches: BatchReader | None = None
    local: LocalTier | None = None
    most_reads_at_once: int = 64


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """What is left of one partition: `run` gives the answers of the requests at `where`, in that order."""

    where: Indices
    run: Callable[[], Answers]


class ListOffsets:
    """Answers from the tables of one warehouse, its archive and one local tier; for one thread, but for `run` of
    different pieces of work."""

    def __init__(self, index: ServedIndex, local: LocalTier | None = None, batches: BatchReader | None = None) -> None:
        self._index = index
        self._local = local
        self._batches = batches

    def answer_from_tables(self, questions: Questions, tell: Callable[[Indices, Answers], None]) -> list[PartitionWork]:
        """Tells, partition by partition, the answers that stand, with the places of their requests; returns the work
        that gives the others."""
        work: list[PartitionWork] = []
        is_refused = is_unsupported(questions) | questions.is_invalid
        refused = Answers.nothing(len(is_refused), ErrorCode.UNSUPPORTED_VERSION)
        refused.errors[questions.is_invalid] = ErrorCode.INVALID_REQUEST
        tell(np.flatnonzero(is_refused), refused.take(is_refused))
        for topic, partition, where in iter_partitions(questions, np.flatnonzero(~is_refused)):
            found, left = self._answer_partition(topic, partition, Asked.at(questions, where))
            if left is None:
                tell(where, found)
                continue
            stands = np.ones(len(where), dtype=np.bool_)
            stands[left.where] = False
            tell(where[stands], found.take(stands))
            work.append(replace(left, where=where[left.where]))
        return work

    def answer(self, questions: Questions) -> Answers:
        """All answers, one piece of work behind the other, however long they take."""
        answers = Answers.nothing(len(questions.timestamps_ms))
        for piece in self.answer_from_tables(questions, answers.put):
            answers.put(piece.where, piece.run())
        return answers

    def answer_one(self, topic: str, partition: int, timestamp_ms: int, *, is_committed: bool = False) -> Answers:
        """The answer to one request of the newest version, however long it takes."""
        answers, left = self._answer_partition(topic, partition, Asked.one(timestamp_ms, is_committed=is_committed))
        return answers if left is None else left.run()

    def _answer_partition(self, topic: str, partition: int, asked: Asked) -> tuple[Answers, PartitionWork | None]:
        """Answers, and the work that gives better ones to some of them."""
        known, local = self._index.partition(topic, partition), self._local
        if known is None:
            nobody = Answers.nothing(asked.count, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if local is None:
                return nobody, None
            facts, found = None, Answers.nothing(asked.count)
            batches: list[BatchQuestion] = []
        else:
            facts, segments = known
            found, batches = search_archive(self._index, topic, partition, facts, segments, asked)
        if local is None:
            assert facts is not None
            return self._read_batches(facts, asked, found, batches)

        def run() -> Answers:
            for batch in batches:
                batch.answer(self._batches, found)
            return _with_local(
                local, topic, partition, facts, asked, found, broker_compatible=self._index.broker_compatible
            )

        everyone = np.arange(asked.count)
        return found, PartitionWork(everyone, _told(run, asked.count))

    def _read_batches(
        self, facts: PartitionFacts, asked: Asked, found: Answers, batches: list[BatchQuestion]
    ) -> tuple[Answers, PartitionWork | None]:
        """Without a local tier: only who needs a batch waits for the archive."""
        waiting = np.concatenate([batch.where for batch in batches] or [np.empty(0, dtype=np.intp)])

        def run() -> Answers:
            for batch in batches:
                batch.answer(self._batches, found)
            return _without_local(facts, asked, found).take(waiting)

        answers = _without_local(facts, asked, found.copy() if batches else found)
        return answers, PartitionWork(waiting, run) if batches else None


def _told(run: Callable[[], Answers], count: int) -> Callable[[], Answers]:
    """What is wrong with one partition's archive or tier is an answer."""

    def told() -> Answers:
        try:
            return run()
        except ArchiveError:
            return Answers.nothing(count, ErrorCode.CORRUPT_MESSAGE)
        except NotAuthorizedError:
            return Answers.nothing(count, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        except RetriableError:
            return Answers.nothing(count, ErrorCode.KAFKA_STORAGE_ERROR)

    return told


def _route(facts: PartitionFacts | None, asked: Asked, answers: Answers, local_start: int) -> None:
    """By the archive's largest timestamp, which spares the archive requests that are later than all of it."""
    is_time = asked.timestamps_ms >= 0
    latest = None if facts is None else facts.max_timestamp_ms
    is_remote = is_time if latest is None else is_time & (asked.timestamps_ms <= latest)
    is_local = (
        (is_time & ~is_remote) | asked.asks(SpecialTimestamp.LATEST) | asked.asks(SpecialTimestamp.EARLIEST_LOCAL)
    )
    answers.routes[:] = METADATA
    answers.routes[is_remote | asked.asks(SpecialTimestamp.MAX_TIMESTAMP)] = REMOTE_THEN_LOCAL
    answers.routes[is_local] = LOCAL_ONLY
    answers.local_starts[answers.routes != METADATA] = local_start


def _fence(asked: Asked, answers: Answers, leader_epoch: int | None) -> None:
    """Those who know another leader get no answer. The archive's newest leader may not be the newest there is."""
    if leader_epoch is not None and leader_epoch >= 0 and asked.leader_epochs.max() >= 0:
        is_fenced = (asked.leader_epochs >= 0) & (asked.versions >= LEADER_EPOCH_SINCE_VERSION)
        for where, error in (
            (asked.leader_epochs < leader_epoch, ErrorCode.FENCED_LEADER_EPOCH),
            (asked.leader_epochs > leader_epoch, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ):
            answers.put(is_fenced & where, Answers.nothing(int(np.count_nonzero(is_fenced & where)), error))


def _hide_epochs(asked: Asked, answers: Answers) -> Answers:
    answers.leader_epochs[asked.versions < LEADER_EPOCH_SINCE_VERSION] = UNKNOWN_EPOCH
    return answers


def _without_local(facts: PartitionFacts, asked: Asked, answers: Answers) -> Answers:
    """There is only the archive: it says where a local search would have to begin."""
    _route(facts, asked, answers, facts.local_start_offset)
    for special in asked.specials:
        found = _special_from_archive(facts, special)
        if found is not None:
            for at in np.flatnonzero(asked.asks(special)).tolist():
                answers.find(at, found)
    # Nothing is tiered, which is known; all else that lacks is for others to say.
    is_missing = (answers.offsets < 0) & (answers.errors == ErrorCode.NONE)
    is_missing &= ~asked.asks(SpecialTimestamp.LATEST_TIERED)
    answers.errors[is_missing] = ErrorCode.LOCAL_REQUIRED
    answers.local_starts[is_missing] = facts.local_start_offset
    is_time = asked.timestamps_ms >= 0
    if facts.stable_offset is not None:
        is_ranked = is_time | asked.asks(SpecialTimestamp.MAX_TIMESTAMP)
        is_open = is_ranked & asked.is_committed & (answers.offsets >= facts.stable_offset)
        answers.refuse(is_open, ErrorCode.OPEN_TRANSACTION)
    _fence(asked, answers, facts.leader_epoch)
    return _hide_epochs(asked, answers)


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
    asked: Asked,
    answers: Answers,
    *,
    broker_compatible: bool,
) -> Answers:
    """The archive's answers, completed and bounded by what the local tier knows of the log."""
    state = local.read_state(topic, partition)
    if state is None:
        if facts is None:
            return Answers.nothing(asked.count, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _without_local(facts, asked, answers)
    if facts is not None and facts.topic_id and state.topic_id not in (None, facts.topic_id):
        # Made anew since the index was made, which knows another topic of that name.
        facts, answers = None, Answers.nothing(asked.count)
    tail = LocalTail(local, topic, partition, facts, state, broker_compatible=broker_compatible)
    _route(facts, asked, answers, tail.search_from)
    fetchable = np.where(asked.is_committed, state.last_stable_offset, state.high_watermark)
    is_settled = (asked.timestamps_ms >= 0) & (answers.offsets >= state.log_start_offset)
    for at in np.flatnonzero(~is_settled & (answers.errors == ErrorCode.NONE)).tolist():
        timestamp_ms = int(asked.timestamps_ms[at])
        if timestamp_ms >= 0:
            tail.complete(answers, at, timestamp_ms)
        else:
            tail.answer_special(answers, at, SpecialTimestamp(timestamp_ms), int(fetchable[at]))
    is_bounded = ~np.isin(asked.timestamps_ms, _UNBOUNDED)
    answers.refuse(is_bounded & (answers.errors == ErrorCode.NONE) & (answers.offsets >= fetchable), ErrorCode.NONE)
    known = facts.leader_epoch if facts is not None else None
    _fence(asked, answers, state.leader_epoch if state.leader_epoch >= 0 else known)
    return _hide_epochs(asked, answers)


def open_lookup(files: WarehouseFiles, options: LookupOptions) -> tuple[ServedIndex, ListOffsets]:
    """The tables, and what answers from them with what the options bring beside."""
    index = ServedIndex(files, broker_compatible=options.broker_compatible)
    return index, ListOffsets(index, options.local, options.batches)
