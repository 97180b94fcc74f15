"""Do clients read archives of other layouts, and in other stores, to the last record?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoint.clients import READERS
from endpoint.conftest import Endpoint, serving
from endpoint.raw_client import connected, list_offsets
from endpoint.truth import LEVELS, PLACES, true_records
from s3_proxy import S3Proxy
from s3_server import Bucket

_CLIENTS = ("librdkafka", "kafka-python")


@pytest.fixture(scope="module")
def mirror(grown_mirror_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A mirror of log directories; the id of topic `payments` is not known."""
    notes, directory = tmp_path_factory.mktemp("mirror") / "notes", Path(grown_mirror_uri).parent / "mirror"
    with serving(notes, grown_mirror_uri, directory, "archive.layout=log_directories") as endpoint:
        yield endpoint


def test_a_topic_without_an_id_is_read_to_the_last_record(mirror: Endpoint) -> None:
    places = [place for place in PLACES if place[0] == "payments"]
    for client, level in zip(_CLIENTS, LEVELS, strict=True):
        found = READERS[client](mirror.address, places, level)
        assert {place: found[place] for place in places} == {place: true_records(place, level) for place in places}


def test_offsets_by_time_of_a_topic_without_an_id_are_found(mirror: Endpoint) -> None:
    records = true_records(("payments", 0), "read_uncommitted")
    asked_ms = records[20]["ts"]  # Before the first marker, which has a later timestamp.
    with connected(mirror.port) as client:
        answer = client.ask(2, 11, list_offsets([("payments", 0, asked_ms)]))
    assert answer.topics[0].partitions[0].offset == next(row["o"] for row in records if row["ts"] >= asked_ms)


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
