"""spark_job: how fast does a whole archive become Delta tables, how large are they, and what memory does it take?

scan, build and materialize as the job run_pipeline calls them, into a new warehouse every time. Warm: in one session
that has run them once before. Cold: a process of its own, from nothing to its exit.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pyarrow as pa
from benchmarks.generated_logs import CACHE, GeneratedArchive
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.console import Console
from coldlog.job import Job
from coldlog.model.states import IndexDepth
from coldlog.operations.pipeline import build, materialize, scan
from coldlog.session import spark_session
from coldlog.settings_sources import load_settings
from coldlog.tables.catalog import INDEX_TABLES

WAREHOUSES = CACHE / "warehouses"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What one run came to."""

    seconds: float
    warehouse: Path
    index_table_bytes: int
    stair_count: int
    batch_count: int


def warehouse_assignments(archive: GeneratedArchive, warehouse: Path, depth: IndexDepth) -> list[str]:
    """What a user would write behind `--set`."""
    return [f"archive.uri={archive.directory}", f"warehouse.uri={warehouse}", f"index.depth={depth.value}"]


def new_warehouse(name: str) -> Path:
    """An empty place for tables."""
    warehouse = WAREHOUSES / name
    shutil.rmtree(warehouse, ignore_errors=True)
    return warehouse


def make_job(assignments: list[str], spark: SparkSession | None = None) -> Job:
    """A job with these settings, in a new session or in the one given, that says nothing."""
    settings = load_settings("local", assignments)
    silent = Console(progress=StringIO(), results=StringIO())
    session = spark or spark_session(settings, "coldlog-bench")
    return Job(spark=session, settings=settings, arguments=argparse.Namespace(), console=silent)


def run_in_session(spark: SparkSession, archive: GeneratedArchive, depth: IndexDepth) -> JobResult:
    """Scan, build and materialize into a new warehouse, timed together."""
    warehouse = new_warehouse(f"{archive.shape.name}-{depth.value}")
    job = make_job(warehouse_assignments(archive, warehouse, depth), spark)
    started = time.perf_counter()
    for operation in (scan, build, materialize):
        operation(job)
    return JobResult(
        seconds=time.perf_counter() - started,
        warehouse=warehouse,
        index_table_bytes=sum(_live_size(warehouse / table.name)[0] for table in INDEX_TABLES),
        stair_count=_live_size(warehouse / "time_index")[1],
        batch_count=_live_size(warehouse / "offset_index")[1],
    )


def _live_size(table: Path) -> tuple[int, int]:
    """Bytes and rows of the files that a table's newest version has."""
    files = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pydict()
    return sum(files["size_bytes"]), sum(files["num_records"])


def run_in_new_process(archive: GeneratedArchive, depth: IndexDepth) -> float:
    """Seconds of `./spark-submit.sh run_pipeline` from start to exit."""
    root = Path(__file__).resolve().parent.parent
    assignments = warehouse_assignments(archive, new_warehouse("cold"), depth)
    command = [str(root / "spark-submit.sh"), "run_pipeline"]
    for assignment in assignments:
        command += ["--set", assignment]
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started
