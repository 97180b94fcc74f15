"""Test the whole pipeline on an archive in a bucket, with the command of users: its requests and its output."""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.pipeline import run_pipeline as run_pipeline_job
from coldlog.indexing.pipeline import scan
from coldlog.launch.entry_point import require_warehouse
from coldlog.launch.s3a_options import s3a_options
from coldlog.launch.spark_job import explain
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings_sources import load_settings
from coldlog.runtime.spark.late_session import LateSession
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import table_contents
from planning import FOR_SMALL_TABLES
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import ACCESS_KEY, SECRET_KEY, Bucket
from worlds.golden_warehouse import build_settings, golden_queries, run_pipeline
from worlds.kafka_sample import KAFKA_SAMPLE

ROOT = Path(__file__).parents[3]
LIMITS = DecodeLimits(max_batch_bytes=64 << 20, max_decompressed_bytes=64 << 20)
PARTITIONS = ("payments-0", "payments-1", "crashy-upload-0", "late.events-2")
PLACES = {"archive.uri": "tier", "metadata.uri": "metadata"}


def _run(job: str, folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Run in a new process, whose workers get the current environment."""
    small = [f"{key}={value}" for key, value in FOR_SMALL_TABLES.items()]
    arguments = [part for setting in (*small, *settings) for part in ("--set", setting)]
    return subprocess.run(
        [sys.executable, "-P", "-m", "coldlog.launch.submit", job, *arguments],
        cwd=folder,
        env={**os.environ, "MASTER": "local[2]"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A part of the sample: transactions, a second upload of a segment, times that go backwards."""
    source = KAFKA_SAMPLE / "archive" / "kafka-tiered-storage"
    for partition in PARTITIONS:
        (found,) = source.glob(f"{partition}-*")
        shutil.copytree(found, tmp_path / "archive" / source.name / found.name)
    return tmp_path / "archive"


@pytest.fixture
def archive(bucket: Bucket, directory: Path) -> Bucket:
    """The same part, and the metadata topic, in a bucket."""
    bucket.put_directory(directory, "tier")
    bucket.put_directory(KAFKA_SAMPLE / "rlmm", "metadata")
    return bucket


def test_an_archive_in_a_bucket_gives_the_same_tables_and_lookups_read_one_batch(
    archive: Bucket, directory: Path, s3_proxy: S3Proxy, spark: SparkSession, tmp_path: Path
) -> None:
    s3_proxy.forget()
    piped = _run(
        "run_pipeline",
        tmp_path,
        *(f"{key}={archive.uri(prefix)}" for key, prefix in PLACES.items()),
        f"warehouse.uri={tmp_path / 'bucket'}",
        "index.depth=batch",
    )
    assert piped.returncode == 0, piped.stderr
    assert s3_proxy.requests
    _require_no_secret(piped.stdout + piped.stderr, tmp_path / "bucket")

    found = Warehouse(spark=spark, uri=str(tmp_path / "bucket"))
    expected = run_pipeline(
        spark,
        directory,
        tmp_path / "directory",
        metadata=KAFKA_SAMPLE / "rlmm",
        settings=build_settings(IndexDepth.BATCH),
    )
    # A bucket and a copy of files do not keep the times of files.
    times = ("log_modified_ms", "metadata_max_timestamp_ms")
    compared = table_contents(found, without=times)
    for name, contents in table_contents(expected, without=times).items():
        assert compared[name] == contents, name

    rows = found.read(OFFSET_INDEX).select("position", "size_bytes").collect()
    known = {f"bytes={row['position']}-{row['position'] + row['size_bytes'] - 1}" for row in rows}
    open_layout = partial(open_archive, archive.uri("tier"), "local_tiered_storage")
    open_layout()
    with OffsetReader(found.uri, LookupOptions(batches=BatchReader(open_layout=open_layout, limits=LIMITS))) as reader:
        answered = [each for each in golden_queries() if each["archive"]]
        here = [each for each in answered if f"{each['topic']}-{each['partition']}" in PARTITIONS]
        for query in random.Random(7).sample(here, 20):
            s3_proxy.forget()
            topic, partition, time_ms = str(query["topic"]), int(str(query["partition"])), int(str(query["ts"]))
            assert reader.offset_for_timestamp(topic, partition, time_ms) is not None
            (asked,) = s3_proxy.requests
            assert asked.is_get
            assert asked.range in known


def test_a_bucket_that_may_not_be_read_is_reported(
    bucket: Bucket, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    settings = load_settings("local", [f"archive.uri={bucket.uri('tier')}", f"warehouse.uri={tmp_path / 'w'}"])
    job = Job(spark=spark, settings=settings, arguments=argparse.Namespace(), console=Console())
    with pytest.raises(UsageError, match="no credentials for S3: AWS_SECRET_ACCESS_KEY is missing in the env"):
        run_pipeline_job(job)


def test_a_warehouse_in_a_missing_bucket_is_reported_before_spark_starts(bucket: Bucket, tmp_path: Path) -> None:
    refused = _run("reconcile_archive", tmp_path, f"warehouse.uri=s3://{bucket.name}-other/warehouse")
    assert refused.returncode == 2
    (told,) = refused.stderr.splitlines()
    assert told.startswith(f"spark-submit.sh reconcile_archive: no bucket {bucket.name}-other: correct s3://")


@pytest.fixture
def spark_on_s3(spark: SparkSession, bucket: Bucket) -> Iterator[SparkSession]:
    """The session, for which S3A asks the server of the tests."""
    options = {key.removeprefix("spark.hadoop."): value for key, value in s3a_options().items()}
    options["fs.s3a.impl.disable.cache"] = "true"
    jvm: Any = spark.sparkContext._jvm
    for key, value in options.items():
        spark.conf.set(key, value)
    for name, value in (("aws.accessKeyId", ACCESS_KEY), ("aws.secretAccessKey", SECRET_KEY)):
        jvm.java.lang.System.setProperty(name, value)
    yield spark
    for key in options:
        spark.conf.unset(key)
    for name in ("aws.accessKeyId", "aws.secretAccessKey"):
        jvm.java.lang.System.clearProperty(name)


def _never() -> SparkSession:
    pytest.fail("this run starts Spark")


@pytest.mark.conditional_puts
def test_tables_that_may_be_listed_but_not_read_are_reported_with_the_permission(
    golden_uri: str, bucket: Bucket, s3_proxy: S3Proxy, spark_on_s3: SparkSession
) -> None:
    for log in Path(golden_uri).glob("*/_delta_log"):
        bucket.put_directory(log, f"warehouse/{log.parent.name}/_delta_log")
    s3_proxy.strikes = lambda request: request.method in ("GET", "HEAD") and "_delta_log/" in request.path
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")] * 1000
    places = [f"archive.uri={KAFKA_SAMPLE / 'archive'}", f"warehouse.uri={bucket.uri('warehouse')}"]
    settings, console = load_settings("local", places), Console(progress=io.StringIO(), results=io.StringIO())

    def job(spark: SparkSession) -> Job:
        return Job(spark=spark, settings=settings, arguments=argparse.Namespace(), console=console)

    with pytest.raises(UsageError) as before_spark:
        require_warehouse(PlainJob(settings=settings, arguments=argparse.Namespace(), console=console))
    with pytest.raises(UsageError) as without_spark:
        scan(job(LateSession({"spark.master": "local[2]"}, _never).as_session()))
    with pytest.raises(Exception, match="_delta_log") as by_spark:
        scan(job(spark_on_s3))
    explained = explain(by_spark.value)
    assert isinstance(explained, str)
    assert explained.startswith(f"S3 refuses s3a://{bucket.name}/warehouse/")
    for refused in (str(before_spark.value), str(without_spark.value), explained):
        assert "s3:GetObject" in refused
        assert SECRET_KEY not in refused


def _require_no_secret(told: str, warehouse: Path) -> None:
    assert SECRET_KEY not in told
    assert "Signature=" not in told
    written = [path for path in warehouse.rglob("*") if path.is_file()]
    assert len(written) > 20
    assert not [path for path in written if SECRET_KEY.encode() in path.read_bytes()]
