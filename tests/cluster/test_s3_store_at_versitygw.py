"""Stores in a bucket at a server that checks signatures and keeps its objects as files."""

from __future__ import annotations

import pytest

from coldlog.archive.open_archive import open_archive
from coldlog.archive.stores.s3_client import S3Options, close_clients
from coldlog.archive.stores.s3_store import S3Store, open_s3_store
from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.indexing.scan.listing import list_directories
from servers.s3_server import Bucket, S3Server

MIB = 1 << 20
OPTIONS = S3Options(part_bytes=MIB, read_ahead_bytes=3 * MIB, first_delay_ms=1, max_attempts=2)


@pytest.fixture
def bucket(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in versitygw.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return versitygw.make_bucket()


def _store(bucket: Bucket) -> S3Store:
    return open_s3_store(bucket.uri("p"), OPTIONS)


def test_pages_directories_and_odd_names_are_listed_and_read(bucket: Bucket) -> None:
    names = ["a b+c", "per%20cent", "\u00fc", "x&y=z"]
    bucket.put({f"p/{name}/{name}": name.encode() for name in names})
    bucket.put({f"p/many/{number:04}": b"" for number in range(1001)})
    store = _store(bucket)
    assert store.list_directories("") == sorted([*names, "many"])
    assert [each.name for each in store.iter_objects("many")] == [f"many/{number:04}" for number in range(1001)]
    for name in names:
        assert store.read_range(f"{name}/{name}", 0, 99).tobytes() == name.encode()


def test_a_walk_is_read_ahead_and_ends_with_the_object(bucket: Bucket) -> None:
    content = bytes(range(256)) * 4096 * 5 + b"end"
    bucket.put({"p/log": content, "p/empty": b""})
    store = _store(bucket)
    assert b"".join(store.read_range("log", at, MIB) for at in range(0, len(content), MIB)) == content
    assert store.read_range("log", len(content), 10).tobytes() == b""
    assert store.read_range("empty", 0, 10).tobytes() == b""
    assert store.size_bytes("log") == len(content)


def test_object_replaced_during_a_sequential_read_is_refused(bucket: Bucket) -> None:
    bucket.put({"p/log": bytes(6 * MIB)})
    store = _store(bucket)
    store.read_range("log", 0, MIB)
    bucket.put({"p/log": bytes(5 * MIB)})
    with pytest.raises(ArchiveError, match="replaced") as refused:
        store.read_range("log", MIB, 5 * MIB)
    assert refused.value.reason is Reason.OBJECT_UNREADABLE


def test_what_is_missing_and_what_is_not_allowed_are_told_apart(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put({"p/log": b"1"})
    store = _store(bucket)
    with pytest.raises(ArchiveError) as missing:
        store.size_bytes("none")
    assert missing.value.reason is Reason.OBJECT_MISSING
    with pytest.raises(UsageError, match="no bucket not-there"):
        open_s3_store("s3://not-there/p", OPTIONS).list_directories("")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UsageError, match="not accepted .SignatureDoesNotMatch."):
        store.read_range("log", 0, 1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODY")
    with pytest.raises(UsageError, match="not accepted .XAdminUserNotFound."):
        store.read_range("log", 0, 1)
    close_clients()


@pytest.mark.timeout(900)
def test_a_hundred_thousand_objects_are_listed_whole(bucket: Bucket, versitygw: S3Server) -> None:
    # The server keeps its objects as files, and shows files as objects.
    partitions, segments, kinds = 50, 400, ("index", "leader_epoch_checkpoint", "log", "snapshot", "timeindex")
    assert versitygw.files is not None
    for partition in range(partitions):
        folder = versitygw.files / bucket.name / "archive" / "kafka-tiered-storage" / f"wide-{partition}-{'A' * 22}"
        folder.mkdir(parents=True)
        for number in range(segments):
            for kind in kinds:
                (folder / f"{1000 * number:020}-{number:021}A.{kind}").touch()
    layout = open_archive(bucket.uri("archive"), "local_tiered_storage")
    batches = list_directories(layout, layout.list_partition_directories().directories)
    listed = [row for batch in batches for row in batch.to_pylist()]
    assert {(row["partition"], row["start_offset"]) for row in listed} == {
        (partition, 1000 * number) for partition in range(partitions) for number in range(segments)
    }
    assert sum(len(row["objects"]) for row in listed) == partitions * segments * len(kinds) == 100_000
