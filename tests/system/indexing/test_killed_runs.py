"""Test pipeline runs whose processes are killed (`kill -9`) at moments that the content of the warehouse defines.

Of a run the driver is killed, or its JVM; nothing that it started may stay behind. A moment is a number of commits of
one table, or files that were written and not committed, so a slow machine is killed at the same place as a fast one.
However often a warehouse was cut, a run that comes to its end leaves the tables of an undisturbed one.

Some moments are cheaper: all processes are stopped (SIGSTOP), the warehouse is copied, and they go on. The copy is what
a kill at that moment leaves, because what a process has written is the kernel's.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays, rows_after_kills
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import BUILD_NUMBERS, table_contents
from damage.killed_jobs import (
    PATIENCE_S,
    continue_session,
    find_jvm,
    find_processes,
    kill_session,
    start_job,
    stop_session,
    wait_until,
)
from planning import ASSIGNMENTS_FOR_SMALL_TABLES
from worlds.golden_warehouse import build_settings, run_pipeline, write_log_start_offsets
from worlds.kafka_sample import KAFKA_SAMPLE

MAX_BYTES_PER_COMMIT = 350 << 10
# Aborted transactions, a second upload of a segment, a log start offset inside a segment, times that go backwards.
PARTITIONS = ("payments-1", "crashy-upload-0", "records-deleted-0", "late.events-2")
BROKEN_LOG = "late.events-2-*/00000000000000000000-*.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Which process is killed after `commit_count` commits of the run to `table`."""

    table: TableDefinition
    commit_count: int
    is_jvm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """`run_pipeline` from one archive into one warehouse, as a scheduler starts it."""

    folder: Path
    archive: Path
    log_starts: Path

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(encoding="utf-8")

    @property
    def settings(self) -> tuple[str, ...]:
        """Those of a run, but for the warehouse."""
        return (
            f"archive.uri={self.archive}",
            f"log_start_offsets.uri={self.log_starts}",
            f"build.max_bytes_per_commit={MAX_BYTES_PER_COMMIT}",
            "spark.sql.shuffle.partitions=1",
            *ASSIGNMENTS_FOR_SMALL_TABLES,
        )

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start the run in its own process session, so that all of its processes can be found."""
        settings = (*self.settings, f"warehouse.uri={self.warehouse}", *more)
        options = [word for setting in settings for word in ("--set", setting)]
        return start_job("run_pipeline", options, folder=self.folder)

    def finish(self) -> None:
        with self.start() as run:
            code = run.wait(timeout=PATIENCE_S)
        assert code == 0, self.stderr

    def kill(self, kill: Kill) -> int:
        """Start a run, kill it and wait until all its processes have ended; return the driver's exit code."""
        commits_before = self.commit_count(kill.table)
        # With Hadoop's own settings Spark starts at once, although the work is little.
        with self.start(*(["spark.hadoop.fs.defaultFS=file:///"] if kill.is_jvm else [])) as run:
            moment = commits_before + kill.commit_count
            wait_until(lambda: self.commit_count(kill.table) >= moment or run.poll() is not None, every_s=0.005)
            assert run.poll() is None, f"it ended before {kill.table.name} had {moment} commits\n{self.stderr}"
            os.kill(find_jvm(run.pid) if kill.is_jvm else run.pid, signal.SIGKILL)
            code = run.wait(timeout=60)
            wait_until(lambda: not find_processes(run.pid), within_s=60, every_s=0.1)
        return code

    def kill_amid(self, table: TableDefinition, copies: Sequence[Path] = (), file_counts: Sequence[int] = ()) -> None:
        """Starts a run and kills all of it at once when a file of `table` is written and not committed. Before that,
        each of `copies` is made during a commit too, when the warehouse has as many files as `file_counts` say."""
        noted = max(1, self.commit_count(JOB_RUNS))
        with self.start() as run:
            wait_until(lambda: self.commit_count(JOB_RUNS) > noted or run.poll() is not None, every_s=0.005)
            try:
                for copy, count in zip(copies, file_counts, strict=True):
                    self._stop(run, partial(self._is_amid_any_commit, count))
                    shutil.copytree(self.warehouse, copy)
                    continue_session(run)
                self._stop(run, partial(self.has_uncommitted, table))
            finally:
                kill_session(run)

    def _stop(self, run: subprocess.Popen[bytes], is_so: Callable[[], bool]) -> None:
        """Suspend the run at a moment when this is true."""
        while True:
            wait_until(lambda: is_so() or run.poll() is not None, every_s=0.001)
            assert run.poll() is None, f"it ended before that moment\n{self.stderr}"
            run.send_signal(signal.SIGSTOP)  # at once: the driver commits, and finding its other processes takes longer
            stop_session(run)
            if is_so():
                return
            continue_session(run)  # the commit was faster

    def _is_amid_any_commit(self, file_count: int) -> bool:
        return self.file_count >= file_count and any(map(self.has_uncommitted, ALL_TABLES))

    @property
    def file_count(self) -> int:
        """Data files, committed or not."""
        return len(list(self.warehouse.glob("*/*.parquet")))

    def has_uncommitted(self, table: TableDefinition) -> bool:
        """The table has a file, maybe incomplete, that its log does not name."""
        location = self.warehouse / table.name
        files = {path.name for path in location.glob("*.parquet")}
        return bool(files - _committed(location)) if files else False

    def commit_count(self, table: TableDefinition) -> int:
        return len(list((self.warehouse / table.name / "_delta_log").glob("*.json")))


