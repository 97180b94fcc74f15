"""Test how much each job does on an empty, an unchanged and a slightly changed archive."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.indexing import pipeline
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.upkeep import validation_report
from coldlog.upkeep.expectation_suites import load_suites
from counts.spark_work import counting_work

PARTITION = TopicPartition(topic="orders", partition=0)


class Work(NamedTuple):
    """Of one job: Spark jobs, scans of tables by Spark, and commits to all tables."""

    jobs: int
    table_scans: int
    commits: int


JOBS: dict[str, Callable[[Job], object]] = {
    "scan_segments": pipeline.scan,
    "build_indexes": pipeline.build,
    "materialize_metadata": pipeline.materialize,
    "reconcile_archive": pipeline.reconcile_archive,
    "validate_tables": pipeline.validate,
    "maintain_tables": pipeline.maintain,
}
MOST: dict[str, tuple[Work | None, ...]] = {
    "empty": (Work(0, 0, 2), Work(0, 0, 2), Work(0, 0, 2), None, None, Work(0, 0, 3)),
    "unchanged": (Work(0, 0, 2), Work(0, 0, 2), Work(0, 0, 2), Work(15, 12, 2), None, Work(0, 0, 3)),
    "changed": (Work(0, 0, 3), Work(0, 0, 5), Work(0, 0, 6), Work(12, 12, 2), Work(28, 0, 3), Work(0, 0, 8)),
}
"""For an archive without segments, one of two that are indexed, and one with a third; in the order of `JOBS`. Each job
commits the begin and the end of its run to `job_runs`. None: not run, because the job reads and plans the same as in a
later state, for ten seconds of a processor."""


@pytest.fixture
def one_expectation_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Great Expectations looks at few rows without Spark, and takes seconds for all expectations."""
    chosen = []
    for suite in load_suites():
        first = {each.view: each for each in reversed(suite.expectations)}
        chosen.append(replace(suite, expectations=tuple(first.values())))
    assert sum(len(suite.expectations) for suite in chosen) == sum(len(suite.views) for suite in chosen) > 15
    monkeypatch.setattr(validation_report, "load_suites", lambda: tuple(chosen))


@pytest.mark.usefixtures("one_expectation_a_view")
def test_a_job_does_no_more_than_this(spark: SparkSession, tmp_path: Path) -> None:
    archive, warehouse = tmp_path / "archive", tmp_path / "warehouse"
    (archive / ARCHIVE_FOLDER).mkdir(parents=True)
    settings = load_settings("local", [f"archive.uri={archive}", f"warehouse.uri={warehouse}"])

    def run(call: Callable[[Job], object]) -> Work:
        console = Console(progress=io.StringIO(), results=io.StringIO())
        before = _commit_count(warehouse)
        with counting_work(spark) as work:
            call(Job(spark=spark, settings=settings, arguments=Namespace(fail_on="error", full=False), console=console))
        return Work(jobs=work.jobs, table_scans=work.table_scans, commits=_commit_count(warehouse) - before)

    def find_excess(state: str) -> dict[tuple[str, str], tuple[Work, Work]]:
        pairs = ((name, most, run(JOBS[name])) for name, most in zip(JOBS, MOST[state], strict=True) if most)
        return {
            (state, name): (work, most) for name, most, work in pairs if work.jobs > most.jobs or work[1:] != most[1:]
        }

    run(pipeline.run_pipeline)
    wrong = find_excess("empty")
    write_archive(archive, {PARTITION: [_segment(0), _segment(10)]})
    run(pipeline.run_pipeline)
    wrong |= find_excess("unchanged")
    write_archive(archive, {PARTITION: [_segment(0), _segment(10), _segment(20)]})
    wrong |= find_excess("changed")
    assert wrong == {}


def _segment(start: int) -> Segment:
    records = tuple(Record(timestamp_ms=1_000 + start + at, value=b"v") for at in range(10))
    return Segment(batches=(Batch(base_offset=start, records=records),))


def _commit_count(warehouse: Path) -> int:
    return sum(len(list((warehouse / table.name / "_delta_log").glob("*.json"))) for table in ALL_TABLES)
