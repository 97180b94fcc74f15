"""Test that a run lists what new events name and what is due, no more, and that the rest is seen when it is listed.

Events name partitions, and segments of large partitions.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays
from builders.metadata_topic import (
    DELETED,
    DELETING,
    FINISHED,
    became,
    finished,
    partition_deleted,
    partition_of,
    started,
)
from coldlog.archive.layouts.layout import PartitionDirectory, SegmentListing
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.archive.open_archive import open_archive
from coldlog.indexing import pipeline, preflight
from coldlog.indexing.scan import comparison, touched
from coldlog.indexing.scan.listed_rows import rows_of, stored_as_listed
from coldlog.indexing.scan.listing import list_directories
from coldlog.indexing.steps import build_step
from coldlog.model.states import RemotePartitionDeleteState
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import BUILD_NUMBERS, rows_in, table_contents
from worlds.aiven_worlds import open_variant
from worlds.first_runs import FirstRun
from worlds.indexed_worlds import ARCHIVE
from worlds.tier_broker import Broker, remove_first_segment

_NOW_MS = 1_700_000_000_000
"""In the past, so that runs with Spark, which have the real time, are the newest."""
_DAY_MS = 86_400_000
_TOPICS = ("busy", "quiet", "still")


@dataclass
class Place:
    """A broker's tier, the warehouse of a run over it, a clock, and what runs list, whole and by name."""

    spark: SparkSession
    broker: Broker
    warehouse: Path
    now_ms: int = _NOW_MS
    listed: list[str] = field(default_factory=list)
    named: list[tuple[str, int]] = field(default_factory=list)
    """Topics, and how many of their segments."""

    def both_ways(self) -> BothWays:
        assignments = [f"archive.uri={self.broker.archive}", f"metadata.uri={self.broker.topic}"]
        return BothWays(spark=self.spark, assignments=assignments)

    def run(self, *changed: str, is_full_listing: bool = False) -> tuple[bool, set[str]]:
        """Whether a run ended before Spark, and the topics that it listed."""
        self.listed.clear()
        self.named.clear()
        is_ended = self.both_ways().run(self.warehouse, *changed, is_full_listing=is_full_listing)
        return is_ended, set(self.listed)

    def count(self, topic: str, status: str) -> int:
        return [(row["topic"], row["index_status"]) for row in self._segments()].count((topic, status))

    def damaged(self) -> set[object]:
        """The topics with damaged segments."""
        return {row["topic"] for row in self._segments() if row["damaged_files"]}

    def _segments(self) -> list[dict[str, object]]:
        columns = ("topic", "index_status", "damaged_files")
        return Warehouse(spark=self.spark, uri=str(self.warehouse)).small_rows(SEGMENTS, columns)


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[FirstRun, Place]:
    """A place after one run. Topic `unknown` has segments that no event names."""
    first = FirstRun(spark=spark, folder=tmp_path_factory.mktemp("listing"))
    place = Place(spark=spark, broker=Broker(first.place), warehouse=first.place / "warehouse")
    for topic in _TOPICS:
        place.broker.tell(finished(*place.broker.write(topic, 3)))
    place.broker.write("unknown", 3)
    with pytest.MonkeyPatch.context() as patch:
        _watch(place, patch)
        assert place.run() == (False, {*_TOPICS, "unknown"})
    first.keep()
    return first, place


