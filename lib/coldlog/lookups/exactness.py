"""Say of each answer whether it is exact, that is, whether no offset that was passed over can hold an earlier match.

`partition_metadata` has the ranges of offsets that no segment serves, with rising bounds of their timestamps
(`index.unserved_ranges`). The first range whose bound is at or after T decides: if it begins at or before the answer,
or if there is no answer, the answer is not exact. A range begins at the answer if the log's start is not known. If a
local tier was searched, the ranges from where its search began do not count.

The answer to EARLIEST is not exact if the newest leader epoch checkpoint is lost, or if no log start is known and the
range before the first served offset is passed over. It is not exact either if it is the first segment that is known,
and a checkpoint begins before it: the offsets between were deleted, or are lost. That alone is no gap, so it is never
refused: a reader from the beginning begins there. A local tier knows where the log starts.

The answers to LATEST_TIERED and EARLIEST_PENDING_UPLOAD are not exact if segments after the last served one cannot be
read, or are not read yet. A broker knows them (`is_tier_known`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from coldlog.index.unserved_ranges import UnservedRange
from coldlog.lookups.index_rows import Int64s
from coldlog.lookups.local.local_answers import LocalTail
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.questions import EXACT, NOT_EXACT, Answers, Flags, PartitionQuestions
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp

_NEVER = np.iinfo(np.int64).max
_UNKNOWN = -1


def mark_exactness(
    facts: PartitionFacts | None,
    questions: PartitionQuestions,
    answers: Answers,
    searched_from: Int64s | None = None,
    *,
    is_tier_known: bool = False,
) -> None:
    """Set `exactness` and the passed range of the answers. `facts` None: only a local tier answered. `searched_from`:
    from where each request searched a local tier. `is_tier_known`: it said what is archived."""
    is_answered = answers.have(ErrorCode.NONE)
    answers.exactness[is_answered] = EXACT
    ranges = () if facts is None else facts.unserved_ranges
    unknown = None if facts is None else facts.unknown_range
    if ranges == () and unknown is None and (facts is None or is_answered.all()):
        return
    is_time, is_max = questions.timestamps_ms >= 0, questions.asks(SpecialTimestamp.MAX_TIMESTAMP)
    is_earliest = is_answered & questions.asks(SpecialTimestamp.EARLIEST) & (searched_from is None)
    is_end = is_answered & (not is_tier_known)
    is_end &= questions.asks(SpecialTimestamp.LATEST_TIERED) | questions.asks(SpecialTimestamp.EARLIEST_PENDING_UPLOAD)
    is_searched = is_earliest | is_end | ((is_answered | answers.have(ErrorCode.LOCAL_REQUIRED)) & (is_time | is_max))
    answers.exactness[is_searched] = _UNKNOWN if ranges is None else EXACT
    if unknown is not None:
        _name(answers, is_earliest, unknown)
    if not ranges or facts is None:
        return
    if not facts.is_log_start_known or (facts.log_start_offset is None and ranges[0].from_offset < facts.first_offset):
        _name(answers, is_earliest, ranges[0])
    if ranges[-1].reaches_past(facts.latest_tiered_offset):
        _name(answers, is_end, ranges[-1])
    ends = np.full(questions.count, _NEVER) if searched_from is None else searched_from
    limits = np.where(answers.offsets < 0, ends, np.minimum(answers.offsets + 1, ends))
    _mark(answers, ranges, is_searched & is_time, questions.timestamps_ms, limits)
    # A larger timestamp at a later offset would be the answer to MAX_TIMESTAMP, too.
    _mark(answers, ranges, is_searched & is_max, answers.timestamps_ms, ends, side="right")
    _mark(answers, ranges, is_searched & is_max, answers.timestamps_ms, limits)


def mark_exact(answers: Answers) -> None:
    """Set `exactness` of answers to times of partitions without gaps."""
    answers.exactness[answers.have(ErrorCode.NONE) | answers.have(ErrorCode.LOCAL_REQUIRED)] = EXACT


def ask_local_tier(tail: LocalTail, questions: PartitionQuestions, answers: Answers) -> None:
    """Search the offsets that were passed over in the local tier, where it still has them."""
    for at in np.flatnonzero((answers.exactness == NOT_EXACT) & (questions.timestamps_ms >= 0)).tolist():
        if tail.search_passed_over(answers, at, int(questions.timestamps_ms[at])):
            answers.exactness[at], answers.passed_from[at], answers.passed_to[at] = EXACT, -1, -1


def forget_refused(answers: Answers) -> None:
    """Remove the exactness of answers that became errors."""
    is_refused = ~(answers.have(ErrorCode.NONE) | answers.have(ErrorCode.LOCAL_REQUIRED))
    for column in (answers.exactness, answers.passed_from, answers.passed_to):
        column[is_refused] = -1


def refuse_inexact(facts: PartitionFacts | None, questions: PartitionQuestions, answers: Answers) -> None:
    """Replace answers that are not exact by the error ARCHIVE_INCOMPLETE; the passed range stays. `facts` as for
    `mark_exactness`."""
    is_refused = answers.exactness == NOT_EXACT
    if facts is not None and facts.unknown_range is not None:
        is_refused &= ~questions.asks(SpecialTimestamp.EARLIEST)
    answers.refuse(is_refused, ErrorCode.ARCHIVE_INCOMPLETE)


def _name(answers: Answers, where: Flags, passed_over: UnservedRange) -> None:
    """Mark answers that passed over this range."""
    answers.exactness[where] = NOT_EXACT
    answers.passed_from[where] = passed_over.from_offset
    answers.passed_to[where] = -1 if passed_over.to_offset is None else passed_over.to_offset


def _mark(
    answers: Answers,
    ranges: Sequence[UnservedRange],
    where: Flags,
    sought_ms: Int64s,
    limits: Int64s,
    side: Literal["left", "right"] = "left",
) -> None:
    """Mark answers that passed over a range whose bound is at or after `sought_ms` and that begins before `limits`.
    With the side "right" the bound must be after it."""
    bounds = [_NEVER if each.max_timestamp_bound_ms is None else each.max_timestamp_bound_ms for each in ranges]
    first = np.searchsorted(np.array(bounds), sought_ms, side=side)
    from_offsets = np.array([*(each.from_offset for each in ranges), _NEVER])
    to_offsets = np.array([*(-1 if each.to_offset is None else each.to_offset for each in ranges), -1])
    passed = where & (from_offsets[first] < limits)
    answers.exactness[passed] = NOT_EXACT
    answers.passed_from[passed] = from_offsets[first[passed]]
    answers.passed_to[passed] = to_offsets[first[passed]]
