"""Test that tables of a warehouse in a bucket are moved aside, also if the job is killed, and made anew."""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coldlog.errors import ColdlogError, UsageError
from coldlog.indexing.pipeline import run_pipeline
from coldlog.reader import OffsetReader
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings_sources import load_settings
from coldlog.runtime.spark.late_session import LateSession
from coldlog.upkeep.rebuild import add_options, set_tables_aside
from coldlog.upkeep.table_places import BucketPlace
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket
from worlds.golden_warehouse import golden_queries, is_true_answer
from worlds.kafka_sample import KAFKA_SAMPLE

(PACKED,) = (Path(__file__).parents[2] / "golden" / "warehouses").glob("*.tar.gz")
KEPT = ("log_start_offsets", "segment_events", "job_runs", "list_offsets_expirations")
PARTITIONS = (("payments", 1), ("records-deleted", 0))


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for topic, partition in PARTITIONS:
        (found,) = (KAFKA_SAMPLE / "archive").rglob(f"{topic}-{partition}-*/")
        shutil.copytree(found, tmp_path / "archive" / found.relative_to(KAFKA_SAMPLE / "archive"))
    return tmp_path / "archive"


@pytest.fixture
def before(bucket: Bucket, tmp_path: Path) -> dict[str, str]:
    """A warehouse in the bucket, as `tables/wh`, and its objects."""
    with tarfile.open(PACKED) as files:
        files.extractall(tmp_path / "packed", filter="data")
    bucket.put_directory(tmp_path / "packed", "tables/wh")
    return _objects(bucket)


def _objects(bucket: Bucket) -> dict[str, str]:
    """The MD5 of each object by its key."""
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name)
    return {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", ())}


def _set_aside(archive: Path, warehouse: str, *arguments: str) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    settings = load_settings("local", [f"archive.uri={archive}", f"warehouse.uri={warehouse}"])
    console = Console(progress=io.StringIO(), results=io.StringIO())
    set_tables_aside(PlainJob(settings=settings, arguments=parser.parse_args(arguments), console=console))


def _answers(uri: str) -> list[dict[str, object]]:
    queries = [each for each in golden_queries() if (each["topic"], each["partition"]) in PARTITIONS]
    with OffsetReader(uri) as reader:
        return reader.list_offsets(
            [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in queries]
        )


def _tables(objects: dict[str, str], prefix: str) -> dict[str, str]:
    """Objects below a prefix by the rest of their keys, without leases and what is no table's."""
    rest = {key.removeprefix(prefix): content for key, content in objects.items() if key.startswith(prefix)}
    return {key: content for key, content in rest.items() if "/" in key and not key.startswith(".")}


def _aside(objects: dict[str, str]) -> dict[str, str]:
    """What all runs have moved, by the key below the warehouse."""
    places = sorted({key.split("/")[1] for key in objects if ".replaced-" in key})
    return {key: content for place in places for key, content in _tables(objects, f"tables/{place}/").items()}


def test_tables_of_a_bucket_are_moved_and_the_others_stay_as_they_are(
    bucket: Bucket, archive: Path, before: dict[str, str]
) -> None:
    _set_aside(archive, bucket.uri("tables/wh"))
    after, was = _objects(bucket), _tables(before, "tables/wh/")
    kept = {key: content for key, content in was.items() if key.split("/")[0] in KEPT}
    assert _tables(after, "tables/wh/") == kept
    assert _aside(after) == {key: content for key, content in was.items() if key not in kept}
    with pytest.raises(UsageError, match="there is no warehouse"):
        _set_aside(archive, bucket.uri("tables/other"))


def test_job_that_is_killed_while_it_deletes_leaves_tables_that_are_refused_and_is_continued(
    bucket: Bucket, archive: Path, before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, ask = bucket.uri("tables/wh"), BucketPlace._ask
    truth, refused = _answers(uri), 0
    was = {key: content for key, content in _tables(before, "tables/wh/").items() if key.split("/")[0] not in KEPT}
    kills = 0
    for deletions in (0, 20, 1000):
        remaining = iter(range(deletions))

        def cut(place: BucketPlace, operation: str, remaining: Any = remaining, **arguments: object) -> Any:
            if operation == "delete_object" and next(remaining, None) is None:
                raise Killed
            return ask(place, operation, **arguments)

        with monkeypatch.context() as patched:
            patched.setattr(BucketPlace, "_ask", cut)
            try:
                _set_aside(archive, uri)
            except Killed:
                kills += 1
        objects = _objects(bucket)
        assert was == {
            key: content
            for key, content in {**_tables(objects, "tables/wh/"), **_aside(objects)}.items()
            if key.split("/")[0] not in KEPT
        }, "nothing is lost"
        try:
            assert _answers(uri) == truth
        except ColdlogError:
            refused += 1
    assert refused == 2, "nothing was deleted at the first kill"
    assert kills == 2
    assert {key.split("/")[0] for key in _tables(_objects(bucket), "tables/wh/")} == {*KEPT}


def test_nothing_is_deleted_if_a_copy_fails(
    bucket: Bucket, archive: Path, before: dict[str, str], s3_proxy: S3Proxy
) -> None:
    s3_proxy.strikes = lambda request: request.method == "PUT" and ".replaced-" in request.path
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")] * 99
    with pytest.raises(UsageError, match=r"no permission to move tables .*s3:PutObject .*wh\.replaced-\*"):
        _set_aside(archive, bucket.uri("tables/wh"))
    assert _tables(_objects(bucket), "tables/wh/") == _tables(before, "tables/wh/")


def _never() -> SparkSession:
    pytest.fail("this run starts Spark")


@pytest.mark.conditional_puts
def test_damaged_warehouse_in_a_bucket_is_made_anew(bucket: Bucket, archive: Path, tmp_path: Path) -> None:
    settings = load_settings("local", [f"archive.uri={archive}", f"warehouse.uri={tmp_path / 'wh'}"])
    late, console = (
        LateSession({"spark.master": "local[2]"}, _never),
        Console(progress=io.StringIO(), results=io.StringIO()),
    )
    run_pipeline(Job(spark=late.as_session(), settings=settings, arguments=argparse.Namespace(), console=console))
    bucket.put_directory(tmp_path / "wh", "tables/wh")
    commits = [key for key in _objects(bucket) if re.fullmatch(r"tables/wh/offset_index/_delta_log/\d+\.json", key)]
    # The history of runs can be opened, but not read.
    runs = [key for key in _objects(bucket) if re.fullmatch(r"tables/wh/job_runs/[^/]+\.parquet", key)]
    bucket.put(dict.fromkeys([max(commits), *runs], b""))
    uri = bucket.uri("tables/wh")
    assigned = [f"archive.uri={archive}", f"warehouse.uri={uri}"]
    run = subprocess.run(
        [sys.executable, "-P", "-m", "coldlog.launch.submit", "rebuild_tables"]
        + [word for setting in assigned for word in ("--set", setting)],
        cwd=tmp_path,
        # No Java is found: the job starts Spark only for more work.
        env={**os.environ, "MASTER": "local[2]", "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    with OffsetReader(uri) as reader:
        queries = [each for each in golden_queries() if (each["topic"], each["partition"]) == PARTITIONS[1]]
        asked = [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in queries]
        answers = reader.list_offsets(asked)
    assert len(queries) > 10
    assert all(is_true_answer(*pair, broker_compatible=False) for pair in zip(queries, answers, strict=True))
    assert all(answer["is_exact"] for answer in answers)
