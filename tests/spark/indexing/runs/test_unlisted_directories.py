"""Test that a partition directory that cannot be listed hides no other one, and is not treated as empty."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.log_directory_writer import write_partition
from builders.metadata_topic import finished, values_of, write_topic
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.layout import SMALL_FILE_LIMIT_BYTES, PartitionDirectory, SegmentListing
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.archive.open_archive import open_archive, open_store
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError
from coldlog.indexing.events.read_events import read_events
from coldlog.indexing.scan.listing import list_directories
from coldlog.indexing.scan.scan import scan_segments
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.problems_view import problems_of
from contents.table_contents import rows_in
from worlds.golden_warehouse import log_segments_source

STEM = f"{0:020d}"
INDEXES = ("index", "timeindex")


def _leads_to_itself(metadata: Path) -> None:
    metadata.symlink_to(metadata.name)


def _leads_nowhere(metadata: Path) -> None:
    metadata.symlink_to(metadata.with_name("nothing"))


def _is_a_pipe(metadata: Path) -> None:
    os.mkfifo(metadata)


def _is_too_large(metadata: Path) -> None:
    metadata.touch()
    os.truncate(metadata, SMALL_FILE_LIMIT_BYTES + 1)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "loop": (_leads_to_itself, "object cannot be read in loop-0/partition.metadata: found Too many levels"),
    "lost": (_leads_nowhere, "the archive has no such object in lost-0/partition.metadata"),
    "pipe": (_is_a_pipe, "object is not a regular file in pipe-0/partition.metadata"),
    "vast": (_is_too_large, "file is too large to be read whole in vast-0/partition.metadata"),
}


def _segment(start: int) -> Segment:
    return Segment(batches=(Batch(base_offset=start, records=(Record(timestamp_ms=start, value=b"v"),)),))


def _statuses(warehouse: Warehouse) -> dict[tuple[str, int], tuple[str, bool]]:
    rows = rows_in(warehouse, SEGMENTS)
    return {(row["topic"], row["start_offset"]): (row["index_status"], row["is_listed"]) for row in rows}


def _unrecognized(warehouse: Warehouse) -> dict[str, str]:
    return {row["name"]: row["why"] for row in rows_in(warehouse, UNRECOGNIZED_OBJECTS)}


def test_bad_directories_of_a_mirror_are_reported_and_their_rows_stay(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    folders = {
        name: write_partition(tmp_path / "mirror", name, 0, [_segment(0), _segment(1)]) for name in ("sound", *DAMAGES)
    }
    layout = open_archive(str(tmp_path / "mirror"), "log_directories")
    tables = Warehouse(spark=spark, uri=str(warehouse))
    tables.create_missing()
    scan_segments(tables, layout)
    before = _statuses(tables)
    assert set(before.values()) == {("pending", True)}
    for name, (damage, _) in DAMAGES.items():
        metadata = folders[name] / "partition.metadata"
        metadata.unlink()
        damage(metadata)
    write_partition(tmp_path / "mirror", "late", 0, [_segment(0)])
    (folders["sound"] / f"{STEM}.log").unlink()
    told: list[str] = []
    summary = scan_segments(tables, layout, report=told.append)
    assert (summary.new_count, summary.gone_count, summary.unlisted_count) == (1, 1, 4)
    assert _statuses(tables) == before | {("late", 0): ("pending", True), ("sound", 0): ("gone", False)}
    why = _unrecognized(tables)
    problems = problems_of(tables).where("kind = 'not_listed'").collect()
    assert {row["severity"] for row in problems} == {"error"}
    assert {row["found"] for row in problems} == {f"{name}-0: {why[f'{name}-0']}" for name in DAMAGES}
    assert told[0] == ("4 partition directories could not be listed; the rows of their segments stay unchanged:")
    for (name, (_, cause)), line in zip(DAMAGES.items(), told[1:], strict=True):
        assert why[f"{name}-0"].startswith(f"directory: cannot be listed: {cause}")
        assert line == f"  {name}-0: {why[f'{name}-0']}"
        (folders[name] / "partition.metadata").unlink()
        (folders[name] / "partition.metadata").write_bytes((folders["sound"] / "partition.metadata").read_bytes())
    (folders["loop"] / f"{STEM}.log").unlink()
    mended = scan_segments(tables, layout)
    assert (mended.new_count, mended.gone_count, mended.unlisted_count) == (0, 1, 0)
    assert _statuses(tables)["loop", 0] == ("gone", False)
    assert set(_unrecognized(tables)) == {f"{name}-0/{STEM}.{kind}" for name in ("sound", "loop") for kind in INDEXES}


def test_announced_segments_of_a_directory_that_cannot_be_listed_are_neither_missing_nor_new(
    spark: SparkSession, warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partitions = {TopicPartition(topic=name, partition=0): [_segment(0), _segment(1)] for name in ("one", "other")}
    written = write_archive(tmp_path / "archive", partitions)
    announced = [each for each in written if (each.topic_partition.topic, each.segment.start_offset) != ("one", 1)]
    tables = Warehouse(spark=spark, uri=str(warehouse))
    tables.create_missing()
    layout = open_archive(str(tmp_path / "archive"), "local_tiered_storage")
    assert isinstance(layout, LocalTieredStorageLayout)
    write_topic(tmp_path / "topic", {0: values_of([event for each in announced for event in finished(each)])})
    read_events(tables, log_segments_source(tmp_path / "topic"))
    (directory,) = (each for each in layout.list_partition_directories().directories if each.topic == "one")
    scan_segments(tables, _refusing(layout, "other"))
    assert _statuses(tables) == {("one", 0): ("pending", True), ("one", 1): ("orphan", True)}
    scan_segments(tables, layout)
    before = _statuses(tables)
    capsys.readouterr()
    summary = scan_segments(tables, _refusing(layout, "one"))
    assert (summary.changed_count, summary.gone_count, summary.unlisted_count) == (0, 0, 1)
    assert _statuses(tables) == before
    # Without `report`, it is printed on stderr.
    assert capsys.readouterr().err.splitlines() == [
        "1 partition directory could not be listed; the rows of their segments stay unchanged:",
        f"  {directory.name}: directory: cannot be listed: object cannot be read in {directory.name}",
    ]


def _refusing(layout: LocalTieredStorageLayout, topic: str) -> LocalTieredStorageLayout:
    """A layout that cannot list the directory of this topic. The class is local, so that it is pickled by value."""

    class RefusingLayout(LocalTieredStorageLayout):
        def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
            if directory.topic == topic:
                raise ArchiveError(Reason.OBJECT_UNREADABLE, "object cannot be read", object_name=directory.name)
            return LocalTieredStorageLayout.list_segments(self, directory)

    return RefusingLayout(store=layout.store)


@pytest.mark.parametrize("failure", [RetriableError("the store is down"), ColdlogError("no archive there")])
def test_a_store_that_is_down_is_not_a_directory_that_cannot_be_listed(tmp_path: Path, failure: ColdlogError) -> None:
    class DownLayout(LocalTieredStorageLayout):
        def list_segments(self, _: PartitionDirectory) -> SegmentListing:
            raise failure

    directory = PartitionDirectory(name="a", topic="a", topic_id="", partition=0)
    with pytest.raises(type(failure), match=str(failure)):
        list(list_directories(DownLayout(store=open_store(str(tmp_path))), [directory]))
