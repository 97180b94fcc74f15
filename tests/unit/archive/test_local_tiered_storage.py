"""Test the LocalTieredStorage layout with a real broker's tree and with unusual names."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.archive.layouts.layout import (
    SMALL_FILE_LIMIT_BYTES,
    ArchiveLayout,
    ListedSegment,
    ListsByName,
    SegmentFileKind,
    SegmentListing,
    SegmentObject,
    name_of,
)
from coldlog.archive.layouts.local_tiered_storage import (
    REQUIRED_KINDS,
    SUFFIXES,
    LocalTieredStorageLayout,
)
from coldlog.archive.open_archive import open_archive
from coldlog.errors import ArchiveError, Reason, UsageError
from stores.memory_store import MemoryStore
from worlds.kafka_sample import KAFKA_SAMPLE, TIERED_STORAGE, true_segments

TOPIC_ID = "-_AAAAAAAAAAAAAAAAAAAA"
SEGMENT_ID = "--BBBBBBBBBBBBBBBBBBBA"
OTHER_ID = "CCCCCCCCCCCCCCCCCCCCCQ"
DIRECTORY = f"orders-0-{TOPIC_ID}"
STEM = f"00000000000000000042-{SEGMENT_ID}"


@pytest.fixture(scope="module")
def sample() -> ArchiveLayout:
    return open_archive(str(KAFKA_SAMPLE / "archive"), "local_tiered_storage")


def listed_segments(layout: ArchiveLayout) -> list[ListedSegment]:
    listing = layout.list_partition_directories()
    assert listing.unrecognized == ()
    segments: list[ListedSegment] = []
    for directory in listing.directories:
        found = layout.list_segments(directory)
        assert found.unrecognized == ()
        segments += found.segments
    return segments


def layout_of(*names: str, content: bytes = b"content") -> LocalTieredStorageLayout:
    return LocalTieredStorageLayout(store=MemoryStore(dict.fromkeys(names, content)))


def list_one(*file_names: str) -> SegmentListing:
    layout = layout_of(*(f"{DIRECTORY}/{name}" for name in file_names))
    (directory,) = layout.list_partition_directories().directories
    return layout.list_segments(directory)


def test_finished_segments_of_a_real_archive_are_listed_as_announced(sample: ArchiveLayout) -> None:
    complete = {
        (
            found.topic,
            found.topic_id,
            found.partition,
            found.segment_id,
            found.start_offset,
            sample.log_size_bytes(found),
        )
        for found in listed_segments(sample)
        if not found.missing_kinds
    }
    announced = {
        (true["topic"], true["topic_id"], true["partition"], true["segment_id"], true["start_offset"], true["size"])
        for true in true_segments("COPY_SEGMENT_FINISHED")
    }
    assert len(announced) == 281
    assert complete == announced


@pytest.mark.parametrize("step", [1, 3])
def test_segments_of_a_real_archive_are_listed_by_name(sample: ArchiveLayout, step: int) -> None:
    assert isinstance(sample, ListsByName)
    for directory in sample.list_partition_directories().directories:
        named = sample.list_segments(directory).segments[::step]
        beginnings = [name_of((each.start_offset, each.segment_id)) for each in named]
        assert sample.list_named(directory, beginnings) == SegmentListing(segments=named, unrecognized=())


def test_copy_cut_by_a_crash_is_listed_with_its_missing_kinds(sample: ArchiveLayout) -> None:
    (half,) = (found for found in listed_segments(sample) if found.missing_kinds)
    (announced,) = true_segments("COPY_SEGMENT_STARTED")
    assert (half.topic, half.segment_id) == ("crashy-upload", announced["segment_id"])
    assert half.missing_kinds == tuple(kind for kind in REQUIRED_KINDS if kind is not SegmentFileKind.LOG)
    assert sample.log_size_bytes(half) < announced["size"]


def test_txn_indexes_are_found_where_the_broker_wrote_them(sample: ArchiveLayout) -> None:
    truth = {true["segment_id"]: true["txnindex_present"] for true in true_segments("COPY_SEGMENT_FINISHED")}
    for found in listed_segments(sample):
        assert sample.has_file(found, SegmentFileKind.TXN_INDEX) == truth.get(found.segment_id, False)


def test_files_of_a_real_segment_are_read_byte_for_byte(sample: ArchiveLayout) -> None:
    announced = next(true for true in true_segments("COPY_SEGMENT_FINISHED") if true["txnindex_present"])
    (segment,) = (found for found in listed_segments(sample) if found.segment_id == announced["segment_id"])
    for kind, suffix in SUFFIXES.items():
        content = (TIERED_STORAGE / f"{announced['path']}{suffix}").read_bytes()
        if kind is SegmentFileKind.LOG:
            assert sample.read_log_range(segment, 61, 500) == content[61:561]
            assert sample.read_log_range(segment, len(content) - 5, 500) == content[-5:]
        else:
            assert sample.read_small_file(segment, kind) == content


def test_a_layout_and_its_listing_can_be_sent_to_another_process(sample: ArchiveLayout) -> None:
    directory = sample.list_partition_directories().directories[3]
    sent_layout: ArchiveLayout = pickle.loads(pickle.dumps(sample))
    listing = sent_layout.list_segments(pickle.loads(pickle.dumps(directory)))
    assert listing == sample.list_segments(directory)
    assert pickle.loads(pickle.dumps(listing)) == listing


@pytest.mark.parametrize(
    "file_name",
    [
        f"{STEM}.tmp",
        f"{STEM}.log.tmp",
        f"{STEM}.LOG",
        f"{STEM}.log\n",
        f"{STEM}",
        f"42-{SEGMENT_ID}.log",
        f"09223372036854775808-{SEGMENT_ID}.log",
        f"99999999999999999999-{SEGMENT_ID}.log",
        f"0000000000000000004٢-{SEGMENT_ID}.log",
        f"00000000000000000042-{SEGMENT_ID[:-1]}B.log",
        f"-0000000000000000042-{SEGMENT_ID}.log",
        ".nfs000000000001",
        "café ☕",
        "\udcff\udcfe.log",
    ],
)
def test_file_names_that_kafka_does_not_write_are_reported(file_name: str) -> None:
    listing = list_one(f"{STEM}.log", file_name)
    assert [segment.start_offset for segment in listing.segments] == [42]
    (odd,) = listing.unrecognized
    assert odd.name.encode("utf-8").startswith(DIRECTORY.encode())
    assert odd.size_bytes == len(b"content")
    assert odd.why


def test_highest_offset_is_recognized() -> None:
    listing = list_one(f"09223372036854775807-{SEGMENT_ID}.log")
    assert [segment.start_offset for segment in listing.segments] == [2**63 - 1]


@given(
    st.lists(
        st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60),
        max_size=5,
        unique=True,
    )
)
def test_every_file_is_part_of_a_segment_or_reported(names: list[str]) -> None:
    kept = [name for name in names if name not in (".", "..")]
    listing = list_one(f"{STEM}.index", *kept)
    assert len(listing.unrecognized) == len(kept)


def test_two_copies_of_one_offset_are_two_segments() -> None:
    listing = list_one(f"{STEM}.log", f"00000000000000000042-{OTHER_ID}.log", f"{STEM}.index")
    assert [(segment.start_offset, segment.segment_id) for segment in listing.segments] == [
        (42, SEGMENT_ID),
        (42, OTHER_ID),
    ]


def test_files_of_a_repeated_segment_id_are_reported() -> None:
    listing = list_one(
        f"00000000000000000050-{SEGMENT_ID}.log", f"00000000000000000050-{SEGMENT_ID}.index", f"{STEM}.log"
    )
    assert [segment.start_offset for segment in listing.segments] == [42]
    assert [odd.name[-6:] for odd in listing.unrecognized] == [".index", "BA.log"]


def test_objects_are_in_the_order_of_their_kinds() -> None:
    listing = list_one(*(f"{STEM}{suffix}" for suffix in reversed(SUFFIXES.values())))
    (segment,) = listing.segments
    assert [listed.kind for listed in segment.objects] == list(SegmentFileKind)
    assert segment.missing_kinds == ()


def test_entries_beside_and_below_partition_directories_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "kafka-tiered-storage"
    (root / DIRECTORY / f"{STEM}.log").mkdir(parents=True)
    (root / "lost+found").mkdir()
    (root / DIRECTORY / "loop").symlink_to(root)
    (root / f"payments-1-{TOPIC_ID}").write_bytes(b"a file, not a directory")
    (root / os.fsdecode(b"\xff")).write_bytes(b"")
    layout = open_archive(str(tmp_path), "local_tiered_storage")
    listing = layout.list_partition_directories()
    assert [directory.name for directory in listing.directories] == [DIRECTORY]
    assert [odd.name for odd in listing.unrecognized] == ["lost+found", f"payments-1-{TOPIC_ID}", "\\udcff"]
    below = layout.list_segments(listing.directories[0])
    assert below.segments == ()
    assert [odd.name for odd in below.unrecognized] == [f"{DIRECTORY}/{STEM}.log", f"{DIRECTORY}/loop"]


def test_empty_and_removed_directories_have_no_segments(tmp_path: Path) -> None:
    (tmp_path / "kafka-tiered-storage" / DIRECTORY).mkdir(parents=True)
    layout = open_archive(str(tmp_path), "local_tiered_storage")
    (directory,) = layout.list_partition_directories().directories
    assert layout.list_segments(directory) == SegmentListing(segments=(), unrecognized=())
    (tmp_path / "kafka-tiered-storage" / DIRECTORY).rmdir()
    assert layout.list_segments(directory) == SegmentListing(segments=(), unrecognized=())


def test_listing_reads_no_object() -> None:
    store = MemoryStore({f"{DIRECTORY}/{STEM}.log": b"x"})
    layout = LocalTieredStorageLayout(store=store)
    (directory,) = layout.list_partition_directories().directories
    (segment,) = layout.list_segments(directory).segments
    assert (layout.log_size_bytes(segment), store.reads) == (1, [])


def test_file_that_was_not_listed_is_missing_with_its_name() -> None:
    layout = layout_of(f"{DIRECTORY}/{STEM}.log")
    (segment,) = layout.list_segments(layout.list_partition_directories().directories[0]).segments
    with pytest.raises(ArchiveError) as refused:
        layout.read_small_file(segment, SegmentFileKind.TIME_INDEX)
    assert refused.value.reason is Reason.OBJECT_MISSING
    assert refused.value.object_name == f"{DIRECTORY}/{STEM}.timeindex"


@pytest.mark.parametrize("content", [b"", b"shorter", b"much longer than before"])
def test_small_file_whose_size_changed_after_the_listing_is_refused(content: bytes) -> None:
    store = MemoryStore({f"{DIRECTORY}/{STEM}.index": b"eight ch"})
    layout = LocalTieredStorageLayout(store=store)
    (segment,) = layout.list_segments(layout.list_partition_directories().directories[0]).segments
    assert layout.read_small_file(segment, SegmentFileKind.OFFSET_INDEX).tobytes() == b"eight ch"
    store.objects[f"{DIRECTORY}/{STEM}.index"] = content
    with pytest.raises(ArchiveError, match="size changed") as refused:
        layout.read_small_file(segment, SegmentFileKind.OFFSET_INDEX)
    assert refused.value.found == f"{len(content)} bytes"


def test_small_file_above_the_limit_is_refused_without_a_read() -> None:
    store = MemoryStore({f"{DIRECTORY}/{STEM}.index": b""})
    huge = SegmentObject(
        kind=SegmentFileKind.OFFSET_INDEX, name="huge", size_bytes=SMALL_FILE_LIMIT_BYTES + 1, modified_ms=0
    )
    segment = ListedSegment(
        topic="orders",
        topic_id=TOPIC_ID,
        partition=0,
        start_offset=42,
        segment_id=SEGMENT_ID,
        objects=(huge,),
        missing_kinds=(),
    )
    with pytest.raises(ArchiveError, match="too large"):
        LocalTieredStorageLayout(store=store).read_small_file(segment, SegmentFileKind.OFFSET_INDEX)
    assert store.reads == []


def test_log_is_not_a_small_file() -> None:
    layout = layout_of(f"{DIRECTORY}/{STEM}.log")
    (segment,) = layout.list_segments(layout.list_partition_directories().directories[0]).segments
    with pytest.raises(UsageError, match="ranges"):
        layout.read_small_file(segment, SegmentFileKind.LOG)


def test_listed_segment_has_kafkas_segment_id() -> None:
    segment = list_one(f"{STEM}.log").segments[0].remote_log_segment_id
    assert (segment.segment_id, segment.topic_id_partition.topic_id) == (SEGMENT_ID, TOPIC_ID)