@pytest.fixture
def place(begun: tuple[FirstRun, Place], monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same place for each test."""
    first, kept = begun
    first.restore()
    place = replace(kept, broker=kept.broker.again(), listed=[], named=[])
    _watch(place, monkeypatch)
    return place


def _watch(place: Place, patch: pytest.MonkeyPatch) -> None:
    """Note what runs list, and give them the clock of the place."""
    list_segments = LocalTieredStorageLayout.list_segments

    def count(layout: LocalTieredStorageLayout, directory: PartitionDirectory) -> SegmentListing:
        place.listed.append(directory.topic)
        return list_segments(layout, directory)

    list_named = LocalTieredStorageLayout.list_named

    def count_named(
        layout: LocalTieredStorageLayout, directory: PartitionDirectory, beginnings: Collection[str]
    ) -> SegmentListing:
        place.named.append((directory.topic, len(beginnings)))
        return list_named(layout, directory, beginnings)

    patch.setattr(LocalTieredStorageLayout, "list_segments", count)
    patch.setattr(LocalTieredStorageLayout, "list_named", count_named)

    def build_unnoted(*arguments: Any) -> object:
        """A build lists too, where a transaction began in an earlier segment."""
        noted, named = [*place.listed], [*place.named]
        try:
            return build_step(*arguments)
        finally:
            place.listed[:], place.named[:] = noted, named

    patch.setattr(pipeline, "build_step", build_unnoted)
    for module in (preflight, pipeline):
        patch.setattr(module, "now_ms", lambda: place.now_ms)


def test_runs_list_what_events_name_and_what_is_due(place: Place, tmp_path: Path) -> None:
    assert place.run() == (True, {"unknown"})

    place.broker.write("quiet", 4)  # no event says so
    place.broker.write("unknown", 4)
    place.broker.copy("busy", 4)
    assert place.run() == (False, {"busy", "unknown"})
    assert [place.count(topic, "indexed") for topic in ("busy", "unknown", "quiet")] == [4, 4, 3]
    assert place.run() == (True, {"unknown"})

    # Whoever waits, sees it within a day; each directory has its time.
    place.now_ms += _DAY_MS
    assert place.run() == (False, {*_TOPICS, "unknown"})
    assert place.count("quiet", "orphan") == 1
    assert place.run() == (True, {"unknown"})

    remove_first_segment(place.broker.archive, "quiet-0")
    assert place.run() == (True, {"unknown"})
    assert place.run(is_full_listing=True) == (False, {*_TOPICS, "unknown"})
    assert place.count("quiet", "gone") == 1
    place.now_ms += _DAY_MS
    assert place.run() == (True, {*_TOPICS, "unknown"})
    # The segment of `quiet` was announced, and may still come.
    assert place.run() == (True, {"quiet", "unknown"}), "an unchanged run notes what it has listed"

    whole = tmp_path / "whole"
    place.both_ways().run(whole)
    tables = [table_contents(Warehouse(spark=place.spark, uri=str(location))) for location in (place.warehouse, whole)]
    assert tables[0]["partition_metadata"] == tables[1]["partition_metadata"]


def test_a_segment_that_waits_or_is_damaged_is_looked_at_in_every_run(place: Place) -> None:
    place.broker.copy("still", 4)
    log = max((place.broker.archive).rglob("still-0-*/*.log"))
    sound = log.read_bytes()
    log.write_bytes(sound[:-20])
    assert place.run() == (False, {"still", "unknown"})
    assert place.damaged() == {"still"}
    log.write_bytes(sound)
    assert place.run() == (False, {"still", "unknown"})
    assert place.damaged() == set()
    assert place.run() == (True, {"unknown"})


def test_digests_of_an_earlier_release_are_listed_once_and_kept(place: Place) -> None:
    table = SmallTable(uri=str(place.warehouse), table=DIRECTORY_DIGESTS)
    rows = [row | {"listed_ms": None} for row in table.read()]
    table.change(lambda _: rows)
    assert place.run() == (True, {*_TOPICS, "unknown"})
    place.broker.copy("busy", 4)
    assert place.run() == (False, {*_TOPICS, "unknown"})
    place.broker.copy("quiet", 4)
    assert place.run() == (False, {"quiet", "still", "unknown"}), "its runs note only what they work on"


def _files_of(broker: Broker, topic: str) -> list[list[Path]]:
    """The files of each segment of a topic, in order."""
    logs = sorted(broker.archive.rglob(f"{topic}-0-*/*.log"))
    return [list(log.parent.glob(f"{log.stem}.*")) for log in logs]


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink()


def _copy_one_and_begin_another(broker: Broker) -> None:
    broker.copy("busy", 4)
    broker.tell([started(broker.write("still", 4)[3])])


def _end_it_and_leave_an_orphan(broker: Broker) -> None:
    """A partition where a copy goes on is looked at in every run."""
    broker.tell(became(broker.write("still", 4)[3], FINISHED))
    broker.copy("busy", 5)
    broker.write("quiet", 4)


def _announce_the_orphan_and_delete(broker: Broker) -> None:
    broker.tell(finished(broker.write("quiet", 4)[3]))
    broker.tell(became(broker.write("still", 4)[0], DELETING, DELETED))
    _remove(_files_of(broker, "still")[0])


def _begin_a_deletion_and_announce_what_is_not_there(broker: Broker) -> None:
    broker.tell(became(broker.write("quiet", 4)[0], DELETING))
    broker.copy("busy", 6)
    _remove(_files_of(broker, "busy")[-1])


def _end_it_and_mark_a_partition(broker: Broker) -> None:
    broker.write("busy", 6)  # What was not there comes, and no event says so.
    first, second, *_ = broker.write("quiet", 4)
    broker.tell([*became(first, DELETED), *became(second, DELETING, DELETED)])
    for files in _files_of(broker, "quiet")[:2]:
        _remove(files)
    partition = partition_of(broker.write("still", 4)[0])
    _remove(_files_of(broker, "still")[0])
    broker.tell(partition_deleted(partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED))


def _put_a_file_beside(broker: Broker) -> None:
    broker.copy("busy", 7)
    max(broker.archive.rglob("busy-0-*/*.log")).with_suffix(".junk").touch()


COURSE: list[tuple[Callable[[Broker], object], set[str], list[tuple[str, int]], int]] = [
    (_copy_one_and_begin_another, set(), [("busy", 1), ("still", 1)], 13),
    (_end_it_and_leave_an_orphan, {"still"}, [("busy", 1)], 15),
    (_announce_the_orphan_and_delete, {"quiet"}, [("still", 1)], 15),
    (_begin_a_deletion_and_announce_what_is_not_there, {"busy"}, [("busy", 1), ("quiet", 1)], 14),
    (_end_it_and_mark_a_partition, {"busy", "quiet", "still"}, [], 14),
    (_put_a_file_beside, {"busy"}, [("busy", 1)], 15),
]
"""What a broker does; which topics the next run lists for that, whole and how many segments by name; and how many
segments are served then."""


def test_a_large_partition_is_listed_by_the_names_of_its_new_events(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched, "SEGMENTS_A_NAME", 1)
    whole = tmp_path / "whole"
    shutil.copytree(place.warehouse, whole)
    for go_on, listed, named, indexed_count in COURSE:
        step = go_on.__name__
        go_on(place.broker)
        assert place.run() == (False, {*listed, "unknown"}), step
        assert sorted(place.named) == named, step
        assert sum(place.count(topic, "indexed") for topic in (*_TOPICS, "unknown")) == indexed_count, step
        is_all_seen = go_on is not _end_it_and_leave_an_orphan
        assert place.run(is_full_listing=True) == (is_all_seen, {*_TOPICS, "unknown"}), f"all, after {step}"
    place.both_ways().run(whole)
    tables = [
        table_contents(Warehouse(spark=place.spark, uri=str(location)), without=BUILD_NUMBERS)
        for location in (place.warehouse, whole)
    ]
    assert tables[0] == tables[1]


def test_names_are_left_where_a_comparison_needs_all_of_a_partition(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.broker.copy("busy", 4)
    assert place.run() == (False, {"busy", "unknown"})
    assert not place.named, "a small partition"
    monkeypatch.setattr(touched, "SEGMENTS_A_NAME", 1)
    monkeypatch.setattr(comparison, "_MOST_ROWS", -1)
    place.broker.copy("busy", 5)
    assert place.run() == (False, {"busy", "unknown"})
    assert place.named == [("busy", 1)], "what tasks compare is listed whole"
    assert place.count("busy", "indexed") == 5
    assert place.run(is_full_listing=True)[0]


@pytest.mark.parametrize("variant", [None, "zstd-encrypted"])
def test_a_stored_row_has_the_digest_of_its_listing(request: pytest.FixtureRequest, variant: str | None) -> None:
    warehouse = request.getfixturevalue("golden_with_events" if variant is None else "zstd_encrypted")
    layout = open_archive(str(ARCHIVE), "local_tiered_storage") if variant is None else open_variant(variant)
    stored = {row["segment_id"]: row for row in rows_in(warehouse, SEGMENTS)}
    listed = 0
    for directory in layout.list_partition_directories().directories:
        for row in next(iter(list_directories(layout, [directory]))).to_pylist():
            again = rows_of(directory, [stored_as_listed(stored[row["segment_id"]])])
            assert again["row_digest"].to_pylist() == [row["row_digest"]], row["segment_id"]
            listed += 1
    assert listed == sum(row["is_listed"] for row in stored.values()) > 0
