"""Test how the answers of the archive are completed and limited by a log directory that has the rest of the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders.log_directory_writer import write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.formats.limits import DecodeLimits
from coldlog.index.unserved_ranges import UnservedRange
from coldlog.lookups.exactness import ask_local_tier, mark_exactness
from coldlog.lookups.index_rows import NOTHING
from coldlog.lookups.local.local_answers import LocalTail
from coldlog.lookups.local.local_tier import FoundOffset, LocalLogState
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.questions import EXACT, NOT_EXACT, Answers, PartitionQuestions
from coldlog.model.list_offsets import UNKNOWN_EPOCH, ErrorCode, SpecialTimestamp

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
TOPIC = "orders"
TIMES = ((50, 10, 40, 20), (30, 60, 10, 15), (60, 55, 5, 60))
"""Of offsets 0 to 3, 4 to 7 and 8 to 11, in three segments."""
LINEAGE = ((0, 0), (2, 4), (5, 8))
END = 12


def facts(*, tiered: int | None, lineage: tuple[tuple[int, int], ...] = ((0, 0),)) -> PartitionFacts:
    """The archive has the offsets from 0 to `tiered`."""
    return PartitionFacts(
        topic_id="A" * 22,
        log_start_offset=None,
        earliest_offset=0,
        latest_tiered_offset=tiered,
        max_timestamp_ms=50,
        max_timestamp_offset=0,
        stable_offset=None,
        lineage=lineage,
    )


def written(directory: Path, first: int) -> LogDirectoryTier:
    """The log from segment number `first` on."""
    segments = [
        Segment(
            batches=(
                Batch(
                    base_offset=4 * number,
                    records=tuple(Record(timestamp_ms=each) for each in times),
                    leader_epoch=LINEAGE[number][0],
                ),
            ),
            index_interval_bytes=0,
        )
        for number, times in enumerate(TIMES)
    ]
    write_partition(directory, TOPIC, 0, segments, first=first)
    return LogDirectoryTier(str(directory), LIMITS)


def tail_of(directory: Path, known: PartitionFacts | None, *, first: int = 1, **changes: int) -> LocalTail:
    """The log from segment number `first` on beside its archive; `changes` are what a live broker knows besides."""
    local = written(directory, first)
    state = local.read_state(TOPIC, 0)
    assert state == LocalLogState(
        log_start_offset=0,
        local_log_start_offset=4 * first,
        high_watermark=END,
        last_stable_offset=END,
        leader_epoch=5,
        topic_id="A" * 22,
    )
    state = replace(state, **changes)  # type: ignore[arg-type]  # numbers of LocalLogState
    return LocalTail(local, TOPIC, 0, known, state)


Answer = tuple[ErrorCode, FoundOffset | None]


def at(offset: int, timestamp_ms: int, leader_epoch: int) -> Answer:
    found = FoundOffset(offset=offset, timestamp_ms=timestamp_ms, leader_epoch=leader_epoch)
    return ErrorCode.NONE, found


def special(tail: LocalTail, asked: SpecialTimestamp, *, archived: FoundOffset | None = None) -> Answer:
    """The answer if every offset may be fetched; `archived` is that of the archive."""
    answers = Answers.nothing(1)
    if archived is not None:
        answers.find(0, archived)
    tail.answer_special(answers, 0, asked, END)
    return ErrorCode(int(answers.errors[0])), answers.found(0)


def first_at(tail: LocalTail, timestamp_ms: int, *, archived: FoundOffset | None = None) -> Answer:
    answers = Answers.nothing(1)
    if archived is not None:
        answers.find(0, archived)
    tail.complete(answers, 0, timestamp_ms)
    return ErrorCode(int(answers.errors[0])), answers.found(0)


NONE_FOUND: Answer = (ErrorCode.NONE, None)
STALE: Answer = (ErrorCode.STALE_INDEX, None)


def test_time_after_the_archive_is_found_in_the_log_directory(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, facts(tiered=3))
    assert first_at(tail, 55) == at(5, 60, 2)
    assert first_at(tail, 61) == NONE_FOUND


def test_time_is_stale_if_segments_left_the_log_directory_after_the_index_was_built(tmp_path: Path) -> None:
    assert first_at(tail_of(tmp_path, facts(tiered=3), first=2), 55) == STALE
    assert first_at(tail_of(tmp_path / "7", facts(tiered=7), first=2), 55) == at(8, 60, 5)


def test_answer_of_the_archive_below_the_log_start_is_replaced(tmp_path: Path) -> None:
    archived = FoundOffset(offset=2, timestamp_ms=40, leader_epoch=0)
    assert first_at(tail_of(tmp_path, facts(tiered=3), log_start_offset=4), 40, archived=archived) == at(5, 60, 2)
    assert first_at(tail_of(tmp_path / "3", facts(tiered=3), log_start_offset=3), 40, archived=archived) == STALE


def test_broker_compatible_search_begins_at_the_first_local_segment(tmp_path: Path) -> None:
    """The broker's rule may skip records of the archive that the log directory still has."""
    tail = tail_of(tmp_path, facts(tiered=7))
    assert first_at(tail, 56) == at(8, 60, 5)
    assert first_at(replace(tail, broker_compatible=True), 56) == at(5, 60, 2)


