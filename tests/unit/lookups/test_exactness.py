"""Test whether an answer is exact, against every record of small logs of which some segments are not served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.index.unserved_ranges import (
    UnreadSegment,
    UnservedRange,
    find_unserved_ranges,
    ranges_with_rising_bounds,
)
from coldlog.lookups.exactness import mark_exactness, refuse_inexact
from coldlog.lookups.index_rows import NOTHING
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.questions import EXACT, NOT_EXACT, Answers, PartitionQuestions
from coldlog.model.list_offsets import NEWEST_VERSION, ErrorCode, SpecialTimestamp

FACTS = PartitionFacts(
    topic_id="T",
    log_start_offset=0,
    earliest_offset=0,
    latest_tiered_offset=29,
    max_timestamp_ms=9,
    max_timestamp_offset=3,
    stable_offset=30,
    lineage=(),
    unserved_ranges=(),
)
LATEST_MS, LONGEST = 9, 2**63 - 1
Log = list[tuple[bool, list[int]]]
"""Whether each segment is served, and the timestamps of its records."""

segments = st.tuples(st.booleans(), st.lists(st.integers(0, LATEST_MS), min_size=1, max_size=3))
logs = st.lists(segments, min_size=1, max_size=6)


def passed_over(log: Log, *, is_announced: bool) -> tuple[UnservedRange, ...]:
    served, unread, start = [], [], 0
    for is_served, timestamps_ms in log:
        end = start + len(timestamps_ms) - 1
        if is_served:
            served.append((start, end))
        else:
            known = max(timestamps_ms) if is_announced else None
            unread.append(UnreadSegment(start_offset=start, end_offset=end, max_timestamp_ms=known))
        start = end + 1
    last_served = served[-1][1] if served else None
    return tuple(ranges_with_rising_bounds(find_unserved_ranges(served, unread, 0), last_served))


def records(log: Log, *, only_served: bool) -> list[tuple[int, int]]:
    """Offset and timestamp of each record."""
    flat = [(is_served, timestamp_ms) for is_served, timestamps_ms in log for timestamp_ms in timestamps_ms]
    return [(offset, each[1]) for offset, each in enumerate(flat) if each[0] or not only_served]


def first_at_or_after(found: list[tuple[int, int]], timestamp_ms: int) -> tuple[int, int]:
    return next((each for each in found if each[1] >= timestamp_ms), (-1, NOTHING))


def largest(found: list[tuple[int, int]]) -> tuple[int, int]:
    return max(found, key=lambda each: (each[1], -each[0]), default=(-1, NOTHING))


def questions_at(asked_ms: list[int]) -> PartitionQuestions:
    count = len(asked_ms)
    return PartitionQuestions(
        np.array(asked_ms), np.full(count, -1), np.zeros(count, dtype=np.bool_), np.full(count, NEWEST_VERSION)
    )


def marked(facts: PartitionFacts, asked_ms: list[int], found: list[tuple[int, int]]) -> Answers:
    questions = questions_at(asked_ms)
    answers = Answers.nothing(len(asked_ms))
    answers.offsets[:], answers.timestamps_ms[:] = np.array(found).T
    answers.errors[answers.offsets < 0] = ErrorCode.LOCAL_REQUIRED
    mark_exactness(facts, questions, answers)
    return answers


@given(log=logs, is_announced=st.booleans())
def test_end_of_the_archive_is_exact_if_its_last_segment_is_served(log: Log, is_announced: bool) -> None:
    served = records(log, only_served=True)
    tiered, asked = (served[-1][0], 2) if served else (None, 1)
    facts = replace(FACTS, latest_tiered_offset=tiered, unserved_ranges=passed_over(log, is_announced=is_announced))
    specials = [int(SpecialTimestamp.LATEST_TIERED), int(SpecialTimestamp.EARLIEST_PENDING_UPLOAD)][:asked]
    questions = questions_at(specials)
    answers = Answers.nothing(asked)
    answers.offsets[:] = [-1 if tiered is None else tiered + at for at in range(asked)]
    mark_exactness(facts, questions, answers)
    end = sum(len(timestamps_ms) for _, timestamps_ms in log) - 1
    is_exact = log[-1][0]
    assert answers.exactness.tolist() == [EXACT if is_exact else NOT_EXACT] * asked
    assert answers.passed_to.tolist() == [-1 if is_exact else end] * asked
    mark_exactness(facts, questions, answers, np.full(asked, end + 1), is_tier_known=True)
    assert answers.exactness.tolist() == [EXACT] * asked


@given(log=logs, is_announced=st.booleans())
def test_exact_answers_are_those_of_all_records(log: Log, is_announced: bool) -> None:
    times = [*range(LATEST_MS + 2), SpecialTimestamp.MAX_TIMESTAMP]
    served, every = records(log, only_served=True), records(log, only_served=False)
    found = [*(first_at_or_after(served, time) for time in times[:-1]), largest(served)]
    truth = [*(first_at_or_after(every, time) for time in times[:-1]), largest(every)]
    facts = replace(FACTS, unserved_ranges=passed_over(log, is_announced=is_announced))
    answers = marked(facts, [int(time) for time in times], found)
    is_true = [answer == true for answer, true in zip(found, truth, strict=True)]
    exactness = answers.exactness.tolist()
    if is_announced:
        # The bounds are then the largest timestamps themselves: no answer is doubted without reason.
        assert exactness[:-1] == [EXACT if each else NOT_EXACT for each in is_true[:-1]]
    assert all(is_true[at] for at, each in enumerate(exactness) if each == EXACT)
    assert all((answers.passed_from[at] >= 0) == (each == NOT_EXACT) for at, each in enumerate(exactness))


def test_answer_names_the_first_range_that_may_hold_an_earlier_match() -> None:
    ranges = (
        UnservedRange(from_offset=2, to_offset=4, max_timestamp_bound_ms=5),
        UnservedRange(from_offset=8, to_offset=9, max_timestamp_bound_ms=7),
        UnservedRange(from_offset=20, to_offset=None, max_timestamp_bound_ms=None),
    )
    facts = replace(FACTS, unserved_ranges=ranges)
    answers = marked(facts, [5, 5, 6, 7, 8, 8], [(1, 5), (5, 6), (7, 6), (10, 8), (10, 8), (-1, NOTHING)])
    assert answers.exactness.tolist() == [EXACT, NOT_EXACT, EXACT, NOT_EXACT, EXACT, NOT_EXACT]
    assert answers.passed_from.tolist() == [-1, 2, -1, 8, -1, 20]
    assert answers.passed_to.tolist() == [-1, 4, -1, 9, -1, -1]
    refuse_inexact(facts, questions_at([5, 5, 6, 7, 8, 8]), answers)
    assert answers.errors.tolist() == [0, 10_005, 0, 10_005, 0, 10_005]
    assert answers.offsets.tolist() == [1, -1, 7, -1, 10, -1]
    assert answers.passed_from.tolist() == [-1, 2, -1, 8, -1, 20]


@pytest.mark.parametrize(
    "asked",
    [
        0,
        SpecialTimestamp.MAX_TIMESTAMP,
        SpecialTimestamp.EARLIEST,
        SpecialTimestamp.LATEST_TIERED,
        SpecialTimestamp.EARLIEST_PENDING_UPLOAD,
    ],
)
def test_nothing_is_said_of_tables_that_do_not_know_their_gaps(asked: int) -> None:
    answers = marked(replace(FACTS, unserved_ranges=None), [int(asked), SpecialTimestamp.LATEST], [(3, 9), (29, 0)])
    assert answers.exactness.tolist() == [-1, EXACT]


def test_largest_possible_timestamp_has_no_larger_one_behind_it() -> None:
    ranges = (
        UnservedRange(from_offset=2, to_offset=4, max_timestamp_bound_ms=5),
        UnservedRange(from_offset=8, to_offset=9, max_timestamp_bound_ms=LONGEST),
    )
    facts = replace(FACTS, unserved_ranges=ranges)
    found = [(7, LONGEST), (10, LONGEST)]
    answers = marked(facts, [int(SpecialTimestamp.MAX_TIMESTAMP)] * 2, found)
    assert (answers.exactness.tolist(), answers.passed_from.tolist()) == ([EXACT, NOT_EXACT], [-1, 8])


def test_answer_in_offsets_that_may_be_deleted_is_not_exact() -> None:
    """The range begins where the log starts at least, which may be the answer itself."""
    facts = replace(FACTS, unserved_ranges=(UnservedRange(from_offset=5, to_offset=29, max_timestamp_bound_ms=None),))
    answers = marked(facts, [1, 2, 3], [(4, 1), (5, 2), (29, 3)])
    assert answers.exactness.tolist() == [EXACT, NOT_EXACT, NOT_EXACT]
    assert (answers.passed_from.tolist(), answers.passed_to.tolist()) == ([-1, 5, 5], [-1, 29, 29])


def test_earliest_at_the_first_segment_is_not_exact_and_not_refused() -> None:
    """The offsets before it were deleted, or are lost: nothing says which. Times are answered as without them."""
    gap = UnservedRange(from_offset=20, to_offset=24, max_timestamp_bound_ms=None)
    asked, found = [int(SpecialTimestamp.EARLIEST), 1], [(10, NOTHING), (26, 5)]
    start = replace(FACTS, log_start_offset=10, earliest_offset=10, is_start_first_segment=True, lineage=((3, 4),))
    for ranges, exactness, errors in (((), EXACT, 0), ((gap,), NOT_EXACT, 10_005)):
        facts = replace(start, unserved_ranges=ranges)
        answers = marked(facts, asked, found)
        assert answers.exactness.tolist() == [NOT_EXACT, exactness]
        assert (answers.passed_from[0], answers.passed_to[0]) == (4, 9)
        refuse_inexact(facts, questions_at(asked), answers)
        assert answers.errors.tolist() == [0, errors]
        assert answers.offsets[0] == 10


def test_earliest_is_refused_if_the_checkpoint_is_lost() -> None:
    passed = UnservedRange(from_offset=10, to_offset=29, max_timestamp_bound_ms=None)
    facts = replace(FACTS, log_start_offset=10, unserved_ranges=(passed,), is_log_start_known=False)
    asked = [int(SpecialTimestamp.EARLIEST)]
    answers = marked(facts, asked, [(10, NOTHING)])
    refuse_inexact(facts, questions_at(asked), answers)
    assert answers.errors.tolist() == [10_005]


@pytest.mark.parametrize(
    ("log_start", "is_known", "first_passed", "is_exact"),
    [(5, True, 5, True), (5, False, 5, False), (None, True, 2, False), (None, True, 9, True)],
    ids=["segment lost at the start", "checkpoint lost", "segment lost before", "segment lost behind"],
)
def test_earliest_is_exact_if_the_log_start_is_known(
    log_start: int | None, is_known: bool, first_passed: int, is_exact: bool
) -> None:
    passed = UnservedRange(from_offset=first_passed, to_offset=29, max_timestamp_bound_ms=None)
    facts = replace(FACTS, log_start_offset=log_start, earliest_offset=5, unserved_ranges=(passed,))
    answers = marked(replace(facts, is_log_start_known=is_known), [int(SpecialTimestamp.EARLIEST)], [(5, NOTHING)])
    assert answers.exactness.tolist() == [EXACT if is_exact else NOT_EXACT]
    assert answers.passed_from.tolist() == [-1 if is_exact else first_passed]
