"""Test that runs with little work start no Spark, and end as those that use it."""

from __future__ import annotations

import io
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.indexing.pipeline import run_pipeline
from coldlog.launch.session import late_options
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.runtime.spark.late_session import LateSession
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.table_storage import keeping_tables_open, open_delta
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import BUILD_NUMBERS, table_contents
from planning import as_large_tables, planned_for_small_tables

PARTITION = TopicPartition(topic="orders", partition=0)


def _never() -> SparkSession:
    pytest.fail("this run starts Spark")


def _run(archive: Path, location: Path, start: Callable[[], SparkSession], *assignments: str) -> LateSession:
    settings = load_settings("local", [f"archive.uri={archive}", f"warehouse.uri={location}", *assignments])
    late = LateSession({"spark.master": "local[2]"}, start)
    console = Console(progress=io.StringIO(), results=io.StringIO())
    with keeping_tables_open():
        run_pipeline(Job(spark=late.as_session(), settings=settings, arguments=Namespace(), console=console))
    return late


def test_the_sample_and_its_events_are_indexed_without_spark(
    spark: SparkSession, golden_with_events_uri: str, tmp_path: Path
) -> None:
    sample = Path(__file__).parents[3] / "golden" / "kafka-sample"
    events = [f"metadata.uri={sample / 'rlmm'}"]
    _run(sample / "archive", tmp_path / "warehouse", _never, *events)
    made = table_contents(Warehouse(spark=spark, uri=str(tmp_path / "warehouse")), without=BUILD_NUMBERS)
    assert made == table_contents(Warehouse(spark=spark, uri=golden_with_events_uri), without=BUILD_NUMBERS)


def test_a_run_starts_spark_when_it_needs_it_and_ends_the_same(spark: SparkSession, tmp_path: Path) -> None:
    archive, few, many = (tmp_path / name for name in ("archive", "few", "many"))
    for count in (1, 3):
        write_archive(archive, {PARTITION: [_segment(10 * number) for number in range(count)]})
        _run(archive, few, _never)
        with planned_for_small_tables(spark), as_large_tables():
            assert _run(archive, many, lambda: spark).started_before() is spark
        contents = [table_contents(Warehouse(spark=spark, uri=str(location))) for location in (few, many)]
        assert contents[0] == contents[1]
        assert len(contents[0][SEGMENTS.name]) == count


def test_a_run_opens_each_version_of_a_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Counter[tuple[str, int]]()

    def count(location: str, storage: Mapping[str, str] | None = None) -> DeltaTable:
        table = open_delta(location, storage)
        opened[location.rpartition("/")[2], table.version()] += 1
        return table

    write_archive(tmp_path / "archive", {PARTITION: [_segment(0)]})
    _run(tmp_path / "archive", tmp_path / "warehouse", _never)
    write_archive(tmp_path / "archive", {PARTITION: [_segment(0), _segment(10)]})
    monkeypatch.setattr("coldlog.tables.delta.table_storage.open_delta", count)
    _run(tmp_path / "archive", tmp_path / "warehouse", _never)
    assert {name for name, _ in opened} >= {SEGMENTS.name, *(table.name for table in INDEX_TABLES)}
    assert [each for each, times in opened.items() if times > 1] == []


def _segment(start: int) -> Segment:
    records = tuple(Record(timestamp_ms=1_000 + start + at, value=b"v") for at in range(10))
    return Segment(batches=(Batch(base_offset=start, records=records),))


def test_only_a_local_session_that_reads_what_this_process_reads_starts_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("coldlog.launch.session._has_jvm", lambda: False)

    def starts_late(uri: object, *assignments: str, **environment: str) -> bool:
        return late_options(load_settings("local", [f"warehouse.uri={uri}", *assignments]), environment) is not None

    assert starts_late(tmp_path)
    assert starts_late(f"file://{tmp_path}")
    assert not starts_late(tmp_path, MASTER="spark://host:7077")
    assert not starts_late(tmp_path, "spark.master=yarn")
    assert not starts_late(tmp_path, "spark.hadoop.fs.defaultFS=hdfs://host/")
    assert not starts_late(tmp_path, SPARK_CONF_DIR=str(tmp_path))
    assert starts_late("s3://bucket/warehouse")
    monkeypatch.setattr("coldlog.launch.session._has_jvm", lambda: True)
    assert not starts_late(tmp_path)


def test_options_that_were_set_before_the_start_are_those_of_the_session(spark: SparkSession) -> None:
    late = LateSession({"spark.master": "local[2]"}, lambda: spark)
    late.conf.set("spark.databricks.delta.write.txnAppId", "one")
    late.conf.set("spark.databricks.delta.write.txnVersion", "2")
    late.conf.unset("spark.databricks.delta.write.txnVersion")
    assert late.conf.get("spark.master") == "local[2]"
    assert late.started_before() is None
    try:
        assert late.range(3).count() == 3
        assert late.started_before() is spark
        assert spark.conf.get("spark.databricks.delta.write.txnAppId") == "one"
        assert "spark.databricks.delta.write.txnVersion" not in spark.conf.getAll
    finally:
        spark.conf.unset("spark.databricks.delta.write.txnAppId")
