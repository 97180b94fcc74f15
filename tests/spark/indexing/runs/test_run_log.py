"""Test the rows of `job_runs`: of a run in progress, of a run that succeeded or failed, and of one that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.indexing.run_log import recorded_run
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.warehouse import Warehouse


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Warehouse:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    spark.sql(JOB_RUNS.create_statement(warehouse.identifier(JOB_RUNS), warehouse.location(JOB_RUNS)))
    return warehouse


def _runs(warehouse: Warehouse) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = warehouse.read(JOB_RUNS).orderBy("started_ms").toArrow().to_pylist()
    return rows


def _leave_running(warehouse: Warehouse, name: str) -> None:
    """Leave what a killed run leaves: the row that it wrote at its start."""
    with recorded_run(warehouse, name):
        (running,) = (row for row in _runs(warehouse) if row["outcome"] == "running")
    warehouse.merge(JOB_RUNS, warehouse.local(JOB_RUNS, [running]))


def test_run_has_one_row_from_its_beginning_to_its_end(tables: Warehouse) -> None:
    with recorded_run(tables, "scan_segments") as summary:
        (beginning,) = _runs(tables)
        summary["segment_count"] = 7
    (end,) = _runs(tables)
    assert (beginning["job"], beginning["outcome"], beginning["finished_ms"]) == ("scan_segments", "running", None)
    assert (end["outcome"], end["error"], json.loads(str(end["summary"]))) == ("succeeded", None, {"segment_count": 7})
    assert (end["run_id"], end["started_ms"]) == (beginning["run_id"], beginning["started_ms"])
    assert int(str(end["finished_ms"])) >= int(str(end["started_ms"]))


def _following(cause: BaseException) -> Exception:
    """An error that was raised while `cause` was handled: py4j's, when the JVM gets the same signal."""
    error = ValueError("the JVM is gone")
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ValueError("no luck\ntoday"), "no luck"),
        (ValueError(), "ValueError"),
        (KeyboardInterrupt(), "interrupted"),
        (_following(KeyboardInterrupt("stopped by SIGTERM")), "stopped by SIGTERM"),
    ],
)
def test_run_that_fails_records_the_reason_and_its_counts(tables: Warehouse, raised: BaseException, error: str) -> None:
    def fail() -> None:
        with recorded_run(tables, "build_indexes") as summary:
            summary["indexed_count"] = 3
            raise raised

    with pytest.raises(type(raised)):
        fail()
    (run,) = _runs(tables)
    assert (run["outcome"], run["error"], run["summary"]) == ("failed", error, '{"indexed_count": 3}')


def test_runs_without_a_recorded_end_are_marked_killed_by_the_next_run(tables: Warehouse) -> None:
    with recorded_run(tables, "before"):
        pass
    _leave_running(tables, "lost")
    with recorded_run(tables, "after"):
        assert [(row["job"], row["outcome"]) for row in _runs(tables)] == [
            ("before", "succeeded"),
            ("lost", "killed"),
            ("after", "running"),
        ]
    lost = _runs(tables)[1]
    assert (lost["finished_ms"], lost["error"]) == (None, "the process was killed before it could record an end")
    assert [row["outcome"] for row in _runs(tables)] == ["succeeded", "killed", "succeeded"]
