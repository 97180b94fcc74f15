"""Test that Spark and commits without Spark write one table in turn, and that Delta's conflict rules hold between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentTransactionException
from pyspark.sql import SparkSession

from coldlog.indexing.run_log import recorded_run
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.delta_log import file_count_if_known
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.warehouse import Warehouse
from contents.job_runs_table import race_commit, run_row, unpack_job_runs
from counts.spark_work import counting_work
from planning import as_large_tables


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> Warehouse:
    """The table of an earlier commit's warehouse, with one row more."""
    location = unpack_job_runs(tmp_path)
    assert commit_rows(location, JOB_RUNS, RowChange(added=[run_row("a")])) == 0
    return Warehouse(spark=spark, uri=str(tmp_path))


def _plainly(runs: Warehouse, change: RowChange) -> None:
    assert commit_rows(runs.location(JOB_RUNS), JOB_RUNS, change) is not None


def _outcomes(runs: Warehouse) -> dict[str, str]:
    rows = runs.read(JOB_RUNS).where("length(run_id) < 5").select("run_id", "outcome").collect()
    return {row["run_id"]: row["outcome"] for row in rows}


def test_spark_and_plain_commits_write_one_table_in_turn(spark: SparkSession, runs: Warehouse) -> None:
    location, name = runs.location(JOB_RUNS), runs.identifier(JOB_RUNS)
    assert _outcomes(runs) == {"a": "running"}
    runs.append(JOB_RUNS, runs.local(JOB_RUNS, [run_row("b")]))
    _plainly(runs, RowChange(where={"run_id": "b"}, values={"outcome": "failed"}))
    runs.merge(JOB_RUNS, runs.local(JOB_RUNS, [run_row("a", outcome="killed"), run_row("c")]))
    _plainly(runs, RowChange(added=[run_row("d")]))
    assert _outcomes(runs) == {"a": "killed", "b": "failed", "c": "running", "d": "running"}
    spark.sql(f"OPTIMIZE {name}")
    _plainly(runs, RowChange(where={"run_id": "c"}, values={"outcome": "failed"}))
    spark.sql(f"DELETE FROM {name} WHERE run_id = 'd'")
    # Past a checkpoint of either: Spark writes that of version 10, and a plain commit that of version 20.
    assert runs.newest_version(JOB_RUNS) == 10
    while runs.newest_version(JOB_RUNS) < 20:
        _plainly(runs, RowChange(where={"run_id": "b"}, values={"outcome": "running"}))
    runs.merge(JOB_RUNS, runs.local(JOB_RUNS, [run_row("b", outcome="failed")]))
    _plainly(runs, RowChange(where={"run_id": "b"}, values={"outcome": "killed"}))
    assert {path.name[18:21] for path in Path(location, "_delta_log").glob("*.checkpoint.parquet")} == {"10.", "20."}
    runs.append(JOB_RUNS, runs.local(JOB_RUNS, [run_row("e")]))
    assert _outcomes(runs) == {"a": "killed", "b": "killed", "c": "failed", "e": "running"}
    check_log(location)
    described = spark.sql(f"DESCRIBE DETAIL {name}").head()
    assert described is not None
    assert described["clusteringColumns"] == ["started_ms"]
    history = spark.sql(f"DESCRIBE HISTORY {name}").where("engineInfo = 'coldlog'").collect()
    assert {row["operation"] for row in history} == {"WRITE", "UPDATE"}


def test_delta_knows_the_number_of_files_after_a_plain_commit_without_a_job(
    spark: SparkSession, runs: Warehouse
) -> None:
    location = runs.location(JOB_RUNS)
    for number in range(3):
        _plainly(runs, RowChange(added=[run_row(f"r{number}")]))
        expected = len(spark.read.format("delta").load(location).inputFiles())
        with counting_work(spark) as work:
            assert file_count_if_known(spark, location) == expected
        assert work.jobs == 0
        runs.append(JOB_RUNS, runs.local(JOB_RUNS, [run_row(f"s{number}")]))
        assert file_count_if_known(spark, location) == expected + 1


def test_recording_a_run_starts_no_spark_job(spark: SparkSession, runs: Warehouse) -> None:
    with counting_work(spark) as work, recorded_run(runs, "scan_segments") as summary:
        summary["segment_count"] = 7
    assert (work.jobs, work.executions) == (0, 0)
    with as_large_tables(), counting_work(spark) as work:
        assert sorted(_outcomes(runs).values()) == ["killed"]
    assert work.jobs > 0, "jobs are counted"
    assert work.executions > 0, "SQL executions are counted"


