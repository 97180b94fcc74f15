"""Test that a commit without Spark is put into a bucket only if its version does not exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from coldlog.errors import ColdlogError
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.files.parquet_files import read_rows
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.table_storage import delta_storage_options
from contents.job_runs_table import run_row, unpack_job_runs
from servers.s3_proxy import Fault, Request, S3Proxy
from servers.s3_server import Bucket

NEXT = "00000000000000000003.json"


@pytest.fixture
def runs(bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path) -> str:
    bucket.put_directory(Path(unpack_job_runs(tmp_path)), "wh/job_runs")
    s3_proxy.forget()
    return bucket.uri("wh/job_runs").replace("s3://", "s3a://")


def _append(location: str, run_id: str) -> None:
    assert commit_rows(location, JOB_RUNS, RowChange(added=[run_row(run_id)])) == 0


def _runs(location: str) -> set[str]:
    delta = DeltaTable(location, storage_options=delta_storage_options(location))
    paths = [uri.rpartition("/")[2] for uri in delta.file_uris()]
    return {str(row["run_id"]) for path in paths for row in read_rows(location, path, ["run_id"])}


def _is_commit(request: Request) -> bool:
    return request.method == "PUT" and request.path.endswith(NEXT)


def _content(bucket: Bucket, name: str) -> bytes:
    answer = bucket.client.get_object(Bucket=bucket.name, Key=f"wh/job_runs/_delta_log/{name}")
    content: bytes = answer["Body"].read()
    return content


def test_change_in_a_bucket_is_read_with_its_version_checksum(runs: str, bucket: Bucket) -> None:
    before = _runs(runs)
    _append(runs, "a")
    assert commit_rows(runs, JOB_RUNS, RowChange(where={"run_id": "a"}, values={"outcome": "failed"})) == 1
    assert _runs(runs) == before | {"a"}
    checksum: dict[str, Any] = json.loads(_content(bucket, "00000000000000000004.crc"))
    assert checksum["numFiles"] == len(DeltaTable(runs, storage_options=delta_storage_options(runs)).file_uris())


def test_commit_that_another_writer_put_first_is_kept_and_followed(
    runs: str, bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    """The other writer comes between the reading of the log and the put: at the put of the data file."""
    done: list[Request] = []

    def other_commits(request: Request) -> bool:
        if request.method == "PUT" and request.path.endswith(".parquet") and not done:
            done.append(request)
            theirs = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "engineInfo": "other", "txnId": "t"}}
            bucket.put({f"wh/job_runs/_delta_log/{NEXT}": json.dumps(theirs).encode() + b"\n"})
        return False

    s3_proxy.strikes, s3_proxy.faults = other_commits, [Fault(status=500)]
    _append(runs, "a")
    assert done
    assert b"other" in _content(bucket, NEXT)
    assert "a" in _runs(runs)
    assert DeltaTable(runs, storage_options=delta_storage_options(runs)).version() == 4


@pytest.mark.parametrize(
    "fault", [Fault(status=503, code="SlowDown", is_done=True), Fault(status=409, code="ConditionalRequestConflict")]
)
def test_commit_whose_answer_is_lost_or_in_conflict_is_made_once(runs: str, s3_proxy: S3Proxy, fault: Fault) -> None:
    before = _runs(runs)
    s3_proxy.strikes, s3_proxy.faults = _is_commit, [fault]
    _append(runs, "a")
    assert len([request for request in s3_proxy.requests if _is_commit(request)]) == 2
    assert _runs(runs) == before | {"a"}
    assert DeltaTable(runs, storage_options=delta_storage_options(runs)).version() == 3


def test_missing_permission_to_write_the_log_is_reported(runs: str, s3_proxy: S3Proxy) -> None:
    s3_proxy.strikes, s3_proxy.faults = _is_commit, [Fault(status=403, code="AccessDenied")] * 9
    with pytest.raises(ColdlogError, match="00000000000000000003.json"):
        _append(runs, "a")
    assert "a" not in _runs(runs)
