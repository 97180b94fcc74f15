"""Test that runs with little work over a bucket and a warehouse in it need no Java, and end as those in a folder."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.indexing.pipeline import maintain, run_pipeline
from coldlog.indexing.preflight import end_unchanged_run
from coldlog.launch.entry_point import require_archive
from coldlog.launch.session import late_options
from coldlog.runtime.console import Console
from coldlog.runtime.installation import ROOT
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings_sources import load_settings
from coldlog.runtime.spark.late_session import LateSession
from coldlog.tables.delta.table_storage import keeping_tables_open
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import BUILD_NUMBERS, table_contents
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket
from worlds.kafka_sample import KAFKA_SAMPLE

_SOURCE = KAFKA_SAMPLE / "archive" / "kafka-tiered-storage"
_TIMES = (*BUILD_NUMBERS, "log_modified_ms")


def _run(job: str, folder: Path, *assignments: str) -> subprocess.CompletedProcess[str]:
    """Run the job where there is no Java."""
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    environment = {"PATH": str(folder), "PYTHONPATH": str(ROOT / "lib"), "HOME": str(folder), **aws}
    arguments = [part for each in assignments for part in ("--set", each)]
    command = [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def _never() -> SparkSession:
    pytest.fail("this run starts Spark")


def _job(*assignments: str) -> tuple[Job, io.StringIO]:
    """A job as a process begins it that starts Spark late, and what it says."""
    said = io.StringIO()
    late, arguments = LateSession({"spark.master": "local[2]"}, _never), argparse.Namespace()
    console = Console(progress=said, results=io.StringIO())
    settings = load_settings("local", assignments)
    return Job(spark=late.as_session(), settings=settings, arguments=arguments, console=console), said


def _index(*assignments: str) -> str:
    """Do what run_pipeline does, and return what it says."""
    job, said = _job(*assignments)
    plain = PlainJob(settings=job.settings, arguments=job.arguments, console=job.console)
    with keeping_tables_open():
        require_archive(plain)
        outcome = end_unchanged_run(plain)
        if outcome.exit_code is None:
            run_pipeline(job, outcome.touched)
    return said.getvalue()


def test_tables_in_a_bucket_are_made_grown_and_maintained_without_java(
    bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    """The first run is a process, where there is no Java."""
    local, uri = tmp_path / "warehouse", bucket.uri("wh")
    settings = f"archive.uri={bucket.uri('tier')}", f"warehouse.uri={uri}"
    in_folder = f"archive.uri={tmp_path / 'archive'}", f"warehouse.uri={local}"
    for partition in ("payments-1", "late.events-2"):
        (found,) = _SOURCE.glob(f"{partition}-*")
        bucket.put_directory(found, f"tier/{_SOURCE.name}/{found.name}")
        (tmp_path / "archive" / _SOURCE.name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "archive" / _SOURCE.name / found.name).symlink_to(found)
        if partition == "payments-1":
            ended = _run("run_pipeline", tmp_path, *settings)
            assert (ended.returncode, "  spark  " in ended.stderr) == (0, False), ended.stderr
        else:
            _index(*settings)
            _index(*in_folder)
        # The segments that were there are listed, and not read.
        assert {each.path.split("/")[-2] for each in s3_proxy.gets if "/tier/" in each.path} == {found.name}
        assert len(s3_proxy.requests) <= 700
        s3_proxy.forget()
    job, said = _job(settings[1])
    with keeping_tables_open():
        maintain(job)
    assert "files compacted to" in said.getvalue()
    s3_proxy.forget()
    again = _index(*settings)
    # For each of 16 tables its log, and what the run itself writes.
    assert len(s3_proxy.requests) <= 230
    assert not [each.path for each in s3_proxy.gets if "/tier/" in each.path]
    assert "nothing has changed since the last run" in again
    made = [table_contents(Warehouse(spark=job.spark, uri=str(each)), without=_TIMES) for each in (uri, local)]
    assert made[0] == made[1]


def test_a_bucket_that_may_not_be_listed_is_not_taken_for_an_empty_one(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    s3_proxy.strikes = lambda request: request.is_listing and "_delta_log" in request.query["prefix"][0]
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")] * 1_000
    archive = f"archive.uri={KAFKA_SAMPLE / 'archive'}"
    with pytest.raises(UsageError, match="s3:ListBucket"):
        _index(archive, f"warehouse.uri={bucket.uri('wh')}")
    keys = bucket.keys()
    assert not {key for key in keys if "_delta_log" in key}


def test_hadoops_own_settings_of_a_store_start_spark(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldlog.launch.session._has_jvm", lambda: False)

    def starts_late(*assignments: str) -> bool:
        return late_options(load_settings("local", [f"warehouse.uri={bucket.uri('wh')}", *assignments]), {}) is not None

    assert starts_late()
    assert not starts_late("spark.hadoop.fs.s3a.endpoint=http://elsewhere")
    monkeypatch.setenv("HADOOP_CONF_DIR", "conf")
    assert not starts_late()
