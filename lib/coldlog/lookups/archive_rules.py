"""The rules of ListOffsets for what an archive knows of a partition.

The facts are those of one partition, or arrays with those of many: one entry for each request.
"""

from __future__ import annotations

import numpy as np

from coldlog.lookups.exactness import mark_exact, mark_exactness
from coldlog.lookups.index_rows import NOTHING, Int64s
from coldlog.lookups.local.local_tier import FoundOffset
from coldlog.lookups.partition_facts import ArchiveLimits, PartitionFacts
from coldlog.lookups.questions import LOCAL_ONLY, METADATA, REMOTE_THEN_LOCAL, Answers, PartitionQuestions
from coldlog.model.list_offsets import LEADER_EPOCH_SINCE_VERSION, UNKNOWN_EPOCH, ErrorCode, SpecialTimestamp


def answer_without_local(facts: PartitionFacts, questions: PartitionQuestions, answers: Answers) -> Answers:
    """Answer from the archive alone, with the offset at which a local search would begin."""
    limits = facts.limits
    route(questions, answers, limits.routing_max_ms, limits.local_start)
    for special in questions.specials:
        found = _special_from_archive(facts, special)
        if found is not None:
            for at in np.flatnonzero(questions.asks(special)).tolist():
                answers.find(at, found)
    limit_answers(limits, questions, answers)
    mark_exactness(facts, questions, answers)
    return hide_epochs(questions, answers)


def route(
    questions: PartitionQuestions, answers: Answers, routing_max_ms: Int64s | int, local_start: Int64s | int
) -> None:
    """Set the routes. A time later than all timestamps of finished segments needs no read of the archive."""
    is_time = questions.timestamps_ms >= 0
    is_remote = is_time & (questions.timestamps_ms <= routing_max_ms)
    is_local = (
        (is_time & ~is_remote)
        | questions.asks(SpecialTimestamp.LATEST)
        | questions.asks(SpecialTimestamp.EARLIEST_LOCAL)
    )
    answers.routes[:] = METADATA
    answers.routes[is_remote | questions.asks(SpecialTimestamp.MAX_TIMESTAMP)] = REMOTE_THEN_LOCAL
    answers.routes[is_local] = LOCAL_ONLY
    np.copyto(answers.local_starts, local_start, where=answers.routes != METADATA)


def limit_answers(limits: ArchiveLimits, questions: PartitionQuestions, answers: Answers) -> None:
    """Refuse what the archive alone cannot answer, what a reader of committed records may not see yet, and requests
    with another leader epoch."""
    # LATEST_TIERED without an offset is known: nothing is tiered. For all others a local tier must answer.
    is_missing = (answers.offsets < 0) & answers.have(ErrorCode.NONE)
    is_missing &= ~questions.asks(SpecialTimestamp.LATEST_TIERED)
    answers.errors[is_missing] = ErrorCode.LOCAL_REQUIRED
    np.copyto(answers.local_starts, limits.local_start, where=is_missing)
    is_ranked = (questions.timestamps_ms >= 0) | questions.asks(SpecialTimestamp.MAX_TIMESTAMP)
    is_open = is_ranked & questions.is_committed & (answers.offsets >= limits.stable_offset)
    answers.refuse(is_open, ErrorCode.OPEN_TRANSACTION)
    fence(questions, answers, limits.leader_epoch)


def answer_times(limits: ArchiveLimits, questions: PartitionQuestions, answers: Answers) -> Answers:
    """Answer requests for times as `answer_without_local`. They are of one partition or of many, all without gaps."""
    route(questions, answers, limits.routing_max_ms, limits.local_start)
    limit_answers(limits, questions, answers)
    mark_exact(answers)
    return hide_epochs(questions, answers)


def fence(questions: PartitionQuestions, answers: Answers, leader_epoch: Int64s | int) -> None:
    """Refuse requests that name another leader epoch. The newest epoch of the archive may not be the newest of all."""
    if questions.leader_epochs.max() < 0:
        return
    is_fenced = (questions.leader_epochs >= 0) & (questions.versions >= LEADER_EPOCH_SINCE_VERSION)
    is_fenced &= np.greater_equal(leader_epoch, 0)
    for where, error in (
        (questions.leader_epochs < leader_epoch, ErrorCode.FENCED_LEADER_EPOCH),
        (questions.leader_epochs > leader_epoch, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        answers.put(is_fenced & where, Answers.nothing(int(np.count_nonzero(is_fenced & where)), error))


def hide_epochs(questions: PartitionQuestions, answers: Answers) -> Answers:
    """Remove the leader epochs from answers of versions that have none."""
    answers.leader_epochs[questions.versions < LEADER_EPOCH_SINCE_VERSION] = UNKNOWN_EPOCH
    return answers


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
