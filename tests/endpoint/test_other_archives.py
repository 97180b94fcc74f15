"""Do clients read an archive and tables in buckets to the last record?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoint.clients import READERS
from endpoint.conftest import Endpoint, serving
from endpoint.truth import LEVELS, PLACES, true_records
from s3_proxy import S3Proxy
from s3_server import Bucket

_CLIENTS = ("librdkafka", "kafka-python")


@pytest.fixture
def in_bucket(
    golden_bucket: Bucket, golden_archive: Path, bucket: Bucket, s3_access: S3Proxy, tmp_path: Path
) -> Iterator[Endpoint]:
    """The sample, whose tables and archive are in buckets."""
    bucket.put_directory(golden_archive, "archive")
    s3_access.forget()
    with serving(tmp_path / "notes", golden_bucket.uri("warehouse"), bucket.uri("archive")) as endpoint:
        yield endpoint


def test_an_archive_and_tables_in_buckets_are_read_to_the_last_record(in_bucket: Endpoint, s3_access: S3Proxy) -> None:
    for client, level in zip(_CLIENTS, LEVELS, strict=True):
        found = READERS[client](in_bucket.address, PLACES, level)
        assert not [place for place in PLACES if found[place] != true_records(place, level)]
    assert any(".log" in request.path for request in s3_access.gets)
