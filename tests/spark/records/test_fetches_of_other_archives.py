"""Test fetches from archives that others wrote: Aiven's plugin, a mirror of log directories, a bucket."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE
from coldlog.archive.open_archive import open_archive
from coldlog.fetcher import open_fetcher
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure
from coldlog.model.states import IsolationLevel
from coldlog.tables.delta.warehouse import Warehouse
from contents.partition_records import open_partition
from contents.record_rows import true_batches
from fetching import LIMITS, as_truth, fetch_all, of_truth, open_fetcher_over, true_records
from servers.s3_proxy import S3Proxy
from servers.s3_server import Bucket
from worlds.aiven_sample import archive_of, keys_setting, true_partitions


@pytest.mark.parametrize("isolation_level", list(IsolationLevel))
def test_compressed_and_encrypted_chunks_give_the_records_of_the_logs(
    zstd_encrypted: Warehouse, monkeypatch: pytest.MonkeyPatch, isolation_level: IsolationLevel
) -> None:
    """The expected records are read in another way: whole logs, record by record."""
    variant, compared = "zstd-encrypted", 0
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, keys_setting(variant))
    opener = partial(open_archive, str(archive_of(variant)), "aiven")
    with open_fetcher_over(zstd_encrypted.uri, opener) as fetcher:
        for row in true_partitions(variant):
            topic, partition = str(row["topic"]), int(str(row["partition"]))
            ends = fetcher.partition_ends(topic, partition)
            if ends is None:
                continue
            whole = open_partition(
                zstd_encrypted, opener(), topic, partition, isolation_level, limits=LIMITS, window_bytes=1 << 20
            )
            expected = [each for each in whole.iter_records() if not each.is_control]
            walk = fetch_all(fetcher, topic, partition, ends.log_start_offset, 50_000, isolation_level)
            assert [
                (r.offset, r.timestamp_ms, r.leader_epoch, r.key, r.value, [(n.encode(), v) for n, v in r.headers])
                for r in walk.records
            ] == [(r.offset, r.timestamp_ms, r.leader_epoch, r.key, r.value, list(r.headers)) for r in expected]
            compared += len(expected)
    assert compared > 1_000


def test_missing_key_is_reported(zstd_encrypted_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    row = true_partitions("zstd-encrypted")[0]
    opener = partial(open_archive, str(archive_of("zstd-encrypted")), "aiven")
    with open_fetcher_over(zstd_encrypted_uri, opener) as fetcher:
        ends = fetcher.partition_ends(str(row["topic"]), int(str(row["partition"])))
        assert ends is not None
        refused = fetcher.fetch_records(str(row["topic"]), int(str(row["partition"])), ends.log_start_offset)
    assert isinstance(refused, FetchFailure)
    assert refused.error is FetchErrorCode.CORRUPT_MESSAGE
    assert "expected key" in refused.message


def test_mirror_of_log_directories_gives_the_records_of_a_consumer(grown_mirror_uri: str) -> None:
    opener = partial(open_archive, str(Path(grown_mirror_uri).parent / "mirror"), "log_directories")
    with open_fetcher_over(grown_mirror_uri, opener) as fetcher:
        for topic, partition in (("orders", 0), ("payments", 0), ("payments", 1), ("payments", 2)):
            for level in IsolationLevel:
                is_committed = level is IsolationLevel.READ_COMMITTED
                ends = fetcher.partition_ends(topic, partition)
                assert ends is not None
                walk = fetch_all(fetcher, topic, partition, ends.log_start_offset, 40_000, level)
                end = ends.readable_end(is_committed=is_committed)
                truths = [
                    each
                    for each in true_records(topic, partition)
                    if each["o"] < end and (each["rc"] or not is_committed)
                ]
                assert as_truth(walk.records, truths) == of_truth(truths)


def test_fetch_from_a_bucket_is_one_request_for_the_bytes_of_its_batches(
    golden_uri: str, golden_archive: Path, bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    for folder in golden_archive.glob("*/orders-0-*"):
        bucket.put_directory(folder, f"archive/{folder.relative_to(golden_archive)}")
    settings = [f"warehouse.uri={golden_uri}", f"archive.uri={bucket.uri('archive')}"]
    sizes = [each["size"] for each in true_batches("orders", 0)]
    with open_fetcher(settings) as fetcher:
        for max_bytes in (1, 60_000, 1 << 20):
            s3_proxy.forget()
            walk = fetch_all(fetcher, "orders", 0, 0, max_bytes)
            truths = true_records("orders", 0)
            assert as_truth(walk.records, truths) == of_truth(truths)
            asked = [each.range.removeprefix("bytes=").split("-") for each in s3_proxy.requests]
            lengths = [int(last) - int(first) + 1 for first, last in asked]
            assert lengths == [each.read_bytes for each in walk.answers if each.read_bytes], "one request a fetch"
            assert sum(lengths) == sum(sizes)
            if max_bytes == 1:
                assert lengths == sizes
        s3_proxy.forget()
        middle = next(each for each in true_batches("orders", 0) if each["base"] > 1_000 and each["count"] > 2)
        answer = fetcher.fetch_records("orders", 0, middle["base"] + 1, max_bytes=0)
        assert isinstance(answer, FetchedRecords)
        assert [each.offset for each in answer.records] == list(range(middle["base"] + 1, middle["last"] + 1))
        assert [each.range for each in s3_proxy.requests] == [
            f"bytes={middle['pos']}-{middle['pos'] + middle['size'] - 1}"
        ]
