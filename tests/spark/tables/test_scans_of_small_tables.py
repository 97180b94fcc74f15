"""Test that queries take the files of small tables without a job of Delta's, and see every commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.sql import attach_warehouse
from coldlog.tables import sql_names
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.delta.warehouse import Warehouse
from counts.spark_plans import scans_of
from counts.spark_work import counting_work

_TABLE = "coldlog.log_start_offsets"
_BOTH = f"SELECT a.partition FROM {_TABLE} a JOIN {_TABLE} b USING (topic, partition)"


@pytest.fixture
def named(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A warehouse whose table of log starts has two rows, in two files. The other tables get no names."""
    monkeypatch.setattr(sql_names, "ALL_TABLES", (LOG_START_OFFSETS,))
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "ware house"))
    warehouse.create_missing()
    sql_names.register_tables(warehouse)
    for partition in range(2):
        _append(warehouse, partition)
    return warehouse


def _append(warehouse: Warehouse, partition: int) -> None:
    row = {"topic": "orders", "partition": partition, "log_start_offset": 5}
    warehouse.append(LOG_START_OFFSETS, warehouse.local(LOG_START_OFFSETS, [row]), count=1)


def _partitions(spark: SparkSession, query: str = f"SELECT partition FROM {_TABLE}") -> list[int]:
    return sorted(row["partition"] for row in spark.sql(query).collect())


def _indexes(spark: SparkSession, query: str) -> list[str]:
    """The class that names the files, of each scan of the query."""
    plan = spark.sql(query)._jdf.queryExecution().executedPlan().toString()
    return [part.partition("(")[0] for part in plan.split("Location: ")[1:]]


def test_a_lookup_starts_no_job_that_chooses_files(golden: Warehouse) -> None:
    attach_warehouse(golden.spark, golden.uri)
    question = "SELECT * FROM offset_for_timestamp('orders', 0, 1700000000000)"
    golden.spark.sql(question).collect()  # Delta is asked for the files of each table once a version
    with counting_work(golden.spark) as work:
        golden.spark.sql(question).collect()
    assert (work.table_scans, work.jobs) == (7, 6)  # Delta would start a job for each scan too


def test_every_commit_is_seen_by_the_next_query(named: Warehouse) -> None:
    spark = named.spark
    assert set(_indexes(spark, _BOTH)) == {"AllFilesIndex"}
    assert _partitions(spark) == _partitions(spark, _BOTH) == [0, 1]
    rows = spark.table(_TABLE)  # made before the commit, asked after it
    _append(named, 2)
    assert rows.count() == 3
    assert _partitions(spark, _BOTH) == [0, 1, 2]
    spark.sql(f"UPDATE {_TABLE} SET partition = 7 WHERE partition = 1")
    source = f"(SELECT * FROM {_TABLE} WHERE partition = 0)"
    spark.sql(f"MERGE INTO {_TABLE} t USING {source} s ON t.partition = s.partition WHEN MATCHED THEN DELETE")
    assert _partitions(spark) == [2, 7]
    assert _partitions(spark, f"SELECT partition FROM {_TABLE} VERSION AS OF 1") == [0]
    assert _partitions(
        spark, f"SELECT partition FROM {_TABLE} WHERE partition IN (SELECT partition FROM {_TABLE})"
    ) == [2, 7]


def test_rows_that_are_marked_as_deleted_are_left_out(named: Warehouse) -> None:
    spark = named.spark
    spark.sql(f"ALTER TABLE {_TABLE} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"INSERT INTO {_TABLE} SELECT /*+ COALESCE(1) */ topic, partition + 10, log_start_offset FROM {_TABLE}")
    spark.sql(f"DELETE FROM {_TABLE} WHERE partition = 10")
    assert set(_indexes(spark, _BOTH)) == {"PreparedDeltaFileIndex"}
    assert _partitions(spark) == _partitions(spark, _BOTH) == [0, 1, 11]


def test_a_table_of_many_files_is_left_to_delta(named: Warehouse) -> None:
    spark = named.spark
    spark.range(100, 163).selectExpr("'orders'", "cast(id AS INT)", "5L").repartition(63).createOrReplaceTempView(
        "many"
    )
    spark.sql(f"INSERT INTO {_TABLE} TABLE many")
    assert len(spark.table(_TABLE).inputFiles()) == 65
    assert set(_indexes(spark, _BOTH)) == {"PreparedDeltaFileIndex"}
    assert len(_partitions(spark)) == 65
    answer = spark.sql(f"SELECT log_start_offset FROM {_TABLE} WHERE partition = 100")
    assert [row[0] for row in answer.collect()] == [5]
    assert [scan.file_count for scan in scans_of(answer)] == [1]
