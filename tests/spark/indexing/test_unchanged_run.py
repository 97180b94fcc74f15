"""Test how much Spark does in a run that finds nothing new."""

from __future__ import annotations

import io
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from coldlog.indexing.pipeline import run_pipeline
from coldlog.runtime.console import Console, Stage
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.warehouse import Warehouse
from kafka_sample import KAFKA_SAMPLE
from spark_work import SparkWork, counting_work

MOST_JOBS, MOST_EXECUTIONS = 28, 31
MOST_STAGE_JOBS = {"warehouse": 0, "scan": 4, "build": 7, "materialize": 9, "reconcile": 8}
TABLE_SCANS = {"warehouse": 0, "scan": 1, "build": 3, "materialize": 7, "reconcile": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingConsole(Console):
    """Counts what Spark does in each stage."""

    spark: SparkSession
    work: dict[str, SparkWork]

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        with counting_work(self.spark) as work, Console.stage(self, name) as stage:
            yield stage
        self.work[name] = work


def test_run_that_finds_nothing_new_does_little_and_commits_only_its_own_row(
    spark: SparkSession, golden_uri: str, tmp_path: Path
) -> None:
    location = tmp_path / "warehouse"
    shutil.copytree(golden_uri, location)
    warehouse = Warehouse(spark=spark, uri=str(location))
    settings = load_settings("local", [f"archive.uri={KAFKA_SAMPLE / 'archive'}", f"warehouse.uri={location}"])
    stages: dict[str, SparkWork] = {}
    console = CountingConsole(progress=io.StringIO(), results=io.StringIO(), spark=spark, work=stages)
    job = Job(spark=spark, settings=settings, arguments=Namespace(), console=console)
    before = {table.name: warehouse.newest_version(table) for table in ALL_TABLES}
    with counting_work(spark) as work:
        run_pipeline(job)
    assert {table.name: warehouse.newest_version(table) for table in ALL_TABLES} == before | {
        JOB_RUNS.name: before[JOB_RUNS.name] + 2
    }
    assert 0 < work.jobs <= MOST_JOBS
    assert 0 < work.executions <= MOST_EXECUTIONS
    assert {name: stage.table_scans for name, stage in stages.items()} == TABLE_SCANS
    assert not {name: stage.jobs for name, stage in stages.items() if stage.jobs > MOST_STAGE_JOBS[name]}
