"""Test every layout over every store: every segment, every file, every byte, and missing ones."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE
from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind, SegmentListing
from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_store import open_s3_store
from coldlog.errors import ArchiveError, Reason, UsageError
from servers.s3_server import S3Server
from stores.memory_store import MemoryStore
from worlds.aiven_sample import keys_setting
from worlds.example_archives import EXAMPLES, PLACES, Example, Place

SMALL_KINDS = tuple(kind for kind in SegmentFileKind if kind is not SegmentFileKind.LOG)
OpenStore = Callable[[Mapping[str, bytes]], ObjectStore]


@pytest.fixture(scope="module", params=list(EXAMPLES))
def example(request: pytest.FixtureRequest) -> Example:
    return EXAMPLES[request.param]()


@pytest.fixture(scope="module", params=["local", "memory", "s3"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def open_store(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenStore]:
    """Open a store with the given objects; if the store has a root, other objects are beside it."""
    if kind == "memory":
        yield MemoryStore
    elif kind == "local":
        yield lambda objects: _local_store(tmp_path_factory.mktemp("archive"), objects)
    else:
        server, proxy = request.getfixturevalue("s3_server"), request.getfixturevalue("session_s3_proxy")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.environment(proxy.endpoint).items():
                patch.setenv(name, value)
            patch.delenv("AWS_PROFILE", raising=False)
            yield partial(_s3_store, server)


def _s3_store(server: S3Server, objects: Mapping[str, bytes]) -> ObjectStore:
    bucket = server.make_bucket()
    bucket.put({f"tier/{name}": content for name, content in objects.items()} | {"tier-2/x": b"", "x": b""})
    return open_s3_store(bucket.uri("tier"), S3Options())


def _local_store(root: Path, objects: Mapping[str, bytes]) -> LocalStore:
    root.mkdir(exist_ok=True)
    for name, content in objects.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return LocalStore(root=str(root), uri=str(root))


@pytest.fixture(autouse=True)
def decryption_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the encrypted examples."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, keys_setting("encrypted"))


@pytest.fixture(scope="module")
def layout(example: Example, open_store: OpenStore) -> ArchiveLayout:
    """Shared by the tests that only read."""
    return example.open_layout(open_store(example.objects))


def listed(layout: ArchiveLayout) -> dict[Place, ListedSegment]:
    """Every segment, by its start offset."""
    directories = layout.list_partition_directories().directories
    segments = [segment for directory in directories for segment in layout.list_segments(directory).segments]
    return {(segment.topic, segment.partition, segment.start_offset): segment for segment in segments}


def strays(layout: ArchiveLayout) -> Iterator[str]:
    beside = layout.list_partition_directories()
    yield from (stray.name for stray in beside.unrecognized)
    for directory in beside.directories:
        yield from (stray.name for stray in layout.list_segments(directory).unrecognized)


def test_only_partitions_and_segments_are_listed_in_order(layout: ArchiveLayout, example: Example) -> None:
    directories = layout.list_partition_directories().directories
    assert [(directory.topic, directory.partition) for directory in directories] == list(PLACES)
    assert list(listed(layout)) == list(example.files)
    assert list(strays(layout)) == []
    for segment in listed(layout).values():
        assert segment.missing_kinds == ()
        assert len(segment.segment_id) == 22
    assert len({segment.segment_id for segment in listed(layout).values()}) == len(example.files)


def test_every_byte_of_every_file_is_read(layout: ArchiveLayout, example: Example) -> None:
    segments = listed(layout)
    assert segments
    for place, segment in segments.items():
        files = example.files[place]
        log = files[SegmentFileKind.LOG]
        assert layout.log_size_bytes(segment) == len(log)
        assert layout.read_log_range(segment, 0, len(log)) == log
        for kind in SMALL_KINDS:
            assert layout.has_file(segment, kind) == (kind in files)
            if kind in files:
                assert layout.read_small_file(segment, kind) == files[kind]


def test_range_of_a_log_is_a_slice_that_ends_with_the_log(layout: ArchiveLayout, example: Example) -> None:
    chance = random.Random(7)
    place, segment = chance.choice(list(listed(layout).items()))
    log = example.files[place][SegmentFileKind.LOG]
    ranges = [(0, 0), (0, 1), (len(log) - 1, 1), (len(log) - 1, 99), (len(log), 1), (len(log) + 7, 3), (0, 1 << 40)]
    ranges += [(chance.randrange(len(log)), chance.randrange(len(log))) for _ in range(20)]
    for position, length in ranges:
        window = layout.read_log_range(segment, position, length)
        assert window == log[position : position + length]
        assert window.readonly


def test_a_file_that_was_not_stored_is_missing(layout: ArchiveLayout, example: Example) -> None:
    missing = [
        (segment, kind)
        for place, segment in listed(layout).items()
        for kind in SMALL_KINDS
        if kind not in example.files[place]
    ]
    assert missing
    for segment, kind in missing:
        assert not layout.has_file(segment, kind)
        with pytest.raises(ArchiveError) as refused:
            layout.read_small_file(segment, kind)
        assert refused.value.reason is Reason.OBJECT_MISSING
        assert refused.value.object_name


def test_log_is_not_a_small_file(layout: ArchiveLayout) -> None:
    segment = next(iter(listed(layout).values()))
    with pytest.raises(UsageError, match="ranges"):
        layout.read_small_file(segment, SegmentFileKind.LOG)


def test_layout_and_listing_can_be_sent_to_another_process(layout: ArchiveLayout, example: Example) -> None:
    sent: ArchiveLayout = pickle.loads(pickle.dumps(layout))
    assert (sent.name, sent.uri, sent.is_mirror) == (layout.name, layout.uri, layout.is_mirror)
    directory = layout.list_partition_directories().directories[0]
    listing: SegmentListing = pickle.loads(pickle.dumps(sent.list_segments(pickle.loads(pickle.dumps(directory)))))
    assert listing == layout.list_segments(directory)
    segment = listing.segments[0]
    place = (segment.topic, segment.partition, segment.start_offset)
    assert sent.read_log_range(segment, 0, 1 << 30) == example.files[place][SegmentFileKind.LOG]


def test_second_listing_is_the_same(layout: ArchiveLayout) -> None:
    assert listed(layout) == listed(layout)


def test_objects_outside_of_segments_are_reported_by_name(example: Example, open_store: OpenStore) -> None:
    layout = example.open_layout(open_store({**example.objects, **dict.fromkeys(example.strays, b"stray")}))
    assert sorted(strays(layout)) == sorted(example.strays)
    assert list(listed(layout)) == list(example.files)


def test_segments_deleted_after_the_listing_are_missing_by_name(example: Example, open_store: OpenStore) -> None:
    """Listed in an archive, read in the same one without its objects."""
    segments = listed(example.open_layout(MemoryStore(example.objects)))
    kept = {name: content for name, content in example.objects.items() if "payments" not in name}
    emptied = example.open_layout(open_store({**kept, "other/file": b""}))
    for segment in segments.values():
        with pytest.raises(ArchiveError) as refused:
            emptied.read_log_range(segment, 0, 1)
        assert refused.value.reason is Reason.OBJECT_MISSING
        assert "payments" in refused.value.object_name


def test_directory_deleted_after_the_listing_has_no_segments(example: Example, open_store: OpenStore) -> None:
    directories = example.open_layout(MemoryStore(example.objects)).list_partition_directories().directories
    emptied = example.open_layout(open_store({"other/file": b""}))
    for directory in directories:
        assert emptied.list_segments(directory) == SegmentListing(segments=(), unrecognized=())


def test_dangling_link_is_not_a_deleted_directory(example: Example, tmp_path: Path) -> None:
    """For each directory down to the partitions', in turn: the archive or the partition cannot be listed."""
    store = _local_store(tmp_path / "archive", {**example.objects, **dict.fromkeys(example.strays, b"stray")})
    layout = example.open_layout(store)
    before, known = layout.list_partition_directories(), listed(layout)
    names = {str(above) for name in example.objects for above in Path(name).parents if above.name}
    for name in sorted(names):
        place, disk = tmp_path / "archive" / name, tmp_path / "disk"
        place.rename(disk)
        place.symlink_to(disk)
        assert listed(layout) == known, "a link is followed"
        for away in (tmp_path / "away", place):  # a link to nothing, a link to itself
            disk.rename(tmp_path / "kept")
            place.unlink()
            place.symlink_to(away)
            with pytest.raises(ArchiveError) as refused:
                listed(layout)
            assert name in refused.value.object_name
            (tmp_path / "kept").rename(disk)
        place.unlink()
        disk.rename(place)
    assert layout.list_partition_directories() == before


def test_an_archive_without_objects_lists_nothing(example: Example) -> None:
    listing = example.open_layout(MemoryStore({})).list_partition_directories()
    assert (listing.directories, listing.unrecognized) == ((), ())
