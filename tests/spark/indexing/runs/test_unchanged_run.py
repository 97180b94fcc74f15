"""Test how much Spark does in a run that finds nothing new."""

from __future__ import annotations

import io
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.indexing.pipeline import run_pipeline
from coldlog.runtime.console import Console, Stage
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.warehouse import Warehouse
from counts.spark_work import SparkWork, counting_work
from planning import as_large_tables
from worlds.kafka_sample import KAFKA_SAMPLE

_STAGES = ("warehouse", "scan", "build", "materialize", "reconcile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Most:
    """What a run may start: jobs, SQL executions, jobs by stage; and the scans of tables by stage, exactly."""

    jobs: int
    executions: int
    stage_jobs: tuple[int, ...]
    table_scans: tuple[int, ...]


SMALL = Most(jobs=0, executions=0, stage_jobs=(0, 0, 0, 0, 0), table_scans=(0, 0, 0, 0, 0))
LARGE = Most(jobs=28, executions=31, stage_jobs=(0, 4, 7, 9, 8), table_scans=(0, 1, 3, 6, 4))


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


@pytest.mark.parametrize(("tables", "most"), [(nullcontext, SMALL), (as_large_tables, LARGE)], ids=["small", "large"])
def test_run_that_finds_nothing_new_does_little_and_commits_only_its_own_row(
    spark: SparkSession,
    golden_uri: str,
    tmp_path: Path,
    tables: Callable[[], AbstractContextManager[None]],
    most: Most,
) -> None:
    location = tmp_path / "warehouse"
    shutil.copytree(golden_uri, location)
    warehouse = Warehouse(spark=spark, uri=str(location))
    settings = load_settings("local", [f"archive.uri={KAFKA_SAMPLE / 'archive'}", f"warehouse.uri={location}"])
    stages: dict[str, SparkWork] = {}
    console = CountingConsole(progress=io.StringIO(), results=io.StringIO(), spark=spark, work=stages)
    job = Job(spark=spark, settings=settings, arguments=Namespace(), console=console)
    before = {table.name: warehouse.newest_version(table) for table in ALL_TABLES}
    with tables(), counting_work(spark) as work:
        run_pipeline(job)
    assert {table.name: warehouse.newest_version(table) for table in ALL_TABLES} == before | {
        JOB_RUNS.name: before[JOB_RUNS.name] + 2
    }
    assert work.jobs <= most.jobs
    assert work.executions <= most.executions
    assert {name: stage.table_scans for name, stage in stages.items()} == dict(
        zip(_STAGES, most.table_scans, strict=True)
    )
    most_jobs = dict(zip(_STAGES, most.stage_jobs, strict=True))
    assert not {name: stage.jobs for name, stage in stages.items() if stage.jobs > most_jobs[name]}
