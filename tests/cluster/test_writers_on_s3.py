"""Several drivers write one table on S3 at once, and a writer that slept past its lease wakes: nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cluster.jobs_on_s3 import PATIENCE_S, Submission, commit_count, contents
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.table_storage import delta_storage_options
from servers.s3_server import Bucket

ROUNDS = 20
"""Of two writers, with an append and a merge each: 80 commits against each other."""


@pytest.mark.timeout(1800)
def test_two_drivers_append_and_merge_80_times_against_each_other(
    golden_bucket: Bucket, reaching_s3: dict[str, str], tmp_path: Path
) -> None:
    table = golden_bucket.uri("two-writers")
    program = [sys.executable, str(Path(__file__).parent / "two_writers.py"), table]
    first = subprocess.run([*program, "first", "1"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert first.returncode == 0, first.stderr
    writers = [
        subprocess.Popen([*program, name, str(ROUNDS)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for name in ("left", "right")
    ]
    told = [writer.communicate(timeout=3 * PATIENCE_S)[0] for writer in writers]
    failed = [text for text, writer in zip(told, writers, strict=True) if writer.returncode]
    assert not failed, failed[0][-3000:]
    assert sum(int(met) for text in told for met in re.findall(r"(\d+) met another writer's", text)) > 0
    location = table.replace("s3://", "s3a://")
    delta = DeltaTable(location, storage_options=delta_storage_options(location))
    rows = sorted((row["writer"], row["number"], row["counter"]) for row in delta.to_pyarrow_table().to_pylist())
    both = [(name, number, 1) for name in ("left", "right") for number in range(ROUNDS)]
    assert rows == sorted([("first", 0, 1), *both])
    # A version each, none written over.
    assert delta.version() + 1 == 2 + 4 * ROUNDS


@pytest.mark.timeout(1800)
def test_writers_that_wake_past_their_lease_change_nothing(
    golden_bucket: Bucket,
    reaching_s3: dict[str, str],
    on_this_machine: tuple[Submission, dict[str, list[str]]],
    tmp_path: Path,
) -> None:
    """One sleeps while segments are indexed, the next between the index tables, and a third does all of the work."""
    warehouse = "paused"
    settings = (
        f"archive.uri={golden_bucket.uri('archive')}",
        f"metadata.uri={golden_bucket.uri('rlmm')}",
        f"warehouse.uri={golden_bucket.uri(warehouse)}",
        "warehouse.lease_seconds=3",
        "spark.driver.memory=1g",
    )
    submission = Submission(folder=tmp_path, environment=reaching_s3, settings=settings)
    with ExitStack() as running:
        paused = []
        for table in (SEGMENTS, OFFSET_INDEX):
            run = running.enter_context(submission.start("run_pipeline"))
            end = time.monotonic() + PATIENCE_S
            while commit_count(golden_bucket, warehouse, table) < 2:
                assert run.poll() is None, run.communicate()[0]
                assert time.monotonic() < end
                time.sleep(0.02)
            os.killpg(run.pid, signal.SIGSTOP)
            paused.append(run)
            # The server's clock has seconds.
            time.sleep(5)
        submission.run("run_pipeline")
        for run in paused:
            os.killpg(run.pid, signal.SIGCONT)
        for run in paused:
            told, _ = run.communicate(timeout=PATIENCE_S)
            assert run.returncode == 1, told
            assert "may no longer write the warehouse" in told or "conflicts with one of another job" in told
    assert contents(golden_bucket.uri(warehouse)) == on_this_machine[1]
