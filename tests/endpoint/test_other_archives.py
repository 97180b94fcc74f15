"""Do clients read archives of other layouts, and in other stores, to the last record?"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE
from contents.record_rows import Row
from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import READERS
from endpoint.support.raw_client import connected, list_offsets
from endpoint.support.truth import LEVELS, PLACES, Header, true_records
from servers.s3_proxy import S3Proxy
from servers.s3_server import Bucket
from worlds.aiven_sample import archive_of, keys_setting, true_partitions

_VARIANT = "zstd-encrypted"
_OPEN_FROM = {("payments", 0): 1153, ("payments", 1): 1859}
"""First offsets of transactions that are open at the archive's end, by the broker's snapshots. The broker's consumer
read on, because the markers are in segments that were not copied yet."""
_CLIENTS = ("librdkafka", "kafka-python")


@pytest.fixture(scope="module")
def aiven(zstd_encrypted_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """What Aiven's plugin compressed and encrypted, served."""
    notes = tmp_path_factory.mktemp("aiven") / "notes"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT_VARIABLE, keys_setting(_VARIANT))
        with serving(notes, zstd_encrypted_uri, archive_of(_VARIANT), "archive.layout=aiven") as endpoint:
            yield endpoint


def _text(content: bytes | None) -> str:
    return "-" if content is None else base64.b64encode(content).decode()


def _line(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> Row:
    """A record in the form of the sample's digests."""
    named = "".join(f"\t{_text(name.encode())}={_text(content)}" for name, content in headers)
    return {"o": offset, "line": f"{offset}\t{timestamp_ms}\t{_text(key)}\t{_text(value)}{named}\n"}


def _digest(rows: Iterable[Row]) -> str:
    return hashlib.sha256("".join(row["line"] for row in rows).encode()).hexdigest()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("client", _CLIENTS)
def test_records_that_aiven_has_encrypted_are_those_that_the_broker_gave(
    aiven: Endpoint, client: str, level: str
) -> None:
    true = {
        (str(row["topic"]), int(str(row["partition"]))): row[f"archive_{level}"] for row in true_partitions(_VARIANT)
    }
    found = READERS[client](aiven.address, list(true), level, row=_line)
    for place, first_open in _OPEN_FROM.items() if level == "read_committed" else ():
        assert found.pop(place)[-1]["o"] < first_open
    for place, rows in found.items():
        ends = {"first": rows[0]["o"], "last": rows[-1]["o"]}
        assert true[place] == {"count": len(rows), **ends, "sha256": _digest(rows)}


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
