"""Test that every writable store writes objects atomically, whatever happens to the writer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from coldlog.archive.open_archive import open_archive_for_writing
from coldlog.archive.stores.local_writer import LocalWriter
from coldlog.archive.stores.object_writer import BytesContent, StoredContent, WritableStore
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_writer import S3Writer, open_s3_writer
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError, UsageError
from servers.s3_proxy import Fault, Request, S3Proxy
from servers.s3_server import Bucket
from stores.memory_store import MemoryStore

FAST = S3Options(first_delay_ms=1, max_delay_ms=2, max_attempts=4)
PART_BYTES = 5 << 20
"""The smallest part that S3 accepts."""
LARGE = bytes(range(256)) * 43_008
STORES = ("memory", "local", "s3")


class KilledError(BaseException):
    """An exception like that of a signal."""


@dataclass(frozen=True, slots=True)
class FailingContent:
    """Return all pieces except the last, then raise an error."""

    content: bytes
    failure: BaseException

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def iter_pieces(self) -> Iterator[memoryview]:
        for position in range(0, len(self.content) - 1, 1 << 20):
            yield memoryview(self.content)[position : position + (1 << 20)]
        raise self.failure


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WritableStore:
    if request.param == "memory":
        return MemoryStore({})
    if request.param == "local":
        (tmp_path / "archive").mkdir()
        return LocalWriter(root=str(tmp_path / "archive"), uri="archive")
    bucket: Bucket = request.getfixturevalue("bucket")
    return replace(open_s3_writer(bucket.uri("p"), FAST), part_bytes=PART_BYTES)


def names(store: WritableStore, prefix: str = "orders-0") -> list[str]:
    return [each.name for each in store.iter_objects(prefix)]


@pytest.mark.parametrize("content", [b"", b"x", LARGE], ids=["nothing", "small", "in parts"])
def test_written_object_is_read(store: WritableStore, content: bytes) -> None:
    store.put("orders-0/a.log", BytesContent(content))
    assert store.read_range("orders-0/a.log", 0, len(content) + 1) == content
    assert names(store) == ["orders-0/a.log"]


def test_existing_object_is_replaced(store: WritableStore) -> None:
    for content in (b"long before", b"now"):
        store.put("orders-0/a", BytesContent(content))
    assert bytes(store.read_range("orders-0/a", 0, 100)) == b"now"


@pytest.mark.parametrize("size_bytes", [10, len(LARGE)])
@pytest.mark.parametrize("failure", [KilledError(), ArchiveError(Reason.OBJECT_MISSING, "the source is gone")])
def test_failed_put_leaves_no_object_and_keeps_an_existing_one(
    store: WritableStore, size_bytes: int, failure: BaseException
) -> None:
    store.put("orders-0/b", BytesContent(b"before"))
    with pytest.raises(type(failure)):
        store.put("orders-0/a", FailingContent(LARGE[:size_bytes], failure))
    with pytest.raises(type(failure)):
        store.put("orders-0/b", FailingContent(LARGE[:size_bytes], failure))
    assert names(store) == ["orders-0/b"]
    assert bytes(store.read_range("orders-0/b", 0, 100)) == b"before"


def test_deleting_a_missing_object_is_not_an_error(store: WritableStore) -> None:
    store.put("orders-0/a", BytesContent(b"x"))
    store.delete("orders-0/a")
    store.delete("orders-0/a")
    store.delete("payments-0/none")
    assert names(store) == []


@pytest.mark.parametrize("name", ["../a", "", "a//b", "a/../b"])
def test_names_that_lead_out_of_the_archive_are_refused(store: WritableStore, name: str) -> None:
    with pytest.raises(UsageError, match="not a name inside an archive"):
        store.put(name, BytesContent(b""))
    with pytest.raises(UsageError, match="not a name inside an archive"):
        store.delete(name)


def test_source_truncated_during_the_copy_is_not_written() -> None:
    source = MemoryStore({"log": b"0123456789"})
    content = StoredContent(store=source, name="log", size_bytes=11, piece_bytes=4)
    target = MemoryStore({})
    with pytest.raises(ArchiveError, match="file was truncated") as shorter:
        target.put("log", content)
    assert (shorter.value.reason, shorter.value.position) == (Reason.LOG_SIZE_DIFFERS, 10)
    target.put("log", replace(content, size_bytes=10))
    assert target.objects == {"log": b"0123456789"}


def test_killed_writer_leaves_at_most_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill no clean-up runs; the test simulates this with an unlink that fails."""
    store = LocalWriter(root=str(tmp_path), uri="archive")

    def refuse(path: str) -> None:
        raise OSError(errno.EIO, "gone", path)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(KilledError):
        store.put("orders-0/a.log", FailingContent(b"0123", KilledError()))
    (left,) = names(store)
    assert left.startswith("orders-0/a.log.")
    assert left.endswith(".tmp")


def test_files_are_synchronized_before_they_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        order.append("sync")
        fsync(descriptor)

    def noted_rename(old: str, new: str) -> None:
        order.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    store = LocalWriter(root=str(tmp_path), uri="archive")
    (tmp_path / "orders-0").mkdir()
    store.put("orders-0/a", BytesContent(b"x"))
    assert order == ["sync", "rename", "sync"]


@pytest.mark.parametrize(
    ("code", "expected"), [(errno.ENOSPC, RetriableError), (errno.EIO, RetriableError), (errno.EROFS, UsageError)]
)
def test_disk_errors_are_reported_with_the_systems_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[ColdlogError]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", fail)
    store = LocalWriter(root=str(tmp_path), uri="archive")
    with pytest.raises(expected, match=os.strerror(code)):
        store.put("orders-0/a", BytesContent(b"x"))
    assert names(store) == []


