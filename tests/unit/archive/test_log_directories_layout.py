"""Test mirrors of log directories: segment ids, directories above the partitions, other files of a broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldlog.archive.layouts.layout import LayoutOptions, ListedSegment, SegmentFileKind
from coldlog.archive.layouts.log_directories_layout import LogDirectoriesLayout
from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.model.ids import uuid_bytes
from stores.memory_store import MemoryStore

STEM = "00000000000000000042"
METADATA = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"


def segments_of(objects: dict[str, bytes], above_partitions: str = "") -> list[ListedSegment]:
    layout = LogDirectoriesLayout(store=MemoryStore(objects), above_partitions=above_partitions)
    directories = layout.list_partition_directories().directories
    return [segment for directory in directories for segment in layout.list_segments(directory).segments]


def test_segment_id_depends_on_the_place_not_on_the_content() -> None:
    one, grown = ({f"a-b-0/{STEM}.log": content} for content in (b"x", b"xyz"))
    (first,), (second,) = segments_of(one), segments_of(grown)
    assert first.segment_id == second.segment_id
    assert len(uuid_bytes(first.segment_id)) == 16
    assert first.objects != second.objects
    assert (first.topic, first.partition, first.topic_id, first.start_offset) == ("a-b", 0, "", 42)


def test_segment_id_is_the_documented_one() -> None:
    """The tables store these ids: with another rule, every warehouse would index its mirror again."""
    (segment,) = segments_of({f"a-b-0/{STEM}.log": b"x", "a-b-0/partition.metadata": METADATA})
    assert (segment.topic_id, segment.segment_id) == ("AAAAAAAAAAAAAAAAAAAAAQ", "3TpwK0Sslhp4lXTulauLYA")


def test_another_directory_offset_or_topic_id_is_another_segment() -> None:
    objects = {f"{broker}/a-0/{offset:020d}.log": b"x" for broker in (1, 2) for offset in (0, 7)}
    with_id = {**objects, "1/a-0/partition.metadata": METADATA}
    ids = {segment.segment_id for each in (objects, with_id) for segment in segments_of(each, "*")}
    assert len(ids) == 4 + 2


def test_partitions_are_found_in_directories_that_match_the_pattern() -> None:
    names = ("00/prod/a-0", "01/prod/b-1", "01/test/c-0", "prod/d-0", "e-0")
    objects = {f"{name}/{STEM}.log": b"x" for name in names} | {"00/stray": b""}
    layout = LogDirectoriesLayout(store=MemoryStore(objects), above_partitions="0?/prod")
    listing = layout.list_partition_directories()
    assert [directory.name for directory in listing.directories] == ["00/prod/a-0", "01/prod/b-1"]
    assert [stray.name for stray in listing.unrecognized] == ["e-0", "prod"]
    assert [segment.topic for segment in segments_of(objects, "*/test")] == ["c"]


@pytest.mark.parametrize("above", ["/", "*/", "/a", "../a", "a//b"])
def test_pattern_that_is_not_a_path_is_refused(above: str) -> None:
    with pytest.raises(UsageError, match="archive.above_partitions is not a path of directories"):
        LogDirectoriesLayout(store=MemoryStore({}), above_partitions=above)


def test_files_of_brokers_and_uploaders_beside_segments_are_known() -> None:
    known = [
        "meta.properties", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint",
        "replication-offset-checkpoint", "cleaner-offset-checkpoint", ".lock", ".kafka_cleanshutdown",
        "a-0/offset.wm", "a-0/_metadata", "a-0/leader-epoch-checkpoint", "a-0/partition.metadata",
        f"a-0/{STEM}.snapshot",
    ]  # fmt: skip
    left = [
        "a-0/00000000000000000000.log.deleted",
        "a-0/00000000000000000000.log.swap",
        "a-0/00000000000000000001.index",
        "a-0.3c0e9a6fd8ce4dd6b2a7b2f3d8b8b0a1-delete/00000000000000000000.log",
    ]
    layout = LogDirectoriesLayout(store=MemoryStore(dict.fromkeys([*known, *left, f"a-0/{STEM}.log"], b"x")))
    listing = layout.list_partition_directories()
    below = layout.list_segments(listing.directories[0])
    assert [segment.start_offset for segment in below.segments] == [42]
    assert [stray.name for stray in listing.unrecognized] == ["a-0.3c0e9a6fd8ce4dd6b2a7b2f3d8b8b0a1-delete"]
    assert [stray.name for stray in below.unrecognized] == left[:3]


def test_snapshot_belongs_to_the_segment_that_ends_at_its_offset() -> None:
    names = ("00000000000000000000.log", f"{STEM}.snapshot", f"{STEM}.log", "00000000000000000099.snapshot")
    first, last = segments_of(dict.fromkeys((f"a-0/{name}" for name in names), b"x"))
    found = first.find_object(SegmentFileKind.PRODUCER_SNAPSHOT)
    assert found is not None
    assert found.name == f"a-0/{STEM}.snapshot"
    assert last.find_object(SegmentFileKind.PRODUCER_SNAPSHOT) is None


def test_empty_last_log_is_listed_as_missing_but_an_earlier_one_is_not() -> None:
    objects = {"a-0/00000000000000000000.log": b"", f"a-0/{STEM}.log": b""}
    first, last = segments_of(objects)
    assert (first.missing_kinds, last.missing_kinds) == ((), (SegmentFileKind.LOG,))


def test_new_leader_does_not_make_segments_look_changed() -> None:
    log = {f"a-0/{STEM}.log": b"x"}
    before, after = ({**log, "a-0/leader-epoch-checkpoint": text} for text in (b"0\n0\n", b"0\n1\n3 50\n"))
    assert segments_of(before) == segments_of(after)


def test_a_new_checkpoint_makes_only_the_last_written_log_look_changed(tmp_path: Path) -> None:
    """It tells where the log starts, and that changes while nobody writes: by DeleteRecords, and by retention."""
    folder = tmp_path / "a-0"
    folder.mkdir()
    times = {}
    for name, content in (("0", b"x"), ("1", b"x"), ("2", b"")):
        (folder / f"{name:0>20}.log").write_bytes(content)
    (folder / "leader-epoch-checkpoint").write_bytes(b"0\n1\n3 0\n")
    for checkpoint_s in (1, 3):
        for file in folder.iterdir():
            at = 2 if file.suffix == ".log" else checkpoint_s
            os.utime(file, (at, at))
        layout = open_archive(str(tmp_path), "log_directories")
        (directory,) = layout.list_partition_directories().directories
        times[checkpoint_s] = [each.objects[0].modified_ms for each in layout.list_segments(directory).segments]
    assert times == {1: [2_000, 2_000, 2_000], 3: [2_000, 3_000, 2_000]}


def test_mirror_is_opened_with_its_settings_and_refused_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "07" / "prod" / "a-0").mkdir(parents=True)
    options = LayoutOptions(above_partitions="*/prod")
    layout = open_archive(str(tmp_path), "log_directories", options)
    assert [directory.topic for directory in layout.list_partition_directories().directories] == ["a"]
    for uri, wrong in ((tmp_path, LayoutOptions()), (tmp_path / "07", options)):
        with pytest.raises(UsageError, match="has no directory"):
            open_archive(str(uri), "log_directories", wrong)
