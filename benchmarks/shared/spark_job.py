"""spark_job: how fast does a whole archive become Delta tables, how large are they, and what memory does it take?

The job run_pipeline, into empty tables. Warm: in one session that has run it once before; what counts is the stages
scan, build and materialize, each timed by the console that would show it. Cold: a process of its own, from nothing to
its exit, with the archive's files on the disk alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TextIO

import pyarrow as pa
from benchmarks.shared.generated_logs import CACHE, GeneratedArchive
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.indexing.pipeline import open_warehouse, run_pipeline
from coldlog.launch.session import spark_session
from coldlog.model.states import IndexDepth
from coldlog.runtime.console import Console, Stage
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX

WAREHOUSES = CACHE / "warehouses"
STAGES = ("scan", "build", "materialize")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What one run came to."""

    stage_seconds: dict[str, float]
    warehouse: Path
    index_table_bytes: int
    stair_count: int
    batch_count: int

    @property
    def seconds(self) -> float:
        """Scan, build and materialize."""
        return sum(self.stage_seconds[stage] for stage in STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentConsole(Console):
    """Says nothing, and remembers how long each stage took."""

    progress: TextIO = field(default_factory=StringIO)
    results: TextIO = field(default_factory=StringIO)
    stage_seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        started = time.perf_counter()
        yield Stage()
        self.stage_seconds[name] = time.perf_counter() - started


def warehouse_assignments(archive: GeneratedArchive, warehouse: Path, depth: IndexDepth) -> list[str]:
    """What a user would write behind `--set`."""
    return [f"archive.uri={archive.directory}", f"warehouse.uri={warehouse}", f"index.depth={depth.value}"]


def new_warehouse(name: str) -> Path:
    """An empty place for tables."""
    warehouse = WAREHOUSES / name
    shutil.rmtree(warehouse, ignore_errors=True)
    return warehouse


def make_job(assignments: list[str], spark: SparkSession | None = None) -> tuple[Job, SilentConsole]:
    """A job with these settings, in a new session or in the one given, and its console."""
    settings, console = load_settings("local", assignments), SilentConsole()
    session = spark or spark_session(settings, "coldlog-bench")
    session.sparkContext.setLogLevel("ERROR")
    return Job(spark=session, settings=settings, arguments=argparse.Namespace(), console=console), console


def run_in_session(spark: SparkSession, archive: GeneratedArchive, depth: IndexDepth) -> JobResult:
    """The pipeline into new tables, which are there before the clock starts."""
    warehouse = new_warehouse(f"{archive.shape.name}-{depth.value}")
    job, console = make_job(warehouse_assignments(archive, warehouse, depth), spark)
    open_warehouse(job)
    run_pipeline(job)
    sizes = {table.name: _live_size(warehouse / table.name) for table in INDEX_TABLES}
    return JobResult(
        stage_seconds=console.stage_seconds,
        warehouse=warehouse,
        index_table_bytes=sum(size_bytes for size_bytes, _ in sizes.values()),
        stair_count=sizes[TIME_INDEX.name][1],
        batch_count=sizes[OFFSET_INDEX.name][1],
    )


def _live_size(table: Path) -> tuple[int, int]:
    """Bytes and rows of the files that a table's newest version has."""
    files = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pydict()
    return sum(files["size_bytes"]), sum(files["num_records"])


def run_in_new_process(archive: GeneratedArchive, depth: IndexDepth) -> float:
    """Seconds of `./spark-submit.sh run_pipeline` from start to exit, with nothing of the archive in the page cache."""
    drop_from_page_cache(archive.directory)
    root = Path(__file__).resolve().parents[2]
    assignments = warehouse_assignments(archive, new_warehouse("cold"), depth)
    command = [str(root / "spark-submit.sh"), "run_pipeline"]
    for assignment in assignments:
        command += ["--set", assignment]
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def drop_from_page_cache(directory: Path) -> None:
    """The next read of these files is one of the disk; what was not written there yet is, first."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