def test_directory_removed_during_the_work_is_not_created_again(tmp_path: Path) -> None:
    """A disk that is unmounted while a copy runs."""
    store = open_archive_for_writing(str(tmp_path / "mount"))
    store.put("orders-0/a", BytesContent(b"x"))
    (tmp_path / "mount").rename(tmp_path / "away")
    with pytest.raises(RetriableError, match="mount its disk"):
        store.put("orders-0/b", BytesContent(b"x"))
    with pytest.raises(RetriableError, match="mount its disk"):
        store.delete("orders-0/a")
    assert not (tmp_path / "mount").exists()
    with pytest.raises(RetriableError, match="mount its disk"):
        open_archive_for_writing(str(tmp_path / "mount"), may_begin=False)
    (tmp_path / "away").rename(tmp_path / "mount")
    store.put("orders-0/b", BytesContent(b"x"))
    assert names(store) == ["orders-0/a", "orders-0/b"]


S3Strike = Callable[[Request], bool]


@pytest.fixture
def s3_store(bucket: Bucket, s3_proxy: S3Proxy) -> S3Writer:
    s3_proxy.forget()
    return replace(open_s3_writer(bucket.uri("p"), FAST), part_bytes=PART_BYTES)


def is_put(request: Request) -> bool:
    return request.method == "PUT"


def is_completion(request: Request) -> bool:
    return request.method == "POST" and "uploadId" in request.query


@pytest.mark.parametrize("fault", [Fault(status=503, code="SlowDown"), Fault(is_reset=True), Fault(status=500)])
@pytest.mark.parametrize("strikes", [is_put, is_completion])
def test_failed_requests_are_repeated(s3_store: S3Writer, s3_proxy: S3Proxy, fault: Fault, strikes: S3Strike) -> None:
    s3_proxy.strikes, s3_proxy.faults = strikes, [fault, fault]
    s3_store.put("orders-0/a.log", BytesContent(LARGE))
    assert s3_proxy.faults == []
    assert s3_store.read_range("orders-0/a.log", 0, len(LARGE) + 1) == LARGE


def is_begin(request: Request) -> bool:
    return request.method == "POST" and "uploadId" not in request.query


@pytest.mark.parametrize("strikes", [is_begin, is_put, is_completion])
@pytest.mark.parametrize("size_bytes", [len(LARGE), 1])
def test_answer_that_is_not_from_s3_is_not_a_successful_write(
    s3_store: S3Writer, s3_proxy: S3Proxy, strikes: S3Strike, size_bytes: int
) -> None:
    s3_proxy.strikes, s3_proxy.faults = strikes, [Fault(status=200)]
    s3_store.put("orders-0/a.log", BytesContent(LARGE[:size_bytes]))
    assert s3_store.read_range("orders-0/a.log", 0, len(LARGE)) == LARGE[:size_bytes]
    assert (s3_proxy.faults == []) == (size_bytes > 1 or strikes is is_put)


def test_completion_with_a_lost_answer_succeeds(s3_store: S3Writer, s3_proxy: S3Proxy) -> None:
    s3_proxy.strikes, s3_proxy.faults = is_completion, [Fault(status=500, is_done=True)]
    s3_store.put("orders-0/a.log", BytesContent(LARGE))
    assert s3_store.size_bytes("orders-0/a.log") == len(LARGE)


def test_write_to_an_unavailable_store_fails_and_leaves_no_object(
    s3_store: S3Writer, s3_proxy: S3Proxy, bucket: Bucket
) -> None:
    s3_proxy.strikes, s3_proxy.faults = is_completion, [Fault(status=503, code="SlowDown")] * 4
    with pytest.raises(RetriableError, match="attempts: 4"):
        s3_store.put("orders-0/a.log", BytesContent(LARGE))
    assert names(s3_store) == []
    uploads = bucket.client.list_multipart_uploads(Bucket=bucket.name)
    assert uploads.get("Uploads", []) == []


def test_refused_write_names_the_missing_permission(s3_store: S3Writer, s3_proxy: S3Proxy) -> None:
    s3_proxy.strikes, s3_proxy.faults = is_put, [Fault(status=403, code="AccessDenied")]
    with pytest.raises(UsageError, match="allow s3:PutObject"):
        s3_store.put("orders-0/a.log", BytesContent(b"x"))


@pytest.mark.parametrize("given", ["tier", "tier/kafka-tiered-storage"])
def test_archive_opened_for_writing_may_be_missing(tmp_path: Path, given: str) -> None:
    store = open_archive_for_writing(str(tmp_path / given))
    store.put("a", BytesContent(b"x"))
    assert (tmp_path / "tier" / "kafka-tiered-storage" / "a").read_bytes() == b"x"


def test_copy_of_the_tree_under_another_name_is_written_in_place(tmp_path: Path) -> None:
    (tmp_path / "orders-0-AAAAAAAAAAAAAAAAAAAAAA").mkdir()
    open_archive_for_writing(str(tmp_path)).put("a", BytesContent(b"x"))
    assert (tmp_path / "a").exists()


def test_archive_in_a_bucket_is_written_below_its_prefix(bucket: Bucket) -> None:
    open_archive_for_writing(bucket.uri("tier"), FAST).put("a", BytesContent(b"x"))
    listed = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
    assert [each["Key"] for each in listed] == ["tier/kafka-tiered-storage/a"]
