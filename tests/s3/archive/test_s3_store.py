"""Test what only a store in a bucket does: pages, unusual keys, parts, fetching ahead, secrets, processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import random
import threading
from pathlib import Path

import pytest

from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.archive.open_archive import open_archive, open_store
from coldlog.archive.stores.s3_client import S3Options, client_of_process, close_clients
from coldlog.archive.stores.s3_store import S3Store, open_s3_store
from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.indexing.sources import open_event_source
from coldlog.runtime.open_layout import layout_opener
from coldlog.runtime.settings_sources import load_settings
from servers.s3_proxy import Request, S3Proxy
from servers.s3_server import ACCESS_KEY, PAGE_KEYS, SECRET_KEY, Bucket

MIB = 1 << 20
LAYOUT = "local_tiered_storage"
SMALL_PARTS = S3Options(part_bytes=MIB, read_ahead_bytes=3 * MIB)


def _store(bucket: Bucket, prefix: str = "p", options: S3Options = SMALL_PARTS) -> S3Store:
    return open_s3_store(bucket.uri(prefix), options)


def _content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _ranges(requests: list[Request]) -> list[tuple[int, int]]:
    """(position, length), in order of position."""
    bounds = (request.range.removeprefix("bytes=").split("-") for request in requests)
    return sorted((int(first), int(last) - int(first) + 1) for first, last in bounds)


# Listing


def test_listing_of_partition_directories_does_not_list_their_objects(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    directories, objects = PAGE_KEYS + 1, PAGE_KEYS + 2
    bucket.put({f"p/d{d:02}/{o:02}": b"" for d in range(directories) for o in range(objects)})
    store = _store(bucket)
    s3_proxy.forget()
    assert store.list_directories("") == [f"d{d:02}" for d in range(directories)]
    assert len(s3_proxy.requests) == 2, "pages of directories, not of the 132 objects"
    s3_proxy.forget()
    assert [each.name for each in store.iter_objects("d07")] == [f"d07/{o:02}" for o in range(objects)]
    assert len(s3_proxy.requests) == 2
    assert all(each.query["prefix"] == ["p/d07/"] for each in s3_proxy.requests)
    s3_proxy.forget()
    assert len(store.list_level("d07")[1]) == objects
    assert len(s3_proxy.requests) == 2, "a page of objects is asked for once"
    s3_proxy.forget()
    assert [each.name for each in store.list_level("d07", ["01", "03"])[1]] == ["d07/01", "d07/03"]
    assert [each.query["prefix"] for each in s3_proxy.requests] == [["p/d07/01"], ["p/d07/03"]]


def test_objects_are_listed_page_by_page(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put({f"p/{o:02}": b"" for o in range(2 * PAGE_KEYS)})
    s3_proxy.forget()
    listed = _store(bucket).iter_objects("")
    assert next(listed).name == "00"
    assert len(s3_proxy.requests) == 1
    assert [each.name for each in listed] == [f"{o:02}" for o in range(1, 2 * PAGE_KEYS)]


def test_the_whole_bucket_may_be_the_root(bucket: Bucket) -> None:
    bucket.put({"a/one": b"1", "top": b"22"})
    store = _store(bucket, "")
    assert store.list_directories("") == ["a"]
    assert [each.name for each in store.iter_objects("")] == ["top"]
    assert store.read_range("a/one", 0, 9).tobytes() == b"1"


@pytest.mark.parametrize(
    "name", ["per%20cent %", "a b+c&d=e?f#g", "ü/日本/\U0001f600", "'\"<>&;", "back\\slash", "t\tab"]
)
def test_unusual_names_are_listed_and_read(bucket: Bucket, name: str) -> None:
    bucket.put({f"pre fix%2B/{name}": b"content"})
    store = _store(bucket, "pre fix%2B")
    directory = name.rpartition("/")[0]
    assert [each.name for each in store.iter_objects(directory)] == [name]
    assert (store.read_range(name, 3, 9).tobytes(), store.size_bytes(name)) == (b"tent", 7)


def test_directory_markers_are_directories_not_objects(bucket: Bucket) -> None:
    bucket.put({"p/": b"", "p/empty/": b"", "p/full/": b"", "p/full/one": b"1", "p/odd/": b"content", "p/none": b""})
    store = _store(bucket)
    assert store.list_directories("") == ["empty", "full", "odd"]
    assert [each.name for each in store.iter_objects("")] == ["none"]
    assert list(store.iter_objects("empty")) == []
    assert [each.name for each in store.iter_objects("full")] == ["full/one"]
    assert [(each.name, each.size_bytes) for each in store.iter_objects("odd")] == [("odd/", 7)]


def test_keys_with_invalid_parts_are_listed_as_one_object(bucket: Bucket) -> None:
    bucket.put({"p//a": b"", "p//b": b"", "p/../c": b"", "p/d//e": b"", "p/f": b""})
    store = _store(bucket)
    assert store.list_directories("") == ["d"]
    assert [each.name for each in store.iter_objects("")] == ["../", "/", "f"]
    assert [each.name for each in store.iter_objects("d")] == ["d//"]


def test_stray_objects_of_a_bucket_are_listed_as_unrecognized(bucket: Bucket) -> None:
    bucket.put(
        {"p/kafka-tiered-storage/photos/x": b"", "p/kafka-tiered-storage//x": b"", "p/kafka-tiered-storage/t%": b""}
    )
    listing = open_archive(bucket.uri("p"), LAYOUT).list_partition_directories()
    assert [each.name for each in listing.unrecognized] == ["photos", "/", "t%"]


# Reading


def test_long_range_is_fetched_in_concurrent_parts_and_ends_with_the_object(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    content = _content(5 * MIB + 77)
    bucket.put({"p/log": content})
    s3_proxy.delay_s = 0.05
    s3_proxy.forget()
    assert _store(bucket).read_range("log", 1000, 2**50) == content[1000:]
    assert sum(length for _, length in _ranges(s3_proxy.gets)) == len(content) - 1000, "no byte is asked for twice"
    assert s3_proxy.most_under_way > 2


def test_one_batch_is_one_request(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    content = _content(3 * MIB)
    bucket.put({"p/log": content})
    store = _store(bucket)
    for position, length in ((MIB, 40_000), (MIB + 40_000, 70_000), (0, 500)):
        s3_proxy.forget()
        assert store.read_range("log", position, length) == content[position : position + length]
        assert _ranges(s3_proxy.requests) == [(position, length)]


def _walk(store: S3Store, name: str, size: int, window_bytes: int, left_over: int) -> bytes:
    """Read as a log is read: each window begins shortly before the end of the previous one."""
    read, position = bytearray(), 0
    while position < size:
        window = store.read_range(name, position, min(window_bytes, size - position))
        consumed = len(window) if position + len(window) == size else len(window) - left_over
        read += window[:consumed]
        position += consumed
    return bytes(read)


@pytest.mark.parametrize("left_over", [0, 1, 70_000])
def test_sequential_read_fetches_ahead_within_its_limit_and_no_byte_twice(
    bucket: Bucket, s3_proxy: S3Proxy, left_over: int
) -> None:
    content = _content(9 * MIB + 5)
    bucket.put({"p/log": content})
    store = _store(bucket)
    s3_proxy.delay_s = 0.2
    s3_proxy.forget()
    assert _walk(store, "log", len(content), MIB, left_over) == content
    ranges = _ranges(s3_proxy.gets)
    assert sum(length for _, length in ranges) == len(content)
    assert all(length <= MIB for _, length in ranges)
    assert s3_proxy.most_under_way == 3, "three parts are the 3 MiB that may be read ahead"


def test_sequential_reads_of_several_objects_and_threads_do_not_mix(bucket: Bucket) -> None:
    contents = {f"log{number}": _content(4 * MIB + number) for number in range(4)}
    bucket.put({f"p/{name}": content for name, content in contents.items()})
    store, found = _store(bucket), {}

    def walk(name: str) -> None:
        found[name] = _walk(store, name, len(contents[name]), 2 * MIB, 9) == contents[name]

    threads = [threading.Thread(target=walk, args=(name,)) for name in contents]
    for thread in threads:
        thread.start()
    for name, content in contents.items():
        assert store.read_range(name, 0, 2 * MIB) == content[: 2 * MIB]
        assert store.read_range(name, 2 * MIB, 2 * MIB) == content[2 * MIB : 4 * MIB]
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(contents, True)


def test_restarted_sequential_read_sees_the_current_object(bucket: Bucket) -> None:
    bucket.put({"p/log": _content(4 * MIB)})
    store = _store(bucket)
    store.read_range("log", 0, MIB)
    newer = _content(4 * MIB + 1)
    bucket.put({"p/log": newer})
    assert _walk(store, "log", len(newer), MIB, 7) == newer


@pytest.mark.parametrize("size", [4 * MIB, 2 * MIB, 10])
def test_object_replaced_during_a_sequential_read_is_refused(bucket: Bucket, size: int) -> None:
    bucket.put({"p/log": bytes(4 * MIB)})
    store = _store(bucket, options=S3Options(part_bytes=MIB, read_ahead_bytes=MIB))
    store.read_range("log", 0, MIB)
    store.read_range("log", MIB, MIB // 2)
    bucket.put({"p/log": _content(size)})
    with pytest.raises(ArchiveError, match="replaced while it was read in log") as refused:
        store.read_range("log", MIB + 5, 3 * MIB)
    assert refused.value.reason is Reason.OBJECT_UNREADABLE


def test_truncated_object_gives_fewer_bytes_and_a_deleted_one_none(bucket: Bucket) -> None:
    bucket.put({"p/log": b"0123456789"})
    store = _store(bucket)
    bucket.put({"p/log": b"0123"})
    assert store.read_range("log", 0, 10).tobytes() == b"0123"
    assert store.read_range("log", 4, 6).tobytes() == b""
    bucket.delete("p/log")
    with pytest.raises(ArchiveError) as refused:
        store.read_range("log", 0, 10)
    assert refused.value.reason is Reason.OBJECT_MISSING


# Archives by uri


@pytest.mark.parametrize("scheme", ["s3", "s3a", "S3"])
@pytest.mark.parametrize("below", ["", "/", "/kafka-tiered-storage", "/kafka-tiered-storage/"])
def test_every_way_to_name_an_archive_in_a_bucket_opens_the_same_tree(bucket: Bucket, scheme: str, below: str) -> None:
    directory = "orders-0-AAAAAAAAAAAAAAAAAAAAAA"
    bucket.put({f"tier/kafka-tiered-storage/{directory}/x": b""})
    layout = open_archive(f"{scheme}://{bucket.name}/tier{below}", LAYOUT)
    assert [each.name for each in layout.list_partition_directories().directories] == [directory]
    assert isinstance(layout, LocalTieredStorageLayout)
    assert layout.uri == f"{scheme}://{bucket.name}/tier{below}"


def test_opened_archive_is_opened_again_without_a_request(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put({"kafka-tiered-storage/orders-0-AAAAAAAAAAAAAAAAAAAAAA/x": b"content"})
    opener = layout_opener(load_settings("local", [f"archive.uri={bucket.uri()}"]))
    opener()
    s3_proxy.forget()
    opener()
    assert s3_proxy.requests == []


def test_prefixes_without_an_archive_are_refused(bucket: Bucket) -> None:
    bucket.put({"photos/a/x": b""})
    for prefix in ("photos", "none", ""):
        with pytest.raises(UsageError, match="has neither kafka-tiered-storage nor"):
            open_archive(bucket.uri(prefix), LAYOUT)
    told = "no directory at .*none: the bucket .* has no key with this prefix"
    with pytest.raises(UsageError, match=f"{told}; correct metadata.uri"):
        open_event_source(load_settings("local", [f"metadata.uri={bucket.uri('none')}"]))
    with pytest.raises(UsageError, match=told):
        open_store(bucket.uri("none"))
    assert open_store(bucket.uri("photos")).list_directories("") == ["a"]


# Credentials, endpoint, processes


def test_pickles_texts_and_logs_of_a_store_have_no_credentials(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bucket.put({"p/kafka-tiered-storage/orders-0-AAAAAAAAAAAAAAAAAAAAAA/x": b"content"})
    layout = open_archive(bucket.uri("p"), LAYOUT)
    assert isinstance(layout, LocalTieredStorageLayout)
    store = layout.store
    store.read_range("orders-0-AAAAAAAAAAAAAAAAAAAAAA/x", 0, 9)
    shown = [repr(layout), str(store), caplog.text, *(repr(each) for each in (store.uri, S3Options()))]
    for secret in (SECRET_KEY, ACCESS_KEY, "127.0.0.1"):
        assert secret.encode() not in pickle.dumps((layout, store))
        assert not [each for each in shown if secret in each]


def test_changed_environment_is_used_by_the_next_read(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put({"p/one": b"1"})
    store = _store(bucket)
    assert store.read_range("one", 0, 1).tobytes() == b"1"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(UsageError, match="no credentials for .*AWS_PROFILE"):
        store.read_range("one", 0, 1)


def test_profile_sets_credentials_endpoint_region_and_path_style(
    bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put({"p/one": b"1"})
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    config.write_text(
        f"[profile archive]\nregion = eu-west-3\nendpoint_url = {s3_proxy.endpoint}\ns3 =\n  addressing_style = path\n"
    )
    credentials.write_text("[archive]\naws_access_key_id = AKIAOFTHEPROFILE\naws_secret_access_key = x\n")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "archive")
    s3_proxy.forget()
    assert _store(bucket).read_range("one", 0, 1).tobytes() == b"1"
    (asked,) = s3_proxy.requests
    assert asked.path == f"/{bucket.name}/p/one"
    assert "Credential=AKIAOFTHEPROFILE/" in asked.authorization
    assert "/eu-west-3/s3/" in asked.authorization
    monkeypatch.setenv("AWS_REGION", "eu-south-2")
    _store(bucket).read_range("one", 0, 1)
    assert "/eu-south-2/s3/" in s3_proxy.requests[-1].authorization
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="AWS_PROFILE"):
        _store(bucket).read_range("one", 0, 1)


def test_forked_children_read_while_their_parent_does(bucket: Bucket) -> None:
    """The children do not touch the parent's client, its loop and its pending reads."""
    content = _content(6 * MIB)
    bucket.put({"p/log": content, "p/one": b"1"})
    store = _store(bucket)
    store.read_range("log", 0, MIB)
    parents = client_of_process(SMALL_PARTS)
    fork = multiprocessing.get_context("fork")
    ours, its = fork.Pipe(duplex=False)

    def read() -> None:
        found: object = None
        try:
            window = store.read_range("log", MIB // 2, 5 * MIB)
            found = window == content[MIB // 2 : MIB // 2 + 5 * MIB], client_of_process(SMALL_PARTS) is parents
            close_clients()
        finally:
            its.send(found)
            os._exit(0)

    children = [fork.Process(target=read) for _ in range(2)]
    for child in children:
        child.start()
    assert store.read_range("log", MIB // 2, 5 * MIB) == content[MIB // 2 : MIB // 2 + 5 * MIB]
    received = [ours.recv() if ours.poll(60) else None for _ in children]
    for child in children:
        child.join(60)
        child.kill()
    assert received == [(True, False)] * len(children)
    assert store.read_range("one", 0, 1).tobytes() == b"1"
