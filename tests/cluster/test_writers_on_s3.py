"""Several drivers write one table on S3 at once, and a writer that slept past its lease wakes: nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cluster.jobs_on_s3 import PATIENCE_S, Submission, commit_count, contents
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.table_storage import delta_storage_options
from s3_server import Bucket

ROUNDS = 50
"""Of two writers, with an append and a merge each: 200 commits against each other."""


@pytest.mark.timeout(1800)
def test_two_drivers_append_and_merge_200_times_against_each_other(
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
@pytest.mark.parametrize(
    ("table", "commits"),
    [
        pytest.param(SEGMENTS, 2, id="while segments are indexed"),
        pytest.param(OFFSET_INDEX, 2, id="between the index tables"),
    ],
)
def test_a_writer_that_wakes_past_its_lease_changes_nothing(
    golden_bucket: Bucket,
    reaching_s3: dict[str, str],
    on_this_machine: tuple[Submission, dict[str, list[str]]],
    tmp_path: Path,
    table: TableDefinition,
    commits: int,
) -> None:
    warehouse = f"paused-{table.name}"
    settings = (
        f"archive.uri={golden_bucket.uri('archive')}",
        f"metadata.uri={golden_bucket.uri('rlmm')}",
        f"warehouse.uri={golden_bucket.uri(warehouse)}",
        "warehouse.lease_seconds=3",
        "spark.driver.memory=1g",
    )
    submission = Submission(folder=tmp_path, environment=reaching_s3, settings=settings)
    with submission.start("run_pipeline") as paused:
        end = time.monotonic() + PATIENCE_S
        while commit_count(golden_bucket, warehouse, table) < commits:
            assert paused.poll() is None, paused.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.02)
        os.killpg(paused.pid, signal.SIGSTOP)
        # The server's clock has seconds.
        time.sleep(5)
        submission.run("run_pipeline")
        os.killpg(paused.pid, signal.SIGCONT)
        told, _ = paused.communicate(timeout=PATIENCE_S)
    assert paused.returncode == 1, told
    assert "may no longer write the warehouse" in told or "conflicts with one of another job" in told
    assert contents(golden_bucket.uri(warehouse)) == on_this_machine[1]
