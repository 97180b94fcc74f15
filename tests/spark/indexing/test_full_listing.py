"""Test that a run lists what new events name and what is due, no more, and that the rest is seen when it is listed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays
from builders.metadata_topic import finished
from coldlog.archive.layouts.layout import PartitionDirectory, SegmentListing
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.indexing import pipeline, preflight
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse
from first_runs import FirstRun
from table_contents import table_contents
from tier_broker import Broker, remove_first_segment

_NOW_MS = 1_700_000_000_000
"""In the past, so that runs with Spark, which have the real time, are the newest."""
_DAY_MS = 86_400_000
_TOPICS = ("busy", "quiet", "still")


@dataclass
class Place:
    """A broker's tier, the warehouse of a run over it, a clock, and what runs list."""

    spark: SparkSession
    broker: Broker
    warehouse: Path
    now_ms: int = _NOW_MS
    listed: list[str] = field(default_factory=list)

    def both_ways(self) -> BothWays:
        assignments = [f"archive.uri={self.broker.archive}", f"metadata.uri={self.broker.topic}"]
        return BothWays(spark=self.spark, assignments=assignments)

    def run(self, *changed: str, is_full_listing: bool = False) -> tuple[bool, set[str]]:
        """Whether a run ended before Spark, and the topics that it listed."""
        self.listed.clear()
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
    place = replace(kept, broker=kept.broker.again(), listed=[])
    _watch(place, monkeypatch)
    return place


def _watch(place: Place, patch: pytest.MonkeyPatch) -> None:
    """Note what runs list, and give them the clock of the place."""
    list_segments = LocalTieredStorageLayout.list_segments

    def count(layout: LocalTieredStorageLayout, directory: PartitionDirectory) -> SegmentListing:
        place.listed.append(directory.topic)
        return list_segments(layout, directory)

    patch.setattr(LocalTieredStorageLayout, "list_segments", count)
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
    assert place.run() == (True, {"unknown"}), "an unchanged run notes what it has listed"

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
