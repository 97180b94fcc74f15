"""Test the rules of ListOffsets: with the facts of an archive alone, and with a log directory that has everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders.log_directory_writer import write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.formats.limits import DecodeLimits
from coldlog.index.segment_facts import ANY_TIMESTAMP_MS
from coldlog.lookups.archive_rules import answer_without_local
from coldlog.lookups.list_offsets import ListOffsets, _with_local
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.questions import LOCAL_ONLY, METADATA, REMOTE_THEN_LOCAL, Answers, Indices, PartitionQuestions
from coldlog.model.list_offsets import NEWEST_VERSION, ErrorCode
from tables.empty_index import asked, empty_index

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
LATEST, EARLIEST, LATEST_TIERED, PENDING = -1, -2, -5, -6
NONE, LOCAL_REQUIRED = ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED


def written(directory: Path) -> LogDirectoryTier:
    """Offsets 0 to 3 of epoch 0, and 4 to 7 of epoch 5, of which the last two are in an open transaction."""
    batches = (
        Batch(base_offset=0, records=tuple(Record(timestamp_ms=each) for each in (10, 40, 20, 30))),
        Batch(base_offset=4, records=(Record(timestamp_ms=50), Record(timestamp_ms=45)), leader_epoch=5),
        Batch(
            base_offset=6,
            records=(Record(timestamp_ms=60), Record(timestamp_ms=61)),
            leader_epoch=5,
            is_transactional=True,
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
        ),
    )
    write_partition(directory, "orders", 0, [Segment(batches=batches[:2]), Segment(batches=batches[2:])])
    return LogDirectoryTier(str(directory), LIMITS)


def summary(answers: Answers) -> list[tuple[ErrorCode, int, int]]:
    """Error, offset and leader epoch of each answer."""
    columns = answers.errors.tolist(), answers.offsets.tolist(), answers.leader_epochs.tolist()
    return [(ErrorCode(error), offset, epoch) for error, offset, epoch in zip(*columns, strict=True)]


def test_partition_that_neither_the_archive_nor_a_local_tier_has_is_unknown(tmp_path: Path) -> None:
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert summary(ListOffsets(empty_index()).answer(asked(LATEST, 7))) == [unknown] * 2
    other = ListOffsets(empty_index(), LogDirectoryTier(str(tmp_path), LIMITS))
    assert summary(other.answer(asked(LATEST, 7))) == [unknown] * 2


def test_partition_that_is_not_archived_is_answered_by_the_log_directory(tmp_path: Path) -> None:
    lookup = ListOffsets(empty_index(), written(tmp_path))
    assert summary(lookup.answer(asked(LATEST, EARLIEST, 0, 41, 62))) == [
        (NONE, 8, 5), (NONE, 0, 0), (NONE, 0, 0), (NONE, 4, 5), (NONE, -1, -1),
    ]  # fmt: skip


def test_records_of_an_open_transaction_are_found_unless_committed_ones_are_asked_for(tmp_path: Path) -> None:
    lookup = ListOffsets(empty_index(), written(tmp_path))
    assert summary(lookup.answer_one("orders", 0, 55)) == [(NONE, 6, 5)]
    assert summary(lookup.answer_one("orders", 0, LATEST)) == [(NONE, 8, 5)]
    assert summary(lookup.answer_one("orders", 0, 55, is_committed=True)) == [(NONE, -1, -1)]
    assert summary(lookup.answer_one("orders", 0, LATEST, is_committed=True)) == [(NONE, 6, 5)]


@pytest.mark.parametrize(
    ("version", "leader_epoch", "expected"),
    [
        (NEWEST_VERSION, 5, (NONE, 4, 5)),
        (NEWEST_VERSION, -1, (NONE, 4, 5)),
        (NEWEST_VERSION, 4, (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)),
        (NEWEST_VERSION, 6, (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)),
        (4, 6, (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)),
        (3, 6, (NONE, 4, -1)),
    ],
)
def test_request_that_names_another_leader_epoch_is_refused_from_version_4_on(
    tmp_path: Path, version: int, leader_epoch: int, expected: tuple[ErrorCode, int, int]
) -> None:
    lookup = ListOffsets(empty_index(), written(tmp_path))
    questions = asked(41, 41, version=version, leader_epoch=leader_epoch)
    questions.leader_epochs[1] = -1
    assert summary(lookup.answer(questions)) == [expected, (NONE, 4, 5 if version >= 4 else -1)]


def test_no_request_is_refused_if_no_leader_epoch_is_known(tmp_path: Path) -> None:
    lookup = ListOffsets(empty_index(), written(tmp_path))
    (tmp_path / "orders-0" / "leader-epoch-checkpoint").unlink()
    assert summary(lookup.answer(asked(41, leader_epoch=4))) == [(NONE, 4, 5)]


def test_damaged_log_is_the_answer_of_its_partition(tmp_path: Path) -> None:
    lookup = ListOffsets(empty_index(), written(tmp_path))
    log = tmp_path / "orders-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    assert summary(lookup.answer(asked(41, EARLIEST))) == [(ErrorCode.CORRUPT_MESSAGE, -1, -1)] * 2


def test_impossible_requests_are_reported_first_and_other_ones_when_their_work_is_done(tmp_path: Path) -> None:
    questions = asked(41, -9, LATEST, 41)
    questions.is_invalid[3] = True
    lookup, reported = ListOffsets(empty_index(), written(tmp_path)), Answers.nothing(4)
    places: list[int] = []

    def report(where: Indices, answers: Answers) -> None:
        places.extend(where.tolist())
        reported.put(where, answers)

    (work,) = lookup.answer_from_tables(questions, report)
    assert places == [1, 3]
    assert sorted(work.where.tolist()) == [0, 2]
    refused = [(ErrorCode.UNSUPPORTED_VERSION, -1, -1), (ErrorCode.INVALID_REQUEST, -1, -1)]
    assert summary(reported)[1::2] == refused
    assert summary(lookup.answer(questions)) == [(NONE, 4, 5), refused[0], (NONE, 8, 5), refused[1]]


def facts(*, log_start: int | None = None, earliest: int | None = None, tiered: int | None = None) -> PartitionFacts:
    return PartitionFacts(
        topic_id="A" * 22,
        log_start_offset=log_start,
        earliest_offset=earliest,
        latest_tiered_offset=tiered,
        max_timestamp_ms=None,
        max_timestamp_offset=None,
        stable_offset=None,
        lineage=((0, 0), (5, 8)),
    )


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (facts(), [(LOCAL_REQUIRED, -1, -1), (NONE, -1, -1), (LOCAL_REQUIRED, -1, -1)]),
        (facts(earliest=2, tiered=11), [(NONE, 2, 0), (NONE, 11, 5), (NONE, 12, 5)]),
        (facts(log_start=3, earliest=2, tiered=7), [(NONE, 3, 0), (NONE, 7, 0), (NONE, 8, 5)]),
        (facts(log_start=20, tiered=11), [(NONE, 20, 5), (NONE, 11, 5), (NONE, 20, 5)]),
        (facts(log_start=20), [(NONE, 20, 5), (NONE, -1, -1), (LOCAL_REQUIRED, -1, -1)]),
    ],
)
def test_archive_alone_knows_where_it_begins_and_ends(
    tmp_path: Path, known: PartitionFacts, expected: list[tuple[ErrorCode, int, int]]
) -> None:
    """Also beside a log directory that does not have the partition."""
    questions = PartitionQuestions.at(asked(PENDING, LATEST_TIERED, EARLIEST), np.array([2, 1, 0]))
    assert summary(answer_without_local(known, questions, Answers.nothing(3))) == expected
    other, nothing = LogDirectoryTier(str(tmp_path), LIMITS), Answers.nothing(3)
    assert summary(_with_local(other, "orders", 0, known, questions, nothing, broker_compatible=False)) == expected


@pytest.mark.parametrize(
    ("newest", "leader_epoch", "error"),
    [
        (5, 5, NONE),
        (5, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (0, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_leader_epochs_are_compared_with_the_newest_of_the_archive_if_no_other_is_known(
    tmp_path: Path, newest: int, leader_epoch: int, error: ErrorCode
) -> None:
    questions = PartitionQuestions.at(asked(EARLIEST, leader_epoch=leader_epoch), np.array([0]))
    known = replace(facts(earliest=0), lineage=((newest, 0),))
    local = written(tmp_path)
    (tmp_path / "orders-0" / "leader-epoch-checkpoint").unlink()
    beside = _with_local(local, "orders", 0, known, questions, Answers.nothing(1), broker_compatible=False)
    for answers in (beside, answer_without_local(known, questions, Answers.nothing(1))):
        ((found, _, _),) = summary(answers)
        assert found is error


def test_routes_and_local_starts_say_where_the_answer_may_be() -> None:
    """A time up to the largest of the archive may be in both, a later one only in the local log."""
    questions = PartitionQuestions.at(asked(*range(-6, 1), 10, 11), np.arange(9))
    known = replace(facts(earliest=2, tiered=7), max_timestamp_ms=10)
    answers = answer_without_local(known, questions, Answers.nothing(9))
    both, local = REMOTE_THEN_LOCAL, LOCAL_ONLY
    assert answers.routes.tolist() == [METADATA, METADATA, local, both, METADATA, local, both, both, local]
    assert answers.local_starts.tolist() == [-1 if route == METADATA else 8 for route in answers.routes]


def test_finished_segments_that_are_not_served_decide_the_route_too() -> None:
    """An answer may be in one that is pending or damaged. A row of an earlier release does not know them."""
    questions = PartitionQuestions.at(asked(10, 11, 12, 13, 2**63 - 1), np.arange(5))

    def routes(finished_max_timestamp_ms: int | None, max_timestamp_ms: int | None = 10) -> list[int]:
        known = replace(facts(earliest=2, tiered=7), finished_max_timestamp_ms=finished_max_timestamp_ms)
        known = replace(known, max_timestamp_ms=max_timestamp_ms)
        answers: list[int] = answer_without_local(known, questions, Answers.nothing(5)).routes.tolist()
        return answers

    both, local = REMOTE_THEN_LOCAL, LOCAL_ONLY
    assert routes(12) == [both, both, both, local, local]
    assert routes(12, None) == [both, both, both, local, local], "nothing is served"
    assert routes(ANY_TIMESTAMP_MS) == [both] * 5
    assert routes(None) == [both, local, local, local, local]


def test_times_are_searched_everywhere_if_the_archive_has_no_largest_timestamp() -> None:
    """As in KIP-1075: nothing says that a time is later than all that is archived."""
    questions = PartitionQuestions.at(asked(0, 10, 2**62), np.arange(3))
    answers = answer_without_local(facts(earliest=2, tiered=7), questions, Answers.nothing(3))
    assert answers.routes.tolist() == [REMOTE_THEN_LOCAL] * 3
    assert answers.local_starts.tolist() == [8] * 3
