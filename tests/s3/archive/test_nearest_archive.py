"""Test that the archive that was meant is found in a bucket, within a bounded number of requests."""

from __future__ import annotations

import pytest

from coldlog.archive.layouts.layout import LayoutOptions, NoArchiveError
from coldlog.archive.nearest_archive import advise
from coldlog.archive.open_archive import open_archive
from coldlog.archive.stores.s3_client import S3Options
from coldlog.errors import UsageError
from servers.s3_proxy import S3Proxy
from servers.s3_server import Bucket
from worlds.kafka_sample import TIERED_STORAGE

OPTIONS, S3 = LayoutOptions(), S3Options()
LAYOUT = "local_tiered_storage"


@pytest.mark.parametrize(
    ("prefix", "advice"),
    [
        ("backup", "{0}/backup/tier has segments: set archive.uri={0}/backup/tier"),
        ("backup/teir", "{0}/backup/tier has segments: set archive.uri={0}/backup/tier"),
        ("backup/tier/kafka-tiered-storage/{1}", "{0}/backup/tier/kafka-tiered-storage has segments: "
         "set archive.uri={0}/backup/tier/kafka-tiered-storage"),
        ("elsewhere", "no archive is near it"),
    ],
)  # fmt: skip
def test_a_wrong_prefix_is_told_with_the_archive_that_was_meant(
    prefix: str, advice: str, bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    directory = next(TIERED_STORAGE.glob("payments-1-*"))
    objects = {f"backup/tier/kafka-tiered-storage/{directory.name}/{each.name}": b"" for each in directory.iterdir()}
    bucket.put({**objects, "elsewhere/x/y": b""})
    uri = bucket.uri(prefix.format("", directory.name))
    with pytest.raises(NoArchiveError):
        open_archive(uri, LAYOUT, OPTIONS, S3)
    assert advise(uri, LAYOUT, OPTIONS, S3) == advice.format(bucket.uri("").rstrip("/"))


def test_a_bucket_that_is_not_there_is_named(bucket: Bucket) -> None:
    uri = f"{bucket.uri('').rstrip('/')}-of-nobody/tier"
    with pytest.raises(UsageError, match=r"^no bucket .*-of-nobody: correct s3://.*, or the endpoint") as refused:
        open_archive(uri, LAYOUT, OPTIONS, S3)
    assert not isinstance(refused.value, NoArchiveError), "nothing near it is looked for"