def test_latest_is_the_offset_up_to_which_may_be_fetched(tmp_path: Path) -> None:
    assert special(tail_of(tmp_path, facts(tiered=3)), SpecialTimestamp.LATEST) == at(END, NOTHING, 5)


def test_earliest_offsets_have_the_epoch_of_the_lineage_and_else_that_of_the_archive(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, facts(tiered=3, lineage=((9, 0),)))
    assert special(tail, SpecialTimestamp.EARLIEST) == at(0, NOTHING, 0)
    assert special(tail, SpecialTimestamp.EARLIEST_LOCAL) == at(4, NOTHING, 2)
    (tmp_path / f"{TOPIC}-0" / "leader-epoch-checkpoint").write_text("0\n1\n2 4\n")
    assert special(tail, SpecialTimestamp.EARLIEST) == at(0, NOTHING, 9)
    assert special(replace(tail, facts=None), SpecialTimestamp.EARLIEST) == at(0, NOTHING, UNKNOWN_EPOCH)


@pytest.mark.parametrize(
    ("tiered", "first", "changes", "latest_tiered", "first_pending"),
    [
        (3, 1, {}, at(3, NOTHING, 0), at(4, NOTHING, 2)),
        (3, 2, {}, STALE, STALE),
        (3, 2, {"highest_tiered_offset": 7}, at(7, NOTHING, 2), at(8, NOTHING, 5)),
        (3, 2, {"highest_tiered_offset": 7, "earliest_pending_offset": 9}, at(7, NOTHING, 2), at(9, NOTHING, 5)),
        (3, 1, {"highest_tiered_offset": 0, "earliest_pending_offset": -1}, at(0, NOTHING, 0), NONE_FOUND),
        (3, 1, {"highest_tiered_offset": -1}, NONE_FOUND, NONE_FOUND),
        (3, 0, {"highest_tiered_offset": -1}, NONE_FOUND, at(0, NOTHING, 0)),
        (3, 1, {"log_start_offset": 6, "local_log_start_offset": 6}, at(3, NOTHING, 0), at(6, NOTHING, 2)),
    ],
)
def test_tiered_and_pending_offsets_are_those_of_the_broker_and_else_those_of_the_index(
    tmp_path: Path, tiered: int, first: int, changes: dict[str, int], latest_tiered: Answer, first_pending: Answer
) -> None:
    tail = tail_of(tmp_path, facts(tiered=tiered), first=first, **changes)
    assert special(tail, SpecialTimestamp.LATEST_TIERED) == latest_tiered
    assert special(tail, SpecialTimestamp.EARLIEST_PENDING_UPLOAD) == first_pending


def test_hole_does_not_concern_the_earliest_offsets(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, facts(tiered=3), first=2)
    assert special(tail, SpecialTimestamp.EARLIEST) == at(0, NOTHING, 0)
    assert special(tail, SpecialTimestamp.EARLIEST_LOCAL) == at(8, NOTHING, 5)


def test_pending_offset_is_unknown_if_nothing_says_that_the_partition_is_tiered(tmp_path: Path) -> None:
    pending = SpecialTimestamp.EARLIEST_PENDING_UPLOAD
    assert special(tail_of(tmp_path, None, first=0), pending) == (ErrorCode.LOCAL_REQUIRED, None)
    empty = tail_of(tmp_path / "empty", None, first=0, log_start_offset=END, local_log_start_offset=END)
    assert special(empty, pending) == NONE_FOUND
    told = tail_of(tmp_path / "told", None, first=0, earliest_pending_offset=4)
    assert special(told, pending) == at(4, NOTHING, 2)


