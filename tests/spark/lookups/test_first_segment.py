"""Test that all readers agree where a log starts whose first segment is gone, and no event tells why."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.open_archive import open_archive
from coldlog.fetcher import RecordFetcher
from coldlog.formats.limits import DecodeLimits
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure
from coldlog.model.list_offsets import SpecialTimestamp
from coldlog.reader import OffsetReader
from coldlog.records.fetch.record_source import RecordSource
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from contents.record_rows import read
from worlds.golden_warehouse import run_pipeline

LENGTH, COUNT, START_MS = 50, 3, 1_700_000_000_000
LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)


def _segment(number: int) -> Segment:
    offsets = range(number * LENGTH, (number + 1) * LENGTH)
    records = tuple(Record(timestamp_ms=START_MS + at, value=b"v") for at in offsets)
    return Segment(batches=(Batch(base_offset=offsets.start, records=records),))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments, of which retention removed the first: the checkpoints of the others begin at 0."""
    folder = tmp_path_factory.mktemp("first_segment") / "archive"
    first, *_ = write_archive(folder, {TopicPartition(topic="orders", partition=0): [*map(_segment, range(COUNT))]})
    for path in first.log.parent.glob(f"{first.log.stem}*"):
        path.unlink()
    return folder


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, archive: Path) -> Warehouse:
    return run_pipeline(spark, archive, archive.parent / "warehouse")


def test_the_log_starts_at_the_first_segment(warehouse: Warehouse) -> None:
    (row,) = warehouse.read(PARTITION_METADATA).collect()
    assert (row["log_start_offset"], row["log_start_source"]) == (LENGTH, "first_segment")
    assert (row["earliest_offset"], row["gap_count"], row["unserved_ranges"]) == (LENGTH, 0, [])


def test_sql_and_python_answer_it_and_say_that_it_is_not_exact(spark: SparkSession, warehouse: Warehouse) -> None:
    attach_warehouse(spark, warehouse.uri)
    (row,) = spark.sql("SELECT * FROM earliest_offset('orders', 0)").collect()
    assert (row["offset"], row["leader_epoch"], row["is_exact"]) == (LENGTH, 0, False)
    columns = ("error", "offset", "leader_epoch", "is_exact", "passed_over_from_offset", "passed_over_to_offset")
    asked = (int(SpecialTimestamp.EARLIEST), START_MS)
    expected = [("NONE", LENGTH, 0, False, 0, LENGTH - 1), ("NONE", LENGTH, 0, True, None, None)]
    for timestamp_ms, answer in zip(asked, expected, strict=True):
        (row,) = spark.sql(f"SELECT * FROM list_offsets('orders', 0, {timestamp_ms})").collect()
        assert tuple(row[name] for name in columns) == answer
    with OffsetReader(warehouse.uri) as reader:
        answers = reader.list_offsets([("orders", 0, timestamp_ms) for timestamp_ms in asked])
        assert [tuple(row[name] for name in columns) for row in answers] == expected
        assert reader.earliest_offset("orders", 0) == LENGTH


def test_fetches_and_dataframes_read_from_there_on(warehouse: Warehouse, archive: Path) -> None:
    layout = open_archive(str(archive), "local_tiered_storage")
    with RecordFetcher(RecordSource(warehouse.uri, lambda: layout, LIMITS)) as fetcher:
        ends = fetcher.partition_ends("orders", 0)
        assert ends is not None
        assert ends.log_start_offset == LENGTH
        assert isinstance(fetcher.fetch_records("orders", 0, LENGTH), FetchedRecords)
        below = fetcher.fetch_records("orders", 0, LENGTH - 1)
        assert isinstance(below, FetchFailure)
        assert (below.error, below.ends) == (FetchErrorCode.OFFSET_OUT_OF_RANGE, ends)
    found = read(warehouse, archive, subscribe="orders", columns="offset").rows["offset"].to_pylist()
    assert found == [*range(LENGTH, COUNT * LENGTH)]
