"""Test that a commit is written only if it does not exist, also if an earlier check did not find it: on S3 and in a
folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from coldlog.launch.s3a_options import s3a_options
from coldlog.tables.delta.files.file_checksums import check_file
from servers.s3_proxy import Fault, Request, S3Proxy
from servers.s3_server import ACCESS_KEY, SECRET_KEY, Bucket

_HADOOP = "spark.hadoop."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """The log store as Delta uses it, over one bucket."""

    jvm: Any
    store: Any
    configuration: Any
    bucket: Bucket

    def write(self, key: str, content: str, *, overwrite: bool = False) -> None:
        path = self.jvm.org.apache.hadoop.fs.Path(f"s3a://{self.bucket.name}/{key}")
        lines = self.jvm.java.util.ArrayList()
        for line in content.splitlines():
            lines.add(line)
        self.store.write(path, lines.iterator(), overwrite, self.configuration)

    def content(self, key: str) -> bytes:
        content: bytes = self.bucket.client.get_object(Bucket=self.bucket.name, Key=key)["Body"].read()
        return content


@pytest.fixture
def writer(spark: SparkSession, bucket: Bucket) -> Iterator[_Writer]:
    jvm: Any = spark.sparkContext._jvm
    configuration = jvm.org.apache.hadoop.conf.Configuration(False)
    configuration.addResource(spark.sparkContext._jsc.hadoopConfiguration())
    for key, value in s3a_options().items():
        configuration.set(key.removeprefix(_HADOOP), value)
    # Another file system object than that of the test before, whose proxy was told other things.
    configuration.set("fs.s3a.impl.disable.cache", "true")
    configuration.set("fs.s3a.retry.interval", "10ms")
    for name, value in (("aws.accessKeyId", ACCESS_KEY), ("aws.secretAccessKey", SECRET_KEY)):
        jvm.java.lang.System.setProperty(name, value)
    store = jvm.coldlog.ConditionalPutLogStore(configuration)
    yield _Writer(jvm=jvm, store=store, configuration=configuration, bucket=bucket)
    for name in ("aws.accessKeyId", "aws.secretAccessKey"):
        jvm.java.lang.System.clearProperty(name)


def _puts(proxy: S3Proxy) -> list[Request]:
    return [request for request in proxy.requests if request.method == "PUT"]


@pytest.mark.conditional_puts
def test_a_version_is_written_once(writer: _Writer) -> None:
    writer.write("t/_delta_log/1.json", "mine\nto the end")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        writer.write("t/_delta_log/1.json", "yours")
    assert writer.content("t/_delta_log/1.json") == b"mine\nto the end\n"


@pytest.mark.conditional_puts
def test_a_version_that_another_writer_just_wrote_is_not_overwritten(writer: _Writer, s3_proxy: S3Proxy) -> None:
    writer.bucket.put({"t/_delta_log/1.json": b"theirs\n"})
    # Whoever looks before writing finds nothing: the other one wrote in between.
    looks = ("HEAD", "GET")
    s3_proxy.strikes = lambda request: request.method in looks and not _puts(s3_proxy)
    s3_proxy.faults = [Fault(status=404, code="NoSuchKey")] * 4
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        writer.write("t/_delta_log/1.json", "mine")
    assert writer.content("t/_delta_log/1.json") == b"theirs\n"
    assert _puts(s3_proxy)


def test_a_commit_whose_answer_was_lost_is_recognized(writer: _Writer, s3_proxy: S3Proxy) -> None:
    s3_proxy.strikes = lambda request: request.method == "PUT"
    # The server has it; the client hears nothing, and sends it again.
    s3_proxy.faults = [Fault(status=503, code="SlowDown", is_done=True)]
    writer.write("t/_delta_log/1.json", "mine")
    assert writer.content("t/_delta_log/1.json") == b"mine\n"
    assert len(_puts(s3_proxy)) == 2


def test_a_put_that_conflicts_with_another_is_repeated(writer: _Writer, s3_proxy: S3Proxy) -> None:
    s3_proxy.strikes = lambda request: request.method == "PUT"
    s3_proxy.faults = [Fault(status=409, code="ConditionalRequestConflict")]
    writer.write("t/_delta_log/1.json", "mine")
    assert writer.content("t/_delta_log/1.json") == b"mine\n"


def test_a_missing_write_permission_is_reported_at_once(writer: _Writer, s3_proxy: S3Proxy) -> None:
    s3_proxy.strikes = lambda request: request.method == "PUT"
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")] * 9
    with pytest.raises(Py4JJavaError, match="AccessDenied"):
        writer.write("t/_delta_log/1.json", "mine")
    assert len(_puts(s3_proxy)) == 1


def test_a_file_that_may_be_overwritten_is_overwritten(writer: _Writer) -> None:
    for content in ("one", "two"):
        writer.write("t/_delta_log/_last_checkpoint", content, overwrite=True)
    assert writer.content("t/_delta_log/_last_checkpoint") == b"two\n"


@pytest.fixture
def local_write(spark: SparkSession, tmp_path: Path) -> Callable[[str, str], None]:
    """Writes a commit into a folder, as Delta does."""
    jvm: Any = spark.sparkContext._jvm
    assert spark.conf.get("spark.delta.logStore.file.impl") == "coldlog.SynchronizedLogStore"
    configuration = jvm.org.apache.hadoop.conf.Configuration(True)
    store = jvm.coldlog.SynchronizedLogStore(configuration)

    def write(name: str, line: str, *, overwrite: bool = False) -> None:
        lines = jvm.java.util.ArrayList()
        lines.add(line)
        path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "_delta_log" / name))
        store.write(path, lines.iterator(), overwrite, configuration)

    return write


def test_of_writers_of_one_version_in_a_folder_exactly_one_wins(
    local_write: Callable[[str, str], None], tmp_path: Path
) -> None:
    def compete(name: str, writer: int) -> int | None:
        try:
            local_write(name, f"writer {writer}")
        except Py4JJavaError as lost:
            if "FileAlreadyExistsException" not in str(lost.java_exception):
                raise
            return None
        return writer

    with ThreadPoolExecutor(4) as writers:
        for version in range(20):
            name = f"{version:020d}.json"
            winners = list(writers.map(partial(compete, name), range(4)))
            (winner,) = [each for each in winners if each is not None]
            path = tmp_path / "_delta_log" / name
            assert path.read_text() == f"writer {winner}\n"
            check_file(str(path))
    names = {each.name for each in (tmp_path / "_delta_log").iterdir()}
    assert names == {f"{version:020d}.json" for version in range(20)} | {
        f".{version:020d}.json.crc" for version in range(20)
    }


def test_commit_in_a_folder_replaces_checksums_that_a_lost_commit_left(
    local_write: Callable[[str, str], None], spark: SparkSession, tmp_path: Path
) -> None:
    name = f"{0:020d}.json"
    local_write(name, "lost")
    (tmp_path / "_delta_log" / name).unlink()
    local_write(name, '{"commitInfo":{}}')
    check_file(str(tmp_path / "_delta_log" / name))
    assert [row["value"] for row in spark.read.text(str(tmp_path / "_delta_log" / name)).collect()] == [
        '{"commitInfo":{}}'
    ]


def test_spark_commits_in_a_folder_with_this_store(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "a table with % and blanks"
    for _ in range(12):
        spark.range(3).write.format("delta").mode("append").save(str(table))
    assert spark.read.format("delta").load(str(table)).count() == 36
    assert not [each.name for each in (table / "_delta_log").iterdir() if each.name.endswith(".tmp")]
    assert (table / "_delta_log" / f"{10:020d}.checkpoint.parquet").exists()
    for commit in (table / "_delta_log").glob("*.json"):
        check_file(str(commit))
