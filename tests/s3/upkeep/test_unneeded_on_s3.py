"""Test that files and log entries that no version needs are removed from a bucket."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from coldlog.errors import ColdlogError, UsageError
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.log_check import create_checkpoint
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.table_storage import open_delta
from coldlog.upkeep.unneeded_files import remove_old_entries, remove_unneeded
from contents.job_runs_table import run_row, unpack_job_runs
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket

_HOUR_MS = 3_600_000


@pytest.fixture
def location(bucket: Bucket, tmp_path: Path) -> str:
    """A table in the bucket of two files that versions have had, one that is needed and others that are not."""
    local = unpack_job_runs(tmp_path)
    for number in range(11):
        commit_rows(local, JOB_RUNS, RowChange(added=[run_row(str(number))]))
        commit_rows(local, JOB_RUNS, RowChange(where={"run_id": str(number)}, values={"error": "e"}))
    create_checkpoint(DeltaTable(local), local)
    (tmp_path / "job_runs" / "of-a-killed-job.parquet").write_bytes(b"x")
    (tmp_path / "job_runs" / "notes.txt").write_bytes(b"x")
    bucket.put_directory(tmp_path / "job_runs", "wh/job_runs")
    return f"s3://{bucket.name}/wh/job_runs"


def _live(location: str) -> set[str]:
    return set(pa.table(open_delta(location).get_add_actions()).column("path").to_pylist())


def test_what_the_newest_version_needs_stays_and_what_is_younger(bucket: Bucket, location: str) -> None:
    before, now_ms = bucket.keys(), time.time_ns() // 1_000_000
    remove_old_entries(location, now_ms - _HOUR_MS)
    assert remove_unneeded(location, now_ms - _HOUR_MS) == (0, 0)
    assert bucket.keys() == before
    live, newest = _live(location), open_delta(location).version()
    remove_old_entries(location, now_ms + _HOUR_MS)
    count, size_bytes = remove_unneeded(location, now_ms + _HOUR_MS)
    keys = bucket.keys()
    left = {key.removeprefix("wh/job_runs/") for key in keys}
    assert {name for name in left if name.endswith(".parquet") and "/" not in name} == live
    assert "notes.txt" in left
    assert (count, size_bytes > 1000) == (13, True), "a file of each change, one of the older version, one of a job"
    entries = [name.partition("/")[2] for name in left if name.startswith("_delta_log/")]
    assert {name.lstrip(".")[:20] for name in entries if "checkpoint" not in name[:17]} == {f"{newest:020d}"}
    assert (_live(location), open_delta(location).version()) == (live, newest)


def test_a_permission_that_is_missing_is_named(location: str, s3_proxy: S3Proxy) -> None:
    s3_proxy.strikes = lambda request: request.method == "DELETE"
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")] * 100
    with pytest.raises(ColdlogError, match="s3:DeleteObject") as refused:
        remove_unneeded(location, time.time_ns() // 1_000_000 + _HOUR_MS)
    assert isinstance(refused.value, UsageError)
