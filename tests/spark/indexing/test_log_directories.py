"""Test the whole pipeline on mirrors of log directories: the broker's answers, for every set of copied files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.log_directory_writer import write_partition
from builders.mirror_writer import SIDE_FILES, golden_topics, write_mirror
from builders.segment_builder import Batch, Record, Segment, build_segment
from coldlog.archive.layouts.layout import ArchiveLayout, SegmentFileKind
from coldlog.archive.open_archive import LayoutOptions, open_archive
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.txn_index import TXN_INDEX
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.expectation_suites import load_suites
from coldlog.upkeep.validate import validate_tables
from golden_warehouse import golden_queries, is_true_answer, run_pipeline, write_log_start_offsets
from kafka_sample import true_segments

UPLOADED = frozenset({SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX})
LOGS_ALONE = frozenset({"late.events", "payments.live", "orders"})
SAME_FACTS = (
    "topic", "partition", "is_current", "log_start_offset", "leader_epoch_lineage", "earliest_offset",
    "latest_tiered_offset", "max_timestamp_ms", "max_timestamp_offset", "record_count", "gap_count", "stable_offset",
    "open_transaction_count",
)  # fmt: skip


def open_mirror(directory: Path, above_partitions: str = "") -> ArchiveLayout:
    return open_archive(str(directory), "log_directories", LayoutOptions(above_partitions=above_partitions))


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A mirror to which every file of the log directories was copied."""
    folder = tmp_path_factory.mktemp("whole")
    write_mirror(folder / "mirror", topics=golden_topics(), kinds=SIDE_FILES)
    log_starts = write_log_start_offsets(folder / "log_starts.csv")
    return run_pipeline(spark, open_mirror(folder / "mirror"), folder / "warehouse", log_start_offsets=log_starts)


@pytest.fixture(scope="module")
def uploaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A mirror as Pinterest's uploader writes it with one bit of entropy; for some topics only the logs."""
    folder = tmp_path_factory.mktemp("uploaded")
    topics = golden_topics()
    for bit, names, kinds in (("0", topics - LOGS_ALONE, UPLOADED), ("1", LOGS_ALONE, frozenset[SegmentFileKind]())):
        above = folder / "mirror" / bit / "prod"
        write_mirror(above, topics=names, kinds=kinds, with_topic_ids=False)
        for partition in above.iterdir():
            last = max(partition.glob("*.log")).stem
            (partition / "offset.wm").write_text(last)
            (partition / "_metadata").write_text('{"metadata": {}}')
    log_starts = write_log_start_offsets(folder / "log_starts.csv")
    archive = open_mirror(folder / "mirror", "*/prod")
    return run_pipeline(spark, archive, folder / "warehouse", log_start_offsets=log_starts)


@pytest.fixture(params=["whole", "uploaded"])
def mirrored(request: pytest.FixtureRequest) -> Warehouse:
    found: Warehouse = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("broker_compatible", [False, True])
def test_every_answer_of_the_broker_is_given(mirrored: Warehouse, broker_compatible: bool) -> None:
    queries = golden_queries()
    with OffsetReader(mirrored.uri, LookupOptions(broker_compatible=broker_compatible)) as reader:
        answers = reader.list_offsets([(q["topic"], q["partition"], q["ts"]) for q in queries])
    wrong = [
        (query, answer)
        for query, answer in zip(queries, answers, strict=True)
        if not is_true_answer(query, answer, broker_compatible=broker_compatible)
    ]
    assert wrong == []
    assert sum(answer["offset"] is not None for answer in answers) > 5_000


def test_partition_metadata_equals_that_of_the_tiered_archive(mirrored: Warehouse, golden: Warehouse) -> None:
    """Also the lineage, the stable offset and open transactions of topics of which only logs were copied."""
    assert rows_of(mirrored, PARTITION_METADATA, SAME_FACTS) == rows_of(golden, PARTITION_METADATA, SAME_FACTS)


