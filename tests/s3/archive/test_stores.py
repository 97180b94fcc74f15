"""Test all object stores with one suite, then what only a file system can do."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.archive.stores.local_store import LocalStore, error_for_object
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_store import S3Store, open_s3_store
from coldlog.errors import ArchiveError, Reason, RetriableError, UsageError
from servers.s3_server import Bucket
from stores.memory_store import MemoryStore, ReadRange

CONTENT = bytes(range(256)) * 40
OBJECTS = {"a/one": CONTENT, "a/two": b"", "a/b/deep": b"x", "b-c/three": b"123", "top": b"at the root"}
OpenStore = Callable[[Mapping[str, bytes]], ObjectStore]


def local_store(root: Path, objects: Mapping[str, bytes]) -> LocalStore:
    for name, content in objects.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return LocalStore(root=str(root), uri="somewhere")


def s3_store(bucket: Bucket, objects: Mapping[str, bytes]) -> S3Store:
    bucket.put({f"some/prefix/{name}": content for name, content in objects.items()})
    bucket.put({"some/prefix-of-others/x": b"", "x": b"", "some/prefix.log": b""})
    return open_s3_store(bucket.uri("some/prefix"), S3Options())


@pytest.fixture(params=["local", "memory", "s3"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    if request.param == "memory":
        return MemoryStore
    if request.param == "s3":
        return partial(s3_store, request.getfixturevalue("bucket"))
    return lambda objects: local_store(tmp_path, objects)


@pytest.fixture
def store(open_store: OpenStore) -> ObjectStore:
    return open_store(OBJECTS)


@pytest.mark.parametrize(
    ("prefix", "expected"), [("", ["a", "b-c"]), ("a", ["a/b"]), ("a/b", []), ("top", []), ("gone", [])]
)
def test_directories_directly_below_a_prefix_are_listed_in_order(
    store: ObjectStore, prefix: str, expected: list[str]
) -> None:
    assert store.list_directories(prefix) == expected


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("", [("top", 11)]), ("a", [("a/one", len(CONTENT)), ("a/two", 0)]), ("a/b", [("a/b/deep", 1)]), ("gone", [])],
)
def test_objects_directly_below_a_prefix_are_listed_in_order(
    store: ObjectStore, prefix: str, expected: list[tuple[str, int]]
) -> None:
    assert [(found.name, found.size_bytes) for found in store.iter_objects(prefix)] == expected


@pytest.mark.parametrize("prefix", ["", "a", "a/b", "top", "gone"])
def test_one_listing_has_directories_and_objects(store: ObjectStore, prefix: str) -> None:
    assert store.list_level(prefix) == (store.list_directories(prefix), list(store.iter_objects(prefix)))


@pytest.mark.parametrize(
    ("prefix", "beginnings", "expected"),
    [
        ("", ["to", "b"], ["b-c", "top"]),
        ("a", ["o", "b"], ["a/b", "a/one"]),
        ("a", ["one/", "e"], []),
        ("a", [], []),
        ("gone", ["o"], []),
    ],
)
def test_entries_are_listed_by_the_beginnings_of_their_names(
    store: ObjectStore, prefix: str, beginnings: list[str], expected: list[str]
) -> None:
    directories, objects = store.list_level(prefix, beginnings)
    assert [*directories, *(found.name for found in objects)] == expected


@given(position=st.integers(0, len(CONTENT) + 9), length=st.integers(0, len(CONTENT) + 9))
def test_memory_ranges_are_slices(position: int, length: int) -> None:
    store = MemoryStore(OBJECTS)
    assert store.read_range("a/one", position, length) == CONTENT[position : position + length]


@pytest.mark.parametrize("position", [0, 1, 4095, 4096, 4097, len(CONTENT) - 1, len(CONTENT), len(CONTENT) + 1, 2**63])
@pytest.mark.parametrize("length", [0, 1, 4096, len(CONTENT), 2**62])
def test_a_range_is_a_read_only_slice_that_ends_with_the_object(store: ObjectStore, position: int, length: int) -> None:
    window = store.read_range("a/one", position, length)
    assert window == CONTENT[position : position + length]
    assert window.readonly


def test_empty_object_has_no_bytes(store: ObjectStore) -> None:
    assert store.size_bytes("a/two") == 0
    assert store.read_range("a/two", 0, 10).nbytes == 0


def test_window_stays_valid_after_later_reads(store: ObjectStore) -> None:
    first = store.read_range("a/one", 0, 100)
    store.read_range("a/one", 100, 100)
    assert first == CONTENT[:100]


@pytest.mark.parametrize("name", ["a/none", "none/one", "a/one/inside"])
def test_a_missing_object_is_an_archive_error_that_names_it(store: ObjectStore, name: str) -> None:
    for ask in (lambda: store.size_bytes(name), lambda: store.read_range(name, 0, 1)):
        with pytest.raises(ArchiveError) as refused:
            ask()
        assert (refused.value.reason, refused.value.object_name) == (Reason.OBJECT_MISSING, name)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "..", "a/../top", "./top", "a//one", "a/", "a\0b", "\ud800"])
def test_names_that_could_lead_out_of_the_archive_are_refused(store: ObjectStore, name: str) -> None:
    with pytest.raises(UsageError):
        store.read_range(name, 0, 1)
    with pytest.raises(UsageError):
        store.size_bytes(name)
    if name:
        with pytest.raises(UsageError):
            store.list_directories(name)
        with pytest.raises(UsageError):
            list(store.iter_objects(name))


@pytest.mark.parametrize(("position", "length"), [(-1, 5), (0, -1)])
def test_negative_ranges_are_refused(store: ObjectStore, position: int, length: int) -> None:
    with pytest.raises(UsageError, match="negative"):
        store.read_range("a/one", position, length)


def test_a_store_can_be_sent_to_another_process(store: ObjectStore) -> None:
    sent: ObjectStore = pickle.loads(pickle.dumps(store))
    assert sent.uri == store.uri
    assert sent.read_range("b-c/three", 1, 5).tobytes() == b"23"


def test_memory_store_records_its_reads() -> None:
    store = MemoryStore(OBJECTS)
    store.read_range("a/one", 5, 10)
    store.read_range("top", 0, 3)
    assert store.reads == [ReadRange(name="a/one", position=5, length=10), ReadRange(name="top", position=0, length=3)]


def test_modification_times_are_epoch_milliseconds(tmp_path: Path) -> None:
    store = local_store(tmp_path, {"x": b"1"})
    os.utime(tmp_path / "x", ns=(0, 1_700_000_000_123_999_999))
    assert [found.modified_ms for found in store.iter_objects("")] == [1_700_000_000_123]


def test_missing_root_is_a_usage_error_for_every_call(tmp_path: Path) -> None:
    store = LocalStore(root=str(tmp_path / "unmounted"), uri="the archive")
    questions: tuple[Callable[[], object], ...] = (
        lambda: store.list_directories(""),
        lambda: store.list_directories("a"),
        lambda: list(store.iter_objects("a")),
        lambda: store.size_bytes("a/one"),
        lambda: store.read_range("a/one", 0, 1),
    )
    for ask in questions:
        with pytest.raises(UsageError, match="no archive at the archive"):
            ask()


def test_truncated_file_gives_fewer_bytes_and_keeps_those_already_read(tmp_path: Path) -> None:
    store = local_store(tmp_path, {"x": CONTENT})
    before = store.read_range("x", 0, len(CONTENT))
    os.truncate(tmp_path / "x", 100)
    assert store.read_range("x", 0, len(CONTENT)) == CONTENT[:100]
    assert store.read_range("x", 4096, 10).nbytes == 0
    assert before == CONTENT


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    store = local_store(tmp_path / "root", {"a/one": b"1"})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "two").write_bytes(b"22")
    (tmp_path / "root" / "disk").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "again").symlink_to(tmp_path / "root")
    (tmp_path / "root" / "a" / "itself").symlink_to(tmp_path / "root" / "a" / "itself")
    assert store.list_directories("") == ["a", "disk"]
    assert store.list_directories("a") == ["a/again"]
    assert store.list_directories("a/again/a") == ["a/again/a/again"]
    assert [found.size_bytes for found in store.iter_objects("disk")] == [2]
    assert [found.name for found in store.iter_objects("a")] == ["a/itself", "a/one"]
    with pytest.raises(ArchiveError) as refused:
        store.read_range("a/itself", 0, 1)
    assert refused.value.reason is Reason.OBJECT_UNREADABLE


def test_unreadable_object_is_reported_with_the_systems_message(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(ArchiveError) as raised:
        LocalStore(root=str(tmp_path), uri="somewhere").read_range("a", 0, 1)
    assert str(raised.value) == "object cannot be read in a: found Too many levels of symbolic links"


def test_dangling_link_is_listed_and_missing_when_read(tmp_path: Path) -> None:
    store = local_store(tmp_path, {"a/one": b"1"})
    (tmp_path / "a" / "lost").symlink_to(tmp_path / "nowhere")
    assert [found.name for found in store.iter_objects("a")] == ["a/lost", "a/one"]
    with pytest.raises(ArchiveError) as refused:
        store.read_range("a/lost", 0, 1)
    assert refused.value.reason is Reason.OBJECT_MISSING


def test_pipes_and_directories_are_unreadable_without_blocking(tmp_path: Path) -> None:
    store = local_store(tmp_path, {"a/one": b"1"})
    os.mkfifo(tmp_path / "a" / "pipe")
    for name in ("a/pipe", "a"):
        with pytest.raises(ArchiveError) as refused:
            store.read_range(name, 0, 1)
        assert refused.value.reason is Reason.OBJECT_UNREADABLE


def test_names_that_are_not_utf8_are_listed_and_read(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\xfe.log")).write_bytes(b"odd")
    store = LocalStore(root=str(tmp_path), uri="somewhere")
    (found,) = store.iter_objects("")
    assert store.read_range(found.name, 0, 9).tobytes() == b"odd"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, Reason.OBJECT_MISSING),
        (errno.ENOTDIR, Reason.OBJECT_MISSING),
        (errno.EACCES, Reason.OBJECT_UNREADABLE),
        (errno.EISDIR, Reason.OBJECT_UNREADABLE),
        (errno.EIO, None),
        (errno.ESTALE, None),
        (errno.ETIMEDOUT, None),
        (errno.EMFILE, None),
    ],
)
def test_system_errors_become_archive_errors_or_retriable_errors(number: int, expected: Reason | None) -> None:
    failure = error_for_object(OSError(number, os.strerror(number)), "a/\udcff")
    if expected is None:
        assert isinstance(failure, RetriableError)
    else:
        assert isinstance(failure, ArchiveError)
        assert (failure.reason, failure.object_name) == (expected, "a/\\udcff")
    assert str(failure).isprintable()
