"""Test that tables whose rows are in several files, in any order, give the answers of a scan of all rows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coldlog.lookups.index_rows import NOTHING
from coldlog.lookups.questions import PartitionQuestions
from coldlog.lookups.search.archive_search import BatchQuestion, search_archive
from coldlog.lookups.served_index import ServedIndex, list_warehouse_files
from coldlog.model.list_offsets import SpecialTimestamp
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from tables.scattered_tables import Row, write

DEPTHS = (IndexDepth.RECORD, IndexDepth.BATCH, IndexDepth.RECORD, IndexDepth.BATCH)
STEP, LENGTH = 5, 100
"""Each segment has a row at every fifth of its hundred offsets; a row's timestamp is its offset."""
LATEST = LENGTH * len(DEPTHS) - STEP


@pytest.fixture
def index(warehouse: Path) -> ServedIndex:
    """The partition orders-3, and orders-4, which serves no segment; rows of build 1 do not count."""
    place: Row = {"topic": "orders", "partition": 3}
    segments, rows = [], []
    for number, depth in enumerate(DEPTHS):
        first, segment_id = number * LENGTH, f"segment {number}"
        last = first + LENGTH - 1
        served = {"served_build_number": 2, "served_index_depth": depth.value, "served_from_offset": first}
        maxima = dict.fromkeys(("running_max_timestamp_ms", "broker_running_max_timestamp_ms"), last + 1 - STEP)
        segments.append(
            {**place, "segment_id": segment_id, "start_offset": first, "end_offset": last, **served, **maxima}
        )
        for build in (1, 2):
            for offset in range(first, last, STEP):
                key = {**place, "segment_id": segment_id, "build_number": build, "leader_epoch": number}
                rows.append((depth, key, offset, offset if build == 2 else last + 1 - STEP))
    write(warehouse, SEGMENTS, segments)
    write(
        warehouse,
        TIME_INDEX,
        [{**key, "offset": at, "timestamp_ms": ms} for depth, key, at, ms in rows if depth is IndexDepth.RECORD],
    )
    write(
        warehouse,
        OFFSET_INDEX,
        [
            {**key, "base_offset": at, "last_offset": at + STEP - 1, "position": at, "running_max_timestamp_ms": ms}
            for depth, key, at, ms in rows
            if depth is IndexDepth.BATCH
        ],
    )
    facts = {"earliest_offset": 0, "latest_tiered_offset": LATEST, "max_timestamp_ms": LATEST}
    write(warehouse, PARTITION_METADATA, [{**place, "partition": number, **facts} for number in range(3, 7)])
    return ServedIndex(list_warehouse_files(str(warehouse)))