@pytest.mark.parametrize(
    ("archived_ms", "expected"),
    [(59, at(5, 60, 2)), (60, at(1, 60, 0)), (61, at(1, 61, 0))],
)
def test_largest_timestamp_is_that_of_the_archive_unless_a_local_one_is_larger(
    tmp_path: Path, archived_ms: int, expected: Answer
) -> None:
    archived = FoundOffset(offset=1, timestamp_ms=archived_ms, leader_epoch=0)
    tail = tail_of(tmp_path, facts(tiered=3))
    assert special(tail, SpecialTimestamp.MAX_TIMESTAMP, archived=archived) == expected


def test_largest_timestamp_of_an_archive_without_records_is_the_local_one(tmp_path: Path) -> None:
    assert special(tail_of(tmp_path, facts(tiered=3)), SpecialTimestamp.MAX_TIMESTAMP) == at(5, 60, 2)


def test_largest_timestamp_stays_if_the_log_directory_has_no_records(tmp_path: Path) -> None:
    archived = FoundOffset(offset=1, timestamp_ms=7, leader_epoch=0)
    tail = replace(tail_of(tmp_path, facts(tiered=11)), topic="gone")
    assert special(tail, SpecialTimestamp.MAX_TIMESTAMP, archived=archived) == at(1, 7, 0)
    assert special(tail, SpecialTimestamp.MAX_TIMESTAMP) == NONE_FOUND


def test_largest_timestamp_is_stale_if_segments_are_neither_in_the_index_nor_local(tmp_path: Path) -> None:
    archived = FoundOffset(offset=1, timestamp_ms=99, leader_epoch=0)
    hole = tail_of(tmp_path, facts(tiered=3), first=2)
    assert special(hole, SpecialTimestamp.MAX_TIMESTAMP, archived=archived) == STALE


def test_largest_timestamp_below_the_log_start_gives_way_to_a_local_one(tmp_path: Path) -> None:
    archived = FoundOffset(offset=1, timestamp_ms=99, leader_epoch=0)
    tail = tail_of(tmp_path, facts(tiered=7), log_start_offset=4)
    assert special(tail, SpecialTimestamp.MAX_TIMESTAMP, archived=archived) == at(5, 60, 2)
    between = tail_of(tmp_path / "between", facts(tiered=7), log_start_offset=2)
    assert special(between, SpecialTimestamp.MAX_TIMESTAMP, archived=archived) == STALE


@pytest.mark.parametrize(
    ("first", "timestamp_ms", "archived", "expected"),
    [
        pytest.param(1, 55, None, (5, 60, EXACT), id="the log directory has the record"),
        pytest.param(1, 55, (9, 55), (5, 60, EXACT), id="its record is earlier than the archive's"),
        pytest.param(1, 5, (3, 20), (3, 20, EXACT), id="the archive's record is earlier"),
        pytest.param(1, 61, None, (-1, NOTHING, EXACT), id="neither has a record"),
        pytest.param(2, 55, (9, 55), (9, 55, NOT_EXACT), id="the log directory lacks some of the offsets"),
    ],
)
def test_offsets_that_the_archive_passed_over_are_searched_in_the_log_directory(
    tmp_path: Path, first: int, timestamp_ms: int, archived: tuple[int, int] | None, expected: tuple[int, int, int]
) -> None:
    tail = tail_of(tmp_path, facts(tiered=11), first=first)
    answers = Answers.nothing(1)
    if archived is not None:
        answers.offsets[0], answers.timestamps_ms[0] = archived
    answers.exactness[0], answers.passed_from[0], answers.passed_to[0] = NOT_EXACT, 4, 7
    ask_local_tier(tail, PartitionQuestions.one(timestamp_ms, is_committed=False), answers)
    assert (int(answers.offsets[0]), int(answers.timestamps_ms[0]), int(answers.exactness[0])) == expected
    assert (answers.passed_from[0] >= 0) == (expected[2] == NOT_EXACT)


def test_offsets_from_where_the_search_of_the_log_directory_began_are_not_passed_over(tmp_path: Path) -> None:
    waiting = UnservedRange(from_offset=8, to_offset=None, max_timestamp_bound_ms=None)
    known = replace(facts(tiered=7), unserved_ranges=(waiting,))
    tail = tail_of(tmp_path, known, first=1)
    answers, questions = Answers.nothing(1), PartitionQuestions.one(58, is_committed=False)
    mark_exactness(known, questions, answers, tail.searched_from(questions.timestamps_ms, np.array([False])))
    assert answers.exactness.tolist() == [EXACT]
    mark_exactness(known, questions, answers)
    assert (answers.exactness.tolist(), answers.passed_from.tolist()) == ([NOT_EXACT], [8])