def test_aborted_transactions_equal_those_in_the_brokers_indexes(mirrored: Warehouse) -> None:
    """In the uploader's archive they are found in the logs; some began in an earlier segment."""
    true = [
        (s["start_offset"], (s["topic"], s["partition"], a["pid"], a["first"], a["last"]))
        for s in true_segments("COPY_SEGMENT_FINISHED")
        for a in s["aborted"]
    ]
    assert sum(entry[3] < start for start, entry in true) == 17
    columns = ("topic", "partition", "producer_id", "first_offset", "last_offset")
    assert rows_of(mirrored, TXN_INDEX, columns) == sorted(entry for _, entry in true)


def test_nothing_is_quarantined_or_unrecognized(mirrored: Warehouse) -> None:
    assert mirrored.read(QUARANTINE).count() == 0
    assert mirrored.read(UNRECOGNIZED_OBJECTS).count() == 0


def rows_of(warehouse: Warehouse, table: TableDefinition, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    rows = warehouse.read(table).select(*columns).toArrow().to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in rows), key=repr if columns is SAME_FACTS else None)


def test_every_suite_holds_on_a_mirror(mirrored: Warehouse) -> None:
    validated = validate_tables(mirrored, load_suites(), is_full=True)
    assert [each.expectation.id for table in validated.tables for each in table.verdicts if not each.is_met] == []
    assert sum(table.row_count for table in validated.tables) > 1_000


def test_changes_of_a_mirror_are_indexed(spark: SparkSession, tmp_path: Path) -> None:
    """The last log grows, one log is replaced by another of the same size, one is deleted; nothing else changes."""
    segments = [Segment(batches=_batches(first), index_interval_bytes=0) for first in (0, 10, 20)]
    folder = write_partition(tmp_path / "mirror", "orders", 0, segments)
    (folder / "partition.metadata").unlink()
    last = folder / f"{20:020d}.log"
    whole = last.read_bytes()
    last.write_bytes(whole[: len(whole) // 2])

    def run() -> tuple[dict[int, int], list[object]]:
        """The build number of each listed segment, and the offsets of times near the middle of each segment."""
        warehouse = run_pipeline(spark, open_mirror(tmp_path / "mirror"), tmp_path / "warehouse")
        rows = warehouse.read(SEGMENTS).where("is_listed").select("start_offset", "build_number").collect()
        with OffsetReader(warehouse.uri) as reader:
            answers = reader.list_offsets([("orders", 0, time_ms) for time_ms in (5, 15, 29, 1_015)])
        return dict(sorted(map(tuple, rows))), [answer["offset"] for answer in answers]

    assert run() == ({0: 1, 10: 1, 20: 1}, [5, 15, None, None])
    assert run()[0] == {0: 1, 10: 1, 20: 1}
    last.write_bytes(whole)
    assert run() == ({0: 1, 10: 1, 20: 2}, [5, 15, 29, None])
    replaced = folder / f"{10:020d}.log"
    size_bytes, modified_ns = replaced.stat().st_size, replaced.stat().st_mtime_ns
    replaced.write_bytes(build_segment(_batches(10, later_ms=1_000)))
    os.utime(replaced, ns=(modified_ns + 10**9, modified_ns + 10**9))
    assert replaced.stat().st_size == size_bytes
    assert run() == ({0: 1, 10: 3, 20: 2}, [5, 10, 10, 15])
    for path in folder.glob(f"{0:020d}.*"):
        path.unlink()
    assert run() == ({10: 3, 20: 2}, [10, 10, 10, 15])


def _batches(first: int, *, later_ms: int = 0) -> tuple[Batch, ...]:
    """Ten records, each at the time of its offset."""
    return tuple(
        Batch(
            base_offset=base,
            records=tuple(Record(timestamp_ms=later_ms + base + at, value=b"v") for at in range(5)),
        )
        for base in (first, first + 5)
    )
