"""Test that maintenance makes tables smaller and changes no answer."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.scan.scan import scan_segments
from coldlog.runtime.settings import MaintenanceSettings
from coldlog.tables.definitions.catalog import ALL_TABLES, INDEX_TABLES
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.maintain import drop_deleted, maintain_table, maintain_tables
from contents.table_contents import BUILD_NUMBERS, rows_in, table_contents
from counts.spark_work import counting_work
from worlds.golden_warehouse import build_settings, run_pipeline
from worlds.kafka_sample import KAFKA_SAMPLE

_WEEK_MS = 7 * 24 * 3_600_000
SETTINGS = MaintenanceSettings(deleted_after_hours=168, vacuum_after_hours=168)
TOPICS = ("late.events-2", "records-deleted-2", "payments-1")


@pytest.fixture(scope="module")
def indexed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions of the sample in `archive`, and in `warehouse` their index in many small commits."""
    folder = tmp_path_factory.mktemp("indexed")
    source = KAFKA_SAMPLE / "archive" / "kafka-tiered-storage"
    for partition in TOPICS:
        (directory,) = source.glob(f"{partition}-*")
        shutil.copytree(directory, folder / "archive" / source.name / directory.name)
    settings = build_settings(max_bytes_per_commit=200 << 10)
    run_pipeline(spark, folder / "archive", folder / "warehouse", settings=settings)
    return folder


@pytest.fixture
def archive(indexed: Path, tmp_path: Path) -> Path:
    """A copy of the partitions, to delete from."""
    return shutil.copytree(indexed / "archive", tmp_path / "archive")


@pytest.fixture
def built(spark: SparkSession, indexed: Path, warehouse: Path) -> Warehouse:
    """A copy of their index, to maintain."""
    return Warehouse(spark=spark, uri=str(shutil.copytree(indexed / "warehouse", warehouse)))


def _segments_of(warehouse: Warehouse, segment_id: str) -> int:
    return sum(row["segment_id"] == segment_id for table in INDEX_TABLES for row in rows_in(warehouse, table))


def _delete_first_segment(archive: Path) -> tuple[dict[Path, bytes], str]:
    """Remove a segment of the first partition; return its files, to restore them, and its id."""
    (directory,) = (archive / "kafka-tiered-storage").glob(f"{TOPICS[0]}-*")
    log = min(directory.glob("*.log"))
    segment_id = log.name[21:43]
    files = {each: each.read_bytes() for each in directory.glob(f"*{segment_id}*")}
    for each in files:
        each.unlink()
    return files, segment_id


def test_small_files_are_compacted_and_every_row_stays(built: Warehouse, warehouse: Path) -> None:
    before = table_contents(built)
    with counting_work(built.spark) as work:
        summary = maintain_tables(built, SETTINGS)
    assert (work.jobs, work.executions) == (0, 0)
    assert table_contents(built) == before
    (offset_index,) = [each for each in summary.tables if each.table == OFFSET_INDEX.name]
    assert offset_index.files_before > offset_index.files_after == 1
    assert offset_index.bytes_after < offset_index.bytes_before
    # What was put together just now is needed by those who read the version before.
    assert offset_index.removed_files == 0
    for table in ALL_TABLES:
        log = warehouse / table.name / "_delta_log"
        assert list(log.glob("*.checkpoint.parquet")), table.name
        assert DeltaTable(str(warehouse / table.name)).version() == max(int(each.stem) for each in log.glob("*.json"))
    versions = {table.name: built.newest_version(table) for table in ALL_TABLES}
    with counting_work(built.spark) as work:
        again = maintain_tables(built, SETTINGS)
    assert all(each.files_before == each.files_after for each in again.tables)
    assert {table.name: built.newest_version(table) for table in ALL_TABLES} == versions, "nothing to do, no commit"
    assert (work.jobs, work.executions) == (0, 0)
    assert table_contents(built) == before


