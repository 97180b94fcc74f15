"""Test the data source over other archives: in a bucket, of Aiven's plugin, a mirror whose last log grows."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyspark.sql.datasource as ds
import pytest
from pyspark.sql import SparkSession

from aiven_sample import archive_of, keys_setting, true_partitions
from builders.archive_writer import TopicPartition, write_archive
from builders.mirror_writer import SIDE_FILES, write_mirror
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE
from coldlog.archive.open_archive import open_archive
from coldlog.model.states import IsolationLevel
from coldlog.records.partition_records import open_partition
from coldlog.tables.delta.warehouse import Warehouse
from fetching import LIMITS
from golden_warehouse import run_pipeline, write_log_start_offsets
from record_rows import as_truth, consumed, moment, of_truth, read, true_batches
from s3_proxy import S3Proxy
from s3_server import Bucket

START_MS = 1_700_000_000_000
MIB = 1 << 20
BATCHES, BATCH_RECORDS = 400, 5


@pytest.fixture(scope="module")
def large(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Warehouse]:
    """One log of 27 MB with batches of many sizes."""
    folder, chance = tmp_path_factory.mktemp("large"), random.Random(8)
    batches = tuple(
        Batch(
            base_offset=number * BATCH_RECORDS,
            records=tuple(
                Record(timestamp_ms=START_MS + number, value=chance.randbytes(chance.randint(7_000, 20_000)))
                for _ in range(BATCH_RECORDS)
            ),
        )
        for number in range(BATCHES)
    )
    write_archive(folder / "archive", {TopicPartition(topic="large", partition=0): [Segment(batches=batches)]})
    return folder / "archive", run_pipeline(spark, folder / "archive", folder / "warehouse")


@pytest.mark.parametrize(
    ("first", "last", "options"),
    [
        (0, BATCHES - 1, {}),
        (0, 120, {}),
        (150, 290, {}),
        (30, BATCHES - 1, {}),
        (0, BATCHES - 1, {"maxPartitionBytes": 6 * MIB}),
        (60, 330, {"maxPartitionBytes": 6 * MIB}),
    ],
)
def test_only_bytes_that_are_read_are_requested_from_a_bucket(
    large: tuple[Path, Warehouse],
    bucket: Bucket,
    s3_proxy: S3Proxy,
    first: int,
    last: int,
    options: dict[str, int],
) -> None:
    archive, warehouse = large
    bucket.put_directory(archive, "archive")
    s3_proxy.forget()
    found = read(
        warehouse,
        bucket.uri("archive"),
        ds.GreaterThanOrEqual(("timestamp",), moment(START_MS + first)),
        ds.LessThanOrEqual(("timestamp",), moment(START_MS + last)),
        subscribe="large",
        columns="offset",
        **options,
    )
    assert found.offsets() == list(range(first * BATCH_RECORDS, (last + 1) * BATCH_RECORDS))
    asked = [each.range.removeprefix("bytes=").split("-") for each in s3_proxy.gets]
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


def test_only_the_indexed_part_of_a_grown_mirror_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """The mirror was copied in the middle of a batch; records appended since then belong to the next run."""
    write_mirror(tmp_path / "mirror", topics={"orders"}, kinds=SIDE_FILES)
    log = max((tmp_path / "mirror" / "orders-0").glob("*.log"))
    whole, own = log.read_bytes(), [each for each in true_batches("orders", 0) if each["base"] >= int(log.stem)]
    ended = own[len(own) // 2]
    os.truncate(log, ended["pos"] + ended["size"] + 100)
    opened = open_archive(str(tmp_path / "mirror"), "log_directories")
    warehouse = run_pipeline(
        spark, opened, tmp_path / "warehouse", log_start_offsets=write_log_start_offsets(tmp_path / "log_starts.csv")
    )
    truths = [each for each in consumed("orders", 0) if each["o"] <= ended["last"]]
    for content in (log.read_bytes(), whole):
        log.write_bytes(content)
        found = read(
            warehouse, tmp_path / "mirror", subscribe="orders", archive_layout="log_directories", includeHeaders=True
        )
        assert as_truth(found.rows.to_pylist(), truths) == of_truth(truths)
        assert found.bytes_read == sum(
            each["size"] for each in true_batches("orders", 0) if each["last"] <= ended["last"]
        )
