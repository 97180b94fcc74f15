"""Test the data source over other archives: in a bucket, of Aiven's plugin, a mirror whose last log grows."""

from __future__ import annotations

from pathlib import Path

import pyspark.sql.datasource as ds
import pytest
from pyspark.sql import SparkSession

from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE
from coldlog.archive.open_archive import open_archive
from coldlog.model.states import IsolationLevel
from coldlog.tables.delta.warehouse import Warehouse
from contents.partition_records import open_partition
from contents.record_rows import as_truth, consumed, moment, of_truth, read, true_batches
from fetching import LIMITS
from servers.s3_proxy import S3Proxy
from servers.s3_server import Bucket, S3Server
from worlds.aiven_sample import archive_of, keys_setting, true_partitions
from worlds.grown_mirror import write_grown_mirror
from worlds.written_topics import LARGE_BATCH_RECORDS, LARGE_BATCHES, START_MS

MIB = 1 << 20


@pytest.fixture(scope="module")
def large(written_uri: str, s3_server: S3Server) -> Bucket:
    """A bucket with one log of 27 MB, as `archive`."""
    bucket = s3_server.make_bucket()
    archive = Path(written_uri).parent / "archive"
    for folder in archive.glob("*/large-0-*"):
        bucket.put_directory(folder, f"archive/{folder.relative_to(archive)}")
    return bucket


@pytest.mark.pushdown
@pytest.mark.parametrize(
    ("first", "last", "options"),
    [
        (0, LARGE_BATCHES - 1, {}),
        (0, 120, {}),
        (150, 290, {}),
        (30, LARGE_BATCHES - 1, {}),
        (0, LARGE_BATCHES - 1, {"maxPartitionBytes": 6 * MIB}),
        (60, 330, {"maxPartitionBytes": 6 * MIB}),
    ],
)
def test_only_bytes_that_are_read_are_requested_from_a_bucket(
    spark: SparkSession,
    written_uri: str,
    large: Bucket,
    s3_access: S3Proxy,
    first: int,
    last: int,
    options: dict[str, int],
) -> None:
    found = read(
        Warehouse(spark=spark, uri=written_uri),
        large.uri("archive"),
        ds.GreaterThanOrEqual(("timestamp",), moment(START_MS + first)),
        ds.LessThanOrEqual(("timestamp",), moment(START_MS + last)),
        subscribe="large",
        columns="offset",
        **options,
    )
    assert found.offsets() == list(range(first * LARGE_BATCH_RECORDS, (last + 1) * LARGE_BATCH_RECORDS))
    asked = [each.range.removeprefix("bytes=").split("-") for each in s3_access.gets]
    assert found.bytes_read == sum(task.size_bytes for task in found.tasks) > 6 * MIB
    assert sum(int(end) - int(start) + 1 for start, end in asked) == found.bytes_read


@pytest.mark.parametrize("isolation_level", list(IsolationLevel))
def test_compressed_and_encrypted_chunks_give_the_records_of_the_logs(
    zstd_encrypted: Warehouse, monkeypatch: pytest.MonkeyPatch, isolation_level: IsolationLevel
) -> None:
    """The expected records are read in another way: whole logs, record by record."""
    variant, compared = "zstd-encrypted", 0
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, keys_setting(variant))
    layout = open_archive(str(archive_of(variant)), "aiven")
    for row in true_partitions(variant):
        topic, partition = str(row["topic"]), int(str(row["partition"]))
        whole = open_partition(
            zstd_encrypted, layout, topic, partition, isolation_level, limits=LIMITS, window_bytes=1 << 20
        )
        expected = [each for each in whole.iter_records() if not each.is_control]
        if not expected:
            continue
        found = read(
            zstd_encrypted,
            archive_of(variant),
            assign=f'{{"{topic}":[{partition}]}}',
            archive_layout="aiven",
            includeHeaders=True,
            kafka_isolation_level=isolation_level.value,
        )
        assert [
            (r["offset"], r["timestamp"], r["key"], r["value"], [(h["key"], h["value"]) for h in r["headers"] or ()])
            for r in found.rows.to_pylist()
        ] == [
            (r.offset, moment(r.timestamp_ms), r.key, r.value, [(name.decode(), value) for name, value in r.headers])
            for r in expected
        ]
        compared += len(expected)
    assert compared > 1_000


def test_only_the_indexed_part_of_a_grown_mirror_is_read(
    spark: SparkSession, grown_mirror_uri: str, tmp_path: Path
) -> None:
    """The mirror was copied in the middle of a batch; records appended since then belong to the next run."""
    log = write_grown_mirror(tmp_path / "mirror")
    warehouse = Warehouse(spark=spark, uri=grown_mirror_uri)
    truths = [each for each in consumed("orders", 0) if each["o"] <= log.last_offset]
    for content in (log.file.read_bytes(), log.whole):
        log.file.write_bytes(content)
        found = read(
            warehouse,
            tmp_path / "mirror",
            assign='{"orders":[0]}',
            archive_layout="log_directories",
            includeHeaders=True,
        )
        assert as_truth(found.rows.to_pylist(), truths) == of_truth(truths)
        assert found.bytes_read == sum(
            each["size"] for each in true_batches("orders", 0) if each["last"] <= log.last_offset
        )