def _age(spark: SparkSession, table: Path, days: int) -> None:
    """Change the times of the table's files as if they had been written and removed that long ago."""
    earlier_ms = days * 24 * 3_600_000

    def earlier(told: re.Match[str]) -> str:
        return f"{told[1]}{int(told[2]) - earlier_ms}"

    for path in table.rglob("*"):
        if path.suffix == ".json":
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(r'("deletionTimestamp":|"timestamp":)(\d+)', earlier, text), encoding="utf-8")
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    for path in table.rglob("*"):
        then = path.stat().st_mtime - earlier_ms / 1000
        os.utime(path, (then, then))
    jvm = spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_files_older_than_the_retention_are_removed_and_counted(
    spark: SparkSession, built: Warehouse, warehouse: Path
) -> None:
    before = len(rows_in(built, OFFSET_INDEX))
    spark.sql(f"OPTIMIZE {built.identifier(OFFSET_INDEX)}")
    files = list((warehouse / OFFSET_INDEX.name).glob("*.parquet"))
    _age(spark, warehouse / OFFSET_INDEX.name, days=10)
    longer = MaintenanceSettings(deleted_after_hours=168, vacuum_after_hours=14 * 24)
    assert maintain_table(built, OFFSET_INDEX, longer).removed_files == 0
    maintained = maintain_table(built, OFFSET_INDEX, SETTINGS)
    (left,) = (warehouse / OFFSET_INDEX.name).glob("*.parquet")
    assert maintained.removed_files == len(files) - 1 > 1
    assert maintained.removed_bytes > 1000
    assert left in files
    assert len(rows_in(built, OFFSET_INDEX)) == before


def test_rows_cannot_be_dropped_by_a_version_that_vacuum_removes(spark: SparkSession, warehouse: Path) -> None:
    settings = MaintenanceSettings(deleted_after_hours=200, vacuum_after_hours=199)
    with pytest.raises(UsageError, match="deleted_after_hours=200 needs older versions than .*vacuum_after_hours=199"):
        maintain_tables(Warehouse(spark=spark, uri=str(warehouse)), settings)


def test_index_rows_of_segments_gone_long_ago_are_dropped(
    spark: SparkSession, archive: Path, built: Warehouse, warehouse: Path
) -> None:
    whole = table_contents(built, without=BUILD_NUMBERS)
    files, segment_id = _delete_first_segment(archive)
    scan_segments(built, open_archive(str(archive), "local_tiered_storage"))
    materialize_metadata(built)
    assert _segments_of(built, segment_id)
    now_ms = time.time_ns() // 1_000_000
    assert drop_deleted(built, now_ms - _WEEK_MS) == 0
    assert _segments_of(built, segment_id)
    # The version of a week ago is older than that, as versions are.
    for table in ALL_TABLES:
        _age(spark, warehouse / table.name, days=8)
    also, another = _delete_first_segment(archive)
    run_pipeline(spark, archive, warehouse)
    assert drop_deleted(built, now_ms - _WEEK_MS) == 1
    assert not _segments_of(built, segment_id)
    assert _segments_of(built, another), "it has only just gone"
    assert drop_deleted(built, now_ms - _WEEK_MS) == 0
    gone = [row for row in rows_in(built, SEGMENTS) if row["segment_id"] == segment_id]
    assert [(row["index_status"], row["build_number"]) for row in gone] == [("gone", None)]
    # A run finds nothing to do; and should the segment come back, it is indexed again.
    unchanged = table_contents(built)
    run_pipeline(spark, archive, warehouse)
    assert table_contents(built) == unchanged
    for path, content in (files | also).items():
        path.write_bytes(content)
    run_pipeline(spark, archive, warehouse)
    back = table_contents(built, without=(*BUILD_NUMBERS, "log_modified_ms"))
    assert back[OFFSET_INDEX.name] == whole[OFFSET_INDEX.name]