def test_times_are_found_in_stairs_or_batches_as_by_a_scan_of_the_rows(index: ServedIndex) -> None:
    known = index.partition("orders", 3)
    assert known is not None
    asked_ms = np.array([SpecialTimestamp.MAX_TIMESTAMP, *range(LATEST + 2)])
    count = len(asked_ms)
    asked = PartitionQuestions(asked_ms, np.full(count, -1), np.zeros(count, dtype=np.bool_), np.full(count, 11))
    answers, batches = search_archive(index, *known, asked)
    offsets, epochs = answers.offsets.tolist(), answers.leader_epochs.tolist()
    read = {int(at): batch for batch in batches if isinstance(batch, BatchQuestion) for at in batch.where}
    assert len(batches) == sum(depth is IndexDepth.BATCH for depth in DEPTHS) * LENGTH // STEP
    for at, timestamp_ms in enumerate(asked_ms.tolist()):
        first = LATEST if timestamp_ms < 0 else -(-timestamp_ms // STEP) * STEP
        number = first // LENGTH
        if first > LATEST:
            assert (offsets[at], at in read) == (-1, False)
        elif DEPTHS[number] is IndexDepth.RECORD:
            assert (offsets[at], answers.timestamps_ms[at], epochs[at], at in read) == (first, first, number, False)
        else:
            assert (offsets[at], read[at].batch.base_offset, read[at].batch.position) == (-1, first, first)
            assert read[at].segment["segment_id"] == f"segment {number}"


def test_time_after_the_stairs_of_its_segment_has_no_answer(index: ServedIndex) -> None:
    known = index.partition("orders", 3)
    assert known is not None
    found = index.find_stairs(known[1], [(0, 0, 2)], np.array([LENGTH - STEP, LENGTH]))
    assert (found.offsets.tolist(), found.leader_epochs.tolist()) == ([LENGTH - STEP, -1], [0, -1])
    assert found.timestamps_ms.tolist() == [LENGTH - STEP, NOTHING]
    assert index.find_batch(known[1].place(1), 2 * LENGTH) is None


def test_partition_without_a_served_segment_has_no_segments(index: ServedIndex) -> None:
    known = index.partition("orders", 4)
    assert known is not None
    columns = (known[1].segment_ids, known[1].build_numbers, known[1].running_max_ms, known[1].is_at_batch_depth)
    assert [len(column) for column in columns] == [0] * 4
    assert index.partition("orders", 9) is None


def test_closed_index_holds_no_file(index: ServedIndex, warehouse: Path) -> None:
    def held() -> list[str]:
        return [each.path for each in psutil.Process().open_files() if each.path.startswith(str(warehouse))]

    # A file with one row group is closed once that is read.
    for file in (warehouse / PARTITION_METADATA.name).glob("*.parquet"):
        rows = pq.read_table(file)
        pq.write_table(pa.concat_tables([rows, rows]), file, row_group_size=1)
    index.partition("orders", 3)
    assert held()
    index.close()
    assert not held()


def _write_incarnations(warehouse: Path, incarnations: list[tuple[str, int, str, bool]]) -> None:
    """Write topics, partitions, topic ids and whether they are current. Each has one segment, named by the id."""
    numbers = ("start_offset", "end_offset", "served_from_offset", "served_to_offset")
    rows: list[Row] = [
        {"topic": topic, "partition": partition, "topic_id": topic_id, "is_current": is_current}
        for topic, partition, topic_id, is_current in incarnations
    ]
    write(warehouse, PARTITION_METADATA, rows)
    served: Row = {**dict.fromkeys(numbers, 0), "served_build_number": 1, "served_index_depth": IndexDepth.RECORD}
    segments = [{**row, **served, "segment_id": f"of {row['topic_id']}"} for row in rows]
    write(warehouse, SEGMENTS, segments)
    for table in (TIME_INDEX, OFFSET_INDEX):
        write(warehouse, table, [])


def test_an_older_incarnation_is_found_by_its_name_if_that_is_asked_for(warehouse: Path) -> None:
    old, new = "OLDabcde" + "A" * 14, "NEWabcde" + "A" * 14
    _write_incarnations(warehouse, [("orders", 0, old, False), ("orders", 0, new, True)])
    files = list_warehouse_files(str(warehouse))
    with closing(ServedIndex(files, older_incarnations=True)) as index:
        for name, topic_id in (("orders", new), ("orders.id-OLDabcde", old), ("orders.id-NEWabcde", new)):
            known = index.partition(name, 0)
            assert known is not None
            assert (known[0].topic_id, known[1].segment_ids) == (topic_id, (f"of {topic_id}",))
            assert (known[1].place(0).topic, known[1].place(0).partition) == ("orders", 0)
        assert index.partition("orders.id-OLDabcde", 1) is None
        assert index.partition("orders.id-ABCDEFGH", 0) is None
    with closing(ServedIndex(files)) as index:
        assert index.partition("orders.id-OLDabcde", 0) is None


def test_a_name_that_a_topic_or_two_incarnations_have_finds_no_incarnation(warehouse: Path) -> None:
    old, other, alike = "OLDabcde" + "A" * 14, "TWOabcde" + "A" * 14, "TWOabcde" + "B" * 14
    topic = "orders.id-OLDabcde"
    incarnations = [("orders", 0, old, False), ("orders", 1, old, False), ("orders", 0, "N" * 22, True)]
    incarnations += [("orders", number, each, False) for number in range(8) for each in (other, alike, "")]
    _write_incarnations(warehouse, [*incarnations, (topic, 0, "T" * 22, True)])
    with closing(ServedIndex(list_warehouse_files(str(warehouse)), older_incarnations=True)) as index:
        known = index.partition(topic, 0)
        assert known is not None
        assert known[0].topic_id == "T" * 22
        assert index.partition(topic, 1) is None
        assert [index.partition("orders.id-TWOabcde", number) for number in range(8)] == [None] * 8
        assert index.partition("orders.id-", 0) is None