def test_table_with_a_feature_of_spark_records_runs_by_spark(spark: SparkSession, runs: Warehouse) -> None:
    spark.sql(f"ALTER TABLE {runs.identifier(JOB_RUNS)} ADD CONSTRAINT known CHECK (started_ms > 0)")
    with recorded_run(runs, "scan_segments"):
        assert runs.read(JOB_RUNS).where("job = 'scan_segments' AND outcome = 'running'").count() == 1
    history = spark.sql(f"DESCRIBE HISTORY {runs.identifier(JOB_RUNS)}").orderBy("version").collect()
    assert [row["operation"] for row in history[-3:]] == ["ADD CONSTRAINT", "MERGE", "MERGE"]
    assert _outcomes(runs) == {"a": "killed"}


def test_plain_change_that_loses_a_race_to_spark_starts_again(runs: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [run_row("a", started_ms=9), run_row("b")]
    race_commit(monkeypatch, lambda: runs.merge(JOB_RUNS, runs.local(JOB_RUNS, both)))
    _plainly(runs, RowChange(where={"run_id": "a"}, values={"outcome": "failed"}))
    rows = runs.read(JOB_RUNS).where("run_id = 'a'").select("started_ms", "outcome").collect()
    assert [tuple(row) for row in rows] == [(9, "failed")]
    assert _outcomes(runs)["b"] == "running"


def _begin(runs: Warehouse, run_id: str) -> tuple[Any, Any]:
    """Start a transaction of Delta that reads the table; return it, and the removal of the file with that run."""
    jvm: Any = runs.spark.sparkContext._jvm
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(runs.spark._jsparkSession, runs.location(JOB_RUNS))
    rows = runs.spark.read.format("delta").load(runs.location(JOB_RUNS)).where(f"run_id = '{run_id}'")
    (held,) = rows.select("_metadata.file_name").collect()
    transaction = log.startTransaction(none, none)
    transaction.readWholeTable()
    (file,) = [each for each in transaction.snapshot().allFiles().collectAsList() if each.path() == held[0]]
    return transaction, file.removeWithTimestamp(1, True)


def _commit(runs: Warehouse, transaction: Any, action: Any) -> None:
    jvm: Any = runs.spark.sparkContext._jvm
    scala, none = jvm.org.apache.spark.api.python.PythonUtils, jvm.scala.Option.empty()
    mode = jvm.org.apache.spark.sql.SaveMode.Append
    operation = jvm.org.apache.spark.sql.delta.DeltaOperations.Write(mode, *[none] * 8)
    transaction.commit(scala.toSeq([action]), operation)


_CHANGED = RowChange(where={"run_id": "a"}, values={"outcome": "failed"})


@pytest.mark.parametrize("change", [_CHANGED, RowChange(added=[run_row("c")])], ids=["change", "append"])
def test_transaction_of_spark_that_read_the_table_yields_to_a_plain_commit(runs: Warehouse, change: RowChange) -> None:
    _plainly(runs, RowChange(added=[run_row("b")]))
    transaction, removal = _begin(runs, "b")
    _plainly(runs, change)
    with pytest.raises(ConcurrentAppendException):
        _commit(runs, transaction, removal)
    assert _outcomes(runs)["b"] == "running"


def _begin_numbered(runs: Warehouse, application: str) -> tuple[Any, Any]:
    """Start a transaction of Delta that reads only the number of an application; return it and its next number."""
    jvm: Any = runs.spark.sparkContext._jvm
    delta, none = jvm.org.apache.spark.sql.delta, jvm.scala.Option.empty()
    log = delta.DeltaLog.forTable(runs.spark._jsparkSession, runs.location(JOB_RUNS))
    transaction = log.startTransaction(none, none)
    return transaction, delta.actions.SetTransaction(application, transaction.txnVersion(application) + 1, none)


def test_transaction_of_spark_yields_to_a_plain_commit_of_the_same_application(runs: Warehouse) -> None:
    transaction, number = _begin_numbered(runs, "writer")
    assert commit_rows(runs.location(JOB_RUNS), JOB_RUNS, _CHANGED, ("writer", 5)) == 1
    with pytest.raises(ConcurrentTransactionException):
        _commit(runs, transaction, number)
    assert _begin_numbered(runs, "writer")[1].version() == 6


def test_transaction_of_spark_that_read_no_rows_follows_a_plain_change(runs: Warehouse) -> None:
    transaction, number = _begin_numbered(runs, "other")
    before = runs.newest_version(JOB_RUNS)
    assert commit_rows(runs.location(JOB_RUNS), JOB_RUNS, _CHANGED, ("writer", 5)) == 1
    _commit(runs, transaction, number)
    assert runs.newest_version(JOB_RUNS) == before + 2
    assert _outcomes(runs) == {"a": "failed"}
