"""both_ways: run run_pipeline in the test's session as its command does, with the preflight and without it.

Between the two is only `end_unchanged_run`. So where it does not end a run and leaves every file as it was, the run
with it and the run without it are the same; and where it ends one, a run without it has to change nothing.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from coldlog.indexing.pipeline import run_pipeline
from coldlog.indexing.preflight import PreflightOutcome, end_unchanged_run
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.delta.run_rows import read_newest_run
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.leases.warehouse_lock import LOCK_NAME
from contents.table_contents import table_contents
from planning import planned_for_small_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays:
    """run_pipeline with these settings, but for the warehouse."""

    spark: SparkSession
    assignments: Sequence[str]

    def run(self, location: Path, *changed: str, is_full_listing: bool = False) -> bool:
        """Run the job as its command does; return whether it ended before Spark."""
        settings = self._settings(location, *changed)
        plain = PlainJob(settings=settings, arguments=argparse.Namespace(), console=_console())
        outcome = end_unchanged_run(plain, is_full_listing=is_full_listing)
        if outcome.exit_code is not None:
            return True
        job = Job(spark=self.spark, settings=settings, arguments=argparse.Namespace(), console=_console())
        with planned_for_small_tables(self.spark):
            run_pipeline(job, outcome.touched, is_full_listing=is_full_listing)
        return False

    def do(self, step: Callable[[Job], object], location: Path, *changed: str) -> None:
        """Do another job."""
        settings = self._settings(location, *changed)
        step(Job(spark=self.spark, settings=settings, arguments=argparse.Namespace(), console=_console()))

    def leave_to_spark(self, location: Path) -> None:
        """The preflight does nothing over what a killed run left, so a run without it is the same."""
        before = _files(location)
        plain = PlainJob(settings=self._settings(location), arguments=argparse.Namespace(), console=_console())
        assert end_unchanged_run(plain) == PreflightOutcome(), location
        assert _files(location) == before, location

    def finish(self, location: Path) -> Warehouse:
        """Run over what a killed run left, in both ways, which are one."""
        self.leave_to_spark(location)
        assert not self.run(location, "pipeline.skip_unchanged=false")
        return self._warehouse(location)

    def repeat(self, location: Path) -> None:
        """Run over the unchanged archive in each way: the first run ends before Spark, the second does every step, the
        third ends before Spark again; each leaves every row as it was."""
        rows = table_contents(self._warehouse(location))
        for changed, is_ended in (((), True), (("pipeline.skip_unchanged=false",), False), ((), True)):
            assert self.run(location, *changed) is is_ended, location
            assert table_contents(self._warehouse(location)) == rows, location

    def _settings(self, location: Path, *changed: str) -> Settings:
        return load_settings("local", [*self.assignments, f"warehouse.uri={location}", *changed])

    def _warehouse(self, location: Path) -> Warehouse:
        return Warehouse(spark=self.spark, uri=str(location))


def limit_of(location: Path) -> object:
    """To how many partitions the last run was limited; None: to no number."""
    row = read_newest_run(str(location))
    assert row is not None
    return json.loads(str(row["summary"]))["scan"]["limited_to_partitions"]


def rows_after_kills(warehouse: Warehouse, *, without: Collection[str] = ()) -> dict[str, list[str]]:
    """The rows of every table as `table_contents`. A kill between the row of quarantine and its mark in `segments`
    makes the next run try the segment once more, which does not count here."""
    contents = table_contents(warehouse, without=without)
    contents[QUARANTINE.name] = [
        row.replace("'attempt_count': 2", "'attempt_count': 1") for row in contents[QUARANTINE.name]
    ]
    return contents


def _files(location: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file, but for the lock."""
    found = {path: path.stat() for path in location.rglob("*") if path.is_file() and path.name != LOCK_NAME}
    return {str(path): (status.st_size, status.st_mtime_ns) for path, status in found.items()}


def _console() -> Console:
    return Console(progress=io.StringIO(), results=io.StringIO())