def _committed(location: Path) -> set[str]:
    """Files that any commit of the log names."""
    names = set()
    for log in (location / "_delta_log").glob("*.json"):
        for line in log.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            names |= {action[kind]["path"] for kind in ("add", "remove") if kind in action}
    return names


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of the sample; one log has lost everything, another its last batch."""
    archive = tmp_path_factory.mktemp("killed") / "archive"
    source = KAFKA_SAMPLE / "archive" / "kafka-tiered-storage"
    for partition in PARTITIONS:
        (directory,) = source.glob(f"{partition}-*")
        shutil.copytree(directory, archive / source.name / directory.name, copy_function=shutil.copy)
    (log,) = (archive / source.name).glob(BROKEN_LOG)
    os.truncate(log, 40)
    torn = next(each for each in sorted(log.parent.glob("*.log")) if each != log)
    os.truncate(torn, torn.stat().st_size - 1)
    return archive


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The tables of a run that was not killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    warehouse = run_pipeline(
        spark,
        archive,
        folder / "warehouse",
        log_start_offsets=write_log_start_offsets(folder / "log_starts.csv"),
        settings=build_settings(max_bytes_per_commit=MAX_BYTES_PER_COMMIT),
    )
    contents = table_contents(warehouse, without=BUILD_NUMBERS)
    assert all(contents[table.name] for table in (SEGMENTS, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, QUARANTINE))
    return contents


@pytest.fixture
def pipeline(archive: Path, tmp_path: Path) -> Pipeline:
    return Pipeline(folder=tmp_path, archive=archive, log_starts=write_log_start_offsets(tmp_path / "log_starts.csv"))


def _contents(spark: SparkSession, location: Path) -> dict[str, list[str]]:
    return rows_after_kills(Warehouse(spark=spark, uri=str(location)), without=BUILD_NUMBERS)


def _outcomes(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    runs = Warehouse(spark=spark, uri=str(pipeline.warehouse)).read(JOB_RUNS)
    return [row["outcome"] for row in runs.orderBy("started_ms").collect()]


@pytest.mark.timeout(900)
def test_warehouse_whose_runs_were_killed_repeatedly_equals_an_undisturbed_one(
    spark: SparkSession, pipeline: Pipeline, undisturbed: dict[str, list[str]]
) -> None:
    # While tables are created.
    assert pipeline.kill(Kill(table=TIME_INDEX, commit_count=1)) == -signal.SIGKILL
    # Between the index tables, with rows that were never published: the JVM, and the driver says so.
    assert pipeline.kill(Kill(table=OFFSET_INDEX, commit_count=2, is_jvm=True)) == 1
    told = pipeline.stderr
    assert "spark-submit.sh run_pipeline: spark's JVM has ended by SIGKILL" in told
    assert "start the job again" in told
    assert "Traceback" not in told
    assert len(told.splitlines()) < 12, told
    # Between a publication and what follows it.
    assert pipeline.kill(Kill(table=SEGMENTS, commit_count=2)) == -signal.SIGKILL
    both_ways = BothWays(spark=spark, assignments=pipeline.settings)
    both_ways.leave_to_spark(pipeline.warehouse)
    pipeline.finish()
    assert _contents(spark, pipeline.warehouse) == undisturbed
    # The first was killed before there was a table to note it in. Of the second only the JVM was.
    assert _outcomes(spark, pipeline) == ["failed", "killed", "succeeded"]
    assert both_ways.run(pipeline.warehouse), "nothing has changed since, so it ends before Spark"


@pytest.mark.timeout(900)
def test_warehouse_of_a_run_killed_during_any_commit_equals_an_undisturbed_one(
    spark: SparkSession, pipeline: Pipeline, undisturbed: dict[str, list[str]]
) -> None:
    # In the scan: what it found is written, and not committed.
    pipeline.kill_amid(SEGMENTS)
    assert pipeline.commit_count(SEGMENTS) == 1
    # From the next scan to the middle of materialize: a file for each index table and commit of the build comes, and
    # one of `segments`.
    moments = sorted(random.Random(20261123).sample(range(pipeline.file_count + 1, pipeline.file_count + 12), 2))
    copies = [pipeline.folder / f"copy-{moment}" for moment in moments]
    pipeline.kill_amid(PARTITION_METADATA, copies, moments)
    for cut in (*copies, pipeline.warehouse):
        BothWays(spark=spark, assignments=pipeline.settings).leave_to_spark(cut)
        run_pipeline(
            spark,
            pipeline.archive,
            cut,
            log_start_offsets=pipeline.log_starts,
            settings=build_settings(max_bytes_per_commit=MAX_BYTES_PER_COMMIT),
        )
        assert _contents(spark, cut) == undisturbed, cut.name
