"""Test questions about segments and aborted transactions on tables whose rows are in several files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coldlog.errors import ColdlogError, UsageError
from coldlog.lookups.transactions import SegmentQuestions
from coldlog.model.transactions import AbortedTransaction, FoundSegment, FoundTxnSegment
from coldlog.reader import OffsetReader
from coldlog.records.fetch.archive_tables import ArchiveTables, list_fetch_files
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from tables.scattered_tables import Row, write

PLACE: Row = {"topic": "orders", "partition": 3, "topic_id": "now"}
LENGTH = 100


def segment(number: int, **changes: object) -> Row:
    """It serves its hundred offsets with build 2; the one with the number 1 may hold aborts."""
    first = number * LENGTH
    return {
        **PLACE,
        "segment_id": f"s{number}",
        "start_offset": first,
        "end_offset": first + LENGTH - 1,
        "served_from_offset": first,
        "served_to_offset": first + LENGTH - 1,
        "served_build_number": 2,
        "txn_index_empty": number != 1,
        "segment_leader_epochs": [{"leader_epoch": 4, "start_offset": first}],
        **changes,
    }


def entry(first_offset: int, last_offset: int, **changes: object) -> Row:
    """An abort whose marker is in segment 1, of the build that serves."""
    named = {"segment_id": "s1", "build_number": 2, "producer_id": first_offset, "last_stable_offset": last_offset + 1}
    return {**PLACE, **named, "first_offset": first_offset, "last_offset": last_offset, **changes}


def following(**changes: object) -> Row:
    """The row of segment 1, which follows on segment 0."""
    found = {"segment_id": "s1", "start_offset": 100, "end_offset": 199, "leader_epoch": 4, "is_certain": True}
    return {**PLACE, **found, "epoch_from_offset": 0, "log_from_offset": 0, "to_offset": 199, **changes}


def make(warehouse: Path, segments: list[Row], entries: list[Row], txn_segments: list[Row]) -> SegmentQuestions:
    others = [PLACE, {**PLACE, "topic_id": "before", "is_current": False}, {**PLACE, "partition": 4}]
    write(warehouse, PARTITION_METADATA, others)
    for table, rows in ((SEGMENTS, segments), (TXN_INDEX, entries), (TXN_SEGMENTS, txn_segments)):
        write(warehouse, table, rows)
    for table in (OFFSET_INDEX, TIME_INDEX, QUARANTINE):
        write(warehouse, table, [])
    return SegmentQuestions(str(warehouse))


def test_abort_counts_if_its_build_serves_its_marker(warehouse: Path) -> None:
    segments = [segment(0), segment(1, served_to_offset=180), segment(2), segment(3, served_from_offset=None)]
    sound = [entry(90, 120), entry(120, 150), entry(150, 180)]
    others = [
        entry(91, 121, build_number=1),
        entry(92, 122, topic_id="before"),
        entry(93, 123, partition=4),
        entry(94, 224, segment_id="s2"),
        entry(95, 325, segment_id="s3"),
        entry(96, 181),
    ]
    asked = make(warehouse, segments, [*sound, *others], [following()])

    def aborts(fetch_offset: int, bound: int) -> list[int]:
        return [one.first_offset for one in asked.aborted_transactions("orders", 3, fetch_offset, bound)]

    assert aborts(0, 1000) == [90, 120, 150]
    assert aborts(120, 121) == [90, 120]
    assert aborts(121, 150) == [120]
    assert aborts(181, 1000) == []
    assert aborts(0, 90) == []
    assert aborts(150, 150) == []
    assert asked.aborted_transactions("orders", 3, 0, 91) == [
        AbortedTransaction(producer_id=90, first_offset=90, last_offset=120, last_stable_offset=121)
    ]
    assert asked.aborted_transactions("nothing", 3, 0, 1000) == []


def test_marker_in_a_hole_counts_and_one_behind_the_cut_of_a_deposed_leader_does_not(warehouse: Path) -> None:
    def holes(to_offset: int | None) -> list[Row]:
        return [{"from_offset": 150, "to_offset": to_offset, "position": 500, "end_position": 900, "reason": "crc"}]

    cut = segment(1, served_to_offset=170, served_holes=holes(180))
    # Nothing tells where the log of the last segment ended.
    last = segment(2, segment_id="s2", txn_index_empty=False, end_offset=249, served_to_offset=249)
    last["served_holes"] = [holes(None)[0] | {"from_offset": 250}]
    in_last = {"segment_id": "s2"}
    entries = [entry(90, 160), entry(110, 171), entry(120, 175), entry(200, 240, **in_last), entry(210, 260, **in_last)]
    asked = make(warehouse, [segment(0), cut, last], entries, [following()])
    found = [one.first_offset for one in asked.aborted_transactions("orders", 3, 0, 1000)]
    assert found == aborts_of_fetches(warehouse) == [90, 200, 210]


def test_marker_behind_the_cut_does_not_count_if_the_log_lost_what_follows(warehouse: Path) -> None:
    lost: Row = {"from_offset": 150, "to_offset": 199, "position": 500, "end_position": 900, "reason": "crc"}
    cut = segment(1, end_offset=149, announced_end_offset=199, served_to_offset=170, served_holes=[lost])
    asked = make(warehouse, [segment(0), cut], [entry(90, 160), entry(120, 171)], [following()])
    found = [one.first_offset for one in asked.aborted_transactions("orders", 3, 0, 1000)]
    assert found == aborts_of_fetches(warehouse) == [90]


def test_before_a_gap_what_may_be_open_where_a_segment_stops_to_serve_is_undecided(warehouse: Path) -> None:
    cut = segment(1, served_to_offset=170, open_from_offset=190, served_open_from_offset=155)
    whole, quiet = segment(3, open_from_offset=390), segment(5, open_from_offset=590, served_open_from_offset=450)
    make(warehouse, [segment(0), cut, whole, quiet, segment(7)], [], [])
    with closing(ArchiveTables(list_fetch_files(str(warehouse)))) as tables:
        archived = tables.partition("orders", 3)
    assert archived is not None
    assert archived.undecided == ((155, 170), (390, 399), (450, 599))


def test_before_a_gap_what_may_be_open_after_a_hole_at_the_end_is_undecided(warehouse: Path) -> None:
    def hole(from_offset: int, to_offset: int) -> Row:
        bounds: Row = {"position": 10 * from_offset, "end_position": 10 * to_offset, "reason": "crc_mismatch"}
        return {"from_offset": from_offset, "to_offset": to_offset, **bounds}

    cut = segment(0, served_to_offset=70, served_open_from_offset=15, served_holes=[hole(20, 29), hole(60, 80)])
    # Of this one, the lost offsets are not a gap: the next segment begins after them.
    whole = segment(2, open_from_offset=250, served_holes=[hole(280, 299)])
    make(warehouse, [cut, whole, segment(3)], [], [])
    with closing(ArchiveTables(list_fetch_files(str(warehouse)))) as tables:
        archived = tables.partition("orders", 3)
    assert archived is not None
    assert [(each.from_offset, each.to_offset) for each in archived.segments[:3]] == [(0, 19), (30, 59), (200, 279)]
    assert archived.undecided == ((15, 59),)


def test_where_the_next_segment_goes_on_at_the_cut_all_is_decided(warehouse: Path) -> None:
    cut = segment(1, served_to_offset=170, served_open_from_offset=155)
    make(warehouse, [cut, segment(2, start_offset=171, served_from_offset=171)], [], [])
    with closing(ArchiveTables(list_fetch_files(str(warehouse)))) as tables:
        archived = tables.partition("orders", 3)
    assert archived is not None
    assert archived.undecided == ()


def aborts_of_fetches(warehouse: Path) -> list[int]:
    """The first offsets of the aborted transactions whose records are left out."""
    with closing(ArchiveTables(list_fetch_files(str(warehouse)))) as tables:
        archived = tables.partition("orders", 3)
        assert archived is not None
        return [one.first_offset for one in tables.aborted(archived).rows()]


def test_next_segment_is_that_of_the_interval_that_has_the_offset(warehouse: Path) -> None:
    rows = [
        following(epoch_from_offset=50),
        following(segment_id="s2", leader_epoch=5, epoch_from_offset=210, log_from_offset=200, to_offset=299),
        following(topic_id="before", segment_id="gone"),
        following(partition=4, segment_id="other"),
    ]
    asked = make(warehouse, [segment(number) for number in range(3)], [], rows)

    def found(leader_epoch: int | None, offset: int) -> str | None:
        answer = asked.next_segment_with_txn_index("orders", 3, leader_epoch, offset)
        return None if answer is None else answer.segment_id

    assert [found(4, at) for at in (49, 50, 199, 200)] == [None, "s1", "s1", None]
    assert [found(5, at) for at in (199, 209, 210, 299, 300)] == [None, None, "s2", "s2", None]
    assert [found(None, at) for at in (0, 199, 200, 299, 300)] == ["s1", "s1", "s2", "s2", None]
    assert asked.next_segment_with_txn_index("orders", 3, 4, 120) == FoundTxnSegment(
        segment_id="s1", start_offset=100, end_offset=199, leader_epoch=4, is_certain=True
    )


def test_segment_of_an_offset_is_the_one_that_serves_it_in_its_leader_epoch(warehouse: Path) -> None:
    epochs = [{"leader_epoch": epoch, "start_offset": start} for epoch, start in ((4, 130), (7, 160))]
    segments = [
        segment(0, topic_id="before", segment_id="gone"),
        segment(1, segment_leader_epochs=epochs, served_from_offset=120),
        segment(2, announced_leader_epochs=[{"leader_epoch": 8, "start_offset": 200}]),
        # Compaction removed its last records.
        segment(4, announced_end_offset=520, served_to_offset=520),
        segment(6, served_from_offset=None),
    ]
    asked = make(warehouse, segments, [], [])

    def found(leader_epoch: int | None, offset: int) -> tuple[str, int] | None:
        answer = asked.segment_for_offset("orders", 3, leader_epoch, offset)
        return None if answer is None else (answer.segment_id, answer.leader_epoch)

    assert [found(None, at) for at in (0, 119, 300, 521, 600)] == [None] * 5
    assert [found(None, at) for at in (120, 159, 160, 199)] == [("s1", 4), ("s1", 4), ("s1", 7), ("s1", 7)]
    assert [found(4, at) for at in (120, 159, 160)] == [("s1", 4), ("s1", 4), None]
    assert [found(7, at) for at in (159, 160)] == [None, ("s1", 7)]
    assert [found(epoch, 250) for epoch in (4, 8)] == [None, ("s2", 8)]
    assert asked.segment_for_offset("orders", 3, 4, 510) == FoundSegment(
        segment_id="s4", start_offset=400, end_offset=520, leader_epoch=4
    )
    assert asked.segment_for_offset("orders", 4, None, 120) is None


def test_rows_read_do_not_grow_with_segments_that_hold_no_abort(tmp_path: Path) -> None:
    counted = []
    for count in (10, 2_000):
        warehouse = tmp_path / str(count)
        make(warehouse, [segment(number) for number in range(count)], [entry(90, 120)], [following()])
        with OffsetReader(warehouse) as reader:
            before = reader.rows_read
            assert reader.next_segment_with_txn_index("orders", 3, None, 5) is not None
            assert reader.next_segment_with_txn_index("orders", 3, 4, 200) is None
            assert reader.aborted_transactions("orders", 3, 200, count * LENGTH) == []
            of_reader = reader.rows_read - before
        tables = ArchiveTables(list_fetch_files(str(warehouse)))
        archived = tables.partition("orders", 3)
        assert archived is not None
        before = tables.rows_read
        assert len(tables.aborted(archived)) == 1
        counted.append((of_reader, tables.rows_read - before))
    assert counted[0] == counted[1]
    assert counted[0][1] == 1


@pytest.fixture
def reader(warehouse: Path) -> Iterator[OffsetReader]:
    make(warehouse, [segment(0), segment(1)], [entry(90, 120)], [following()])
    with OffsetReader(warehouse) as opened:
        yield opened


def test_new_tables_are_read_after_a_refresh(reader: OffsetReader, warehouse: Path) -> None:
    assert len(reader.aborted_transactions("orders", 3, 0, 1000)) == 1
    rows_read = reader.rows_read
    write(warehouse, TXN_INDEX, [entry(130, 140)])
    assert len(reader.aborted_transactions("orders", 3, 0, 1000)) == 1
    assert reader.rows_read == rows_read, "what was read is kept"
    reader.refresh()
    assert len(reader.aborted_transactions("orders", 3, 0, 1000)) == 2


def test_arguments_of_other_types_and_a_closed_reader_are_refused(reader: OffsetReader) -> None:
    for epoch, offset in ((1 << 31, 0), (4, 1 << 63), ("4", 0), (4, 1.5), (True, 0)):
        for ask in (reader.next_segment_with_txn_index, reader.segment_for_offset):
            with pytest.raises(UsageError, match="leader_epoch is|offset is"):
                ask("orders", 3, epoch, offset)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(UsageError, match="upper_bound_offset is None"):
        reader.aborted_transactions("orders", 3, 0, None)  # type: ignore[arg-type]  # that is the test
    reader.close()
    with pytest.raises(UsageError, match="is closed"):
        reader.segment_for_offset("orders", 3, None, 0)


def test_lookups_do_not_need_the_tables_of_transactions(reader: OffsetReader, warehouse: Path) -> None:
    reader.close()
    for table in (TXN_INDEX, TXN_SEGMENTS):
        shutil.rmtree(warehouse / table.name)
    with OffsetReader(warehouse) as opened:
        assert opened.partitions("orders") == [3, 4]


@pytest.mark.parametrize("ask", ["next_segment_with_txn_index", "segment_for_offset", "aborted_transactions"])
def test_file_that_cannot_be_read_is_an_error_and_not_an_answer_of_nothing(
    reader: OffsetReader, warehouse: Path, ask: str
) -> None:
    asked = ("orders", 3, 4, 120) if ask != "aborted_transactions" else ("orders", 3, 0, 1000)
    assert getattr(reader, ask)(*asked)
    reader.refresh()
    for table in (SEGMENTS, TXN_INDEX, TXN_SEGMENTS):
        for file in (warehouse / table.name).rglob("*.parquet"):
            file.unlink()
    with pytest.raises(ColdlogError, match="it is missing, but the table's newest version needs it"):
        getattr(reader, ask)(*asked)
