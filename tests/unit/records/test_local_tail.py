"""Test that a log directory goes on where the archive ends, against the records of the model that wrote it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, LOG_STARTS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Segment, abort_marker, commit_marker
from coldlog.errors import RetriableError
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.archive_tables import ArchivedPartition
from coldlog.records.fetch.local_tail import LocalTail, StaleArchive
from damage.tail_batches import LIMITS, OF_ARCHIVE, batch_at

TOPIC_ID = "A" * 22
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def _abort(offset: int, producer_id: int) -> Batch:
    return abort_marker(offset=offset, timestamp_ms=0, producer_id=producer_id, producer_epoch=0, leader_epoch=0)


def _commit(offset: int, producer_id: int) -> Batch:
    return commit_marker(offset=offset, timestamp_ms=0, producer_id=producer_id, producer_epoch=0, leader_epoch=0)


LOG = [
    (batch_at(0, 3), batch_at(3, 2, producer_id=1), batch_at(5, 2, producer_id=2)),
    (batch_at(7, 2), _abort(9, 1), batch_at(10, 2, producer_id=1)),
    (batch_at(14, 2), _commit(16, 2), _abort(17, 1), batch_at(18, 3)),
    (
        batch_at(21, 2, producer_id=3),
        batch_at(23, 2),
        _commit(25, 3),
        batch_at(26, 2, producer_id=4),
        batch_at(28, 1),
    ),
]
"""No batch has offsets 12 and 13. The transactions of producer 1 are aborted; that of producer 4 is open."""
END, STABLE = 29, 26
ABORTED = {3, 4, 10, 11}
MARKERS = {9, 16, 17, 25}
RECORDS = [offset for offset in range(END) if offset not in {12, 13} | MARKERS]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    segments = [Segment(batches=batches, index_interval_bytes=0) for batches in LOG]
    write_partition(tmp_path, "orders", 0, segments)
    return tmp_path


def _tail(directory: Path) -> LocalTail:
    return LocalTail(LogDirectoryTier(str(directory), LIMITS), LIMITS)


def _archived(end_offset: int, stable_offset: int, topic_id: str = TOPIC_ID) -> ArchivedPartition:
    return ArchivedPartition(
        topic="orders",
        partition=0,
        topic_id=topic_id,
        ends=PartitionEnds(
            log_start_offset=0, end_offset=end_offset, last_stable_offset=stable_offset, topic_id=topic_id
        ),
        segments=(),
        from_offsets=np.empty(0, dtype=np.int64),
        undecided=(),
        lineage=(),
    )


def _request(offset: int, level: IsolationLevel = UNCOMMITTED, max_bytes: int = 1) -> FetchRequest:
    return FetchRequest(topic="orders", partition=0, offset=offset, max_bytes=max_bytes, isolation_level=level)


def _read(
    tail: LocalTail, archived: ArchivedPartition, offset: int, level: IsolationLevel, max_bytes: int
) -> list[int]:
    """Fetch until a fetch returns nothing new."""
    found: list[int] = []
    while True:
        answer = tail.go_on(_request(offset, level, max_bytes), archived, OF_ARCHIVE)
        assert isinstance(answer, FetchedRecords), answer
        assert answer.ends == PartitionEnds(log_start_offset=0, end_offset=END, last_stable_offset=STABLE)
        assert answer.ends.topic_id == TOPIC_ID
        found += [record.offset for record in answer.records]
        assert [record.value for record in answer.records] == [b"%d" % record.offset for record in answer.records]
        if answer.next_offset == offset:
            return found
        offset = answer.next_offset


@pytest.mark.parametrize("max_bytes", [1, 200, 1 << 20])
def test_every_record_after_any_end_of_the_archive_is_read_once(directory: Path, max_bytes: int) -> None:
    for end in range(END + 1):
        stable = min(end, 3 if end <= 17 else STABLE)
        tail, archived = _tail(directory), _archived(end, stable)
        assert _read(tail, archived, end, UNCOMMITTED, max_bytes) == [each for each in RECORDS if each >= end]
        committed = [each for each in RECORDS if stable <= each < STABLE and each not in ABORTED]
        assert _read(tail, archived, stable, COMMITTED, max_bytes) == committed


def test_fetch_may_begin_at_any_offset_and_carries_the_aborts_that_overlap_it(directory: Path) -> None:
    tail, archived = _tail(directory), _archived(0, 0)
    for offset in range(END + 1):
        assert _read(tail, archived, offset, UNCOMMITTED, 1) == [each for each in RECORDS if each >= offset]
    aborts = {}
    for offset in (0, 3, 7, 10, 14, 18):
        answer = tail.go_on(_request(offset, COMMITTED), archived, OF_ARCHIVE)
        assert isinstance(answer, FetchedRecords)
        aborts[offset] = [
            (each.producer_id, each.first_offset, each.last_offset) for each in answer.aborted_transactions
        ]
    assert aborts == {0: [], 3: [(1, 3, 9)], 7: [(1, 3, 9)], 10: [(1, 10, 17)], 14: [(1, 10, 17)], 18: []}


def test_archive_answers_up_to_its_end_and_says_where_the_whole_log_ends(directory: Path) -> None:
    tail, archived = _tail(directory), _archived(10, 3)
    for offset, level in [(0, UNCOMMITTED), (9, UNCOMMITTED), (2, COMMITTED)]:
        answer = tail.go_on(_request(offset, level), archived, OF_ARCHIVE)
        assert isinstance(answer, FetchedRecords)
        assert answer.next_offset == -1, "the archive's"
        assert answer.ends == tail.ends("orders", 0, archived)
        assert (answer.ends.end_offset, answer.ends.last_stable_offset) == (END, STABLE)


def test_nothing_after_the_high_watermark_is_read_until_it_moves(directory: Path) -> None:
    write_offset_checkpoint(directory / HIGH_WATERMARKS, {("orders", 0): 22})
    tail, archived = _tail(directory), _archived(7, 3)

    def read(offset: int) -> tuple[list[int], int]:
        answer = tail.go_on(_request(offset, max_bytes=1 << 20), archived, OF_ARCHIVE)
        assert isinstance(answer, FetchedRecords)
        return [record.offset for record in answer.records], answer.next_offset

    assert read(21) == ([21], 22)
    assert read(22) == ([], 22)
    write_offset_checkpoint(directory / HIGH_WATERMARKS, {("orders", 0): 25})
    assert read(22) == ([22, 23, 24], 25)
    beyond = tail.go_on(_request(26), archived, OF_ARCHIVE)
    assert isinstance(beyond, FetchFailure)
    assert beyond.error is FetchErrorCode.OFFSET_OUT_OF_RANGE


def test_offsets_that_neither_has_are_an_error_also_after_segments_leave_the_directory(directory: Path) -> None:
    tail, archived = _tail(directory), _archived(8, 3)
    assert isinstance(tail.go_on(_request(8), archived, OF_ARCHIVE), FetchedRecords)
    for stem in (0, 7):
        for path in (directory / "orders-0").glob(f"{stem:020d}.*"):
            path.unlink()
    for offset in (8, 9):
        answer = tail.go_on(_request(offset), archived, OF_ARCHIVE)
        assert isinstance(answer, StaleArchive)
        assert answer.failure.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
        assert "8 to 13 left the log directory and are not indexed" in answer.failure.message
        assert answer.failure.resume_offset == 14
    assert _read(tail, _archived(14, 3), 14, UNCOMMITTED, 1) == [each for each in RECORDS if each >= 14]


@pytest.mark.parametrize(
    ("archive_end", "left"), [(14, ""), (16, ""), (11, "; 11 to 13 left the log directory and are")]
)
def test_archived_offsets_that_nobody_decides_are_not_said_to_be_lost(
    directory: Path, archive_end: int, left: str
) -> None:
    for stem in (0, 7):
        for path in (directory / "orders-0").glob(f"{stem:020d}.*"):
            path.unlink()
    answer = _tail(directory).go_on(_request(3, COMMITTED), _archived(archive_end, 3), OF_ARCHIVE)
    assert isinstance(answer, StaleArchive)
    last = min(archive_end, 14) - 1
    expected = f"a transaction is open where the archive ends, and the log directory no longer has 3 to {last}, which"
    assert expected in answer.failure.message
    assert ("left the log directory" in answer.failure.message) == (left != "")
    assert left in answer.failure.message


def test_log_start_of_the_directory_hides_no_archived_offset_and_is_a_gap_above_the_archives_end(
    directory: Path,
) -> None:
    write_offset_checkpoint(directory / LOG_STARTS, {("orders", 0): 21})
    tail, gap = _tail(directory), r"14 to 20 left the log directory and are not indexed"
    assert _read(tail, _archived(26, 26), 26, UNCOMMITTED, 1) == [26, 27, 28]
    for end in (14, 26):
        ends = tail.ends("orders", 0, _archived(end, end))
        assert ends is not None
        assert (ends.log_start_offset, ends.end_offset) == (0, END)
    lost = tail.go_on(_request(14), _archived(14, 14), OF_ARCHIVE)
    assert isinstance(lost, StaleArchive)
    assert gap in lost.failure.message
    with pytest.raises(RetriableError, match=gap):
        tail.find_offset("orders", 0, 22, _archived(14, 14))
    for nothing_archived in (None, _archived(0, 0)):
        ends = tail.ends("orders", 0, nothing_archived)
        assert ends is not None
        assert ends.log_start_offset == 21


def test_directory_without_the_partition_or_of_another_topic_leaves_the_archive_its_answer(directory: Path) -> None:
    for tail, archived in [
        (_tail(directory / "orders-0"), _archived(8, 8)),
        (_tail(directory), _archived(8, 8, topic_id="B" * 21 + "A")),
    ]:
        answer = tail.go_on(_request(8), archived, OF_ARCHIVE)
        assert answer == OF_ARCHIVE
        assert tail.ends("orders", 0, archived) == archived.ends


def test_partition_that_is_not_archived_at_all_is_read_from_the_directory(directory: Path) -> None:
    unknown = FetchFailure(error=FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="")
    answer = _tail(directory).go_on(_request(0, max_bytes=1 << 20), None, unknown)
    assert isinstance(answer, FetchedRecords)
    assert answer.ends.topic_id == TOPIC_ID
    assert [record.offset for record in answer.records] == list(range(7))


def test_damaged_batch_is_an_error_behind_the_records_before_it(directory: Path) -> None:
    log = directory / "orders-0" / f"{14:020d}.log"
    content = bytearray(log.read_bytes())
    content[-5] ^= 1
    log.write_bytes(content)
    answers = [_tail(directory).go_on(_request(offset), _archived(8, 3), OF_ARCHIVE) for offset in (14, 18)]
    assert isinstance(answers[0], FetchedRecords)
    assert [record.offset for record in answers[0].records] == [14, 15]
    assert isinstance(answers[1], FetchFailure)
    assert answers[1].error is FetchErrorCode.CORRUPT_MESSAGE
    assert log.name in answers[1].message


def test_entry_of_the_active_transaction_index_that_is_just_written_is_left_out(directory: Path) -> None:
    expected = _read(_tail(directory), _archived(18, 18), 18, COMMITTED, 1)
    index = directory / "orders-0" / f"{21:020d}.txnindex"
    index.write_bytes(struct.pack(">hq", 0, 4))
    assert _read(_tail(directory), _archived(18, 18), 18, COMMITTED, 1) == expected
