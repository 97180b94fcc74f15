"""Test runs that work on the partitions only that have changed: their tables are those of runs that do everything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays, rows_after_kills
from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, WrittenSegment, write_archive
from builders.metadata_topic import DELETED, DELETING, became, finished, started, values_of, write_topic
from builders.segment_builder import Batch, Record, Segment, abort_marker
from coldlog.formats.kafka.remote_log.remote_log_events import Event
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.run_rows import read_newest_run
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse
from cut_runs import copies_behind_each_write, copies_in_order
from table_contents import table_contents

OFFSETS = 6
PARTITIONS = [TopicPartition(topic=topic, partition=number) for topic in ("one", "two") for number in range(3)]


def segment(start: int) -> Segment:
    """Plain records, and a transaction that is aborted."""
    plain = Batch(base_offset=start, records=tuple(Record(timestamp_ms=1_000 + start + at) for at in range(3)))
    wrote = Batch(
        base_offset=start + 3,
        records=tuple(Record(timestamp_ms=900 + start + at) for at in range(2)),
        is_transactional=True,
        producer_id=7,
        producer_epoch=0,
        base_sequence=start,
    )
    end = start + OFFSETS - 1
    marker = abort_marker(offset=end, timestamp_ms=1_000 + end, producer_id=7, producer_epoch=0, leader_epoch=0)
    return Segment(batches=(plain, wrote, marker))


def write(archive: Path, *partitions: TopicPartition, count: int) -> None:
    segments = [segment(number * OFFSETS) for number in range(count)]
    write_archive(archive, dict.fromkeys(partitions, segments))


def directory(archive: Path, name: str) -> Path:
    (found,) = (archive / ARCHIVE_FOLDER).glob(f"{name}-*")
    return found


def flip(archive: Path, name: str) -> None:
    """Damage the last log of a partition, so that its size changes, too."""
    log = max(directory(archive, name).glob("*.log"))
    log.write_bytes(log.read_bytes()[:-20])


def remove_first_segment(archive: Path, name: str) -> None:
    stem = min(directory(archive, name).glob("*.log")).stem
    for file in directory(archive, name).glob(f"{stem}.*"):
        file.unlink()


CHANGES: list[tuple[str, Callable[[Path], object], int | None]] = [
    ("a new segment", lambda archive: write(archive, PARTITIONS[1], count=4), 1),
    ("new segments in two partitions", lambda archive: write(archive, *PARTITIONS[1::3], count=5), 2),
    ("a new partition", lambda archive: write(archive, TopicPartition(topic="one", partition=9), count=2), 1),
    ("a damaged log", lambda archive: flip(archive, "two-0"), 1),
    ("a segment that is gone", lambda archive: remove_first_segment(archive, "one-0"), 1),
    ("a partition that is gone", lambda archive: shutil.rmtree(directory(archive, "one-2")), 1),
    ("an incomplete segment", lambda archive: min(directory(archive, "two-1").glob("*.index")).unlink(), 1),
    ("an object that is no part of a segment", lambda archive: (directory(archive, "two-2") / "x").touch(), None),
    ("a new segment beside such an object", lambda archive: write(archive, PARTITIONS[1], count=6), None),
]
"""What changes, and to how many partitions the next run is limited; None: to no number."""


def limit_of(location: Path) -> object:
    row = read_newest_run(str(location))
    assert row is not None
    return json.loads(str(row["summary"]))["scan"]["limited_to_partitions"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    write_archive(folder, {partition: [segment(0), segment(OFFSETS), segment(2 * OFFSETS)] for partition in PARTITIONS})
    return folder


def test_tables_equal_those_of_runs_over_everything(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    both_ways = BothWays(spark=spark, assignments=[f"archive.uri={archive}"])
    limited, whole = tmp_path / "limited", tmp_path / "whole"
    both_ways.run(limited)
    both_ways.run(whole)
    for name, change, partition_count in CHANGES:
        change(archive)
        assert not both_ways.run(limited), name
        assert not both_ways.run(whole, "pipeline.skip_unchanged=false"), name
        assert limit_of(limited) == partition_count, name
        assert limit_of(whole) is None
        tables = [table_contents(Warehouse(spark=spark, uri=str(location))) for location in (limited, whole)]
        assert tables[0] == tables[1], name
    both_ways.repeat(limited)


def test_a_run_does_everything_if_anything_else_has_changed(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    both_ways, location = BothWays(spark=spark, assignments=[f"archive.uri={archive}"]), tmp_path / "warehouse"
    both_ways.run(location)
    write(archive, PARTITIONS[0], count=4)
    both_ways.run(location, "build.max_quarantined_share=0.7")
    assert limit_of(location) is None, "another setting"
    write(archive, PARTITIONS[0], count=5)
    Warehouse(spark=spark, uri=str(location)).merge(SEGMENTS, [])
    both_ways.run(location, "build.max_quarantined_share=0.7")
    assert limit_of(location) == 1, "no commit"

    digests = SmallTable(uri=str(location), table=DIRECTORY_DIGESTS)
    digests.change(lambda rows: [row | {"digest": "1"} if row["partition"] == 2 else row for row in rows])
    write(archive, PARTITIONS[0], count=6)
    both_ways.run(location, "build.max_quarantined_share=0.7")
    assert limit_of(location) is None, "digests that are not those of the last run"
    write(archive, PARTITIONS[0], count=7)
    spark.sql(f"DELETE FROM delta.`{location / SEGMENTS.name}` WHERE topic = 'two'")
    both_ways.run(location, "build.max_quarantined_share=0.7")
    assert limit_of(location) is None, "a table that another program has changed"


@pytest.mark.timeout(1200)  # about a dozen runs of the pipeline
def test_a_limited_run_that_was_killed_after_any_write_ends_the_same_when_repeated(
    spark: SparkSession, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_ways = BothWays(spark=spark, assignments=[f"archive.uri={archive}"])
    limited, whole = tmp_path / "limited", tmp_path / "whole"
    both_ways.run(limited)
    shutil.copytree(limited, whole)
    write(archive, PARTITIONS[1], count=4)
    flip(archive, "two-0")
    with copies_behind_each_write(limited, tmp_path / "cut", monkeypatch):
        both_ways.run(limited)
    assert limit_of(limited) == 2
    both_ways.run(whole, "pipeline.skip_unchanged=false")
    undisturbed = table_contents(Warehouse(spark=spark, uri=str(whole)))
    copies = copies_in_order(tmp_path / "cut")
    assert len(copies) >= 6
    for copy in copies:
        assert rows_after_kills(both_ways.finish(copy)) == undisturbed, copy.name


class Broker:
    """A tier of topics with one partition each, the events that the metadata topic has, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.archive, self.topic, self.now_ms = folder / "archive", folder / "rlmm", 1_700_000_000_000
        self.values: list[bytes | None] = []

    def write(self, topic: str, count: int) -> list[WrittenSegment]:
        """Write so many segments; those that are there stay as they are."""
        segments = [replace(segment(at * OFFSETS), modified_ms=self.now_ms) for at in range(count)]
        return write_archive(self.archive, {TopicPartition(topic=topic, partition=0): segments})

    def tell(self, events: Sequence[Event], *, later_ms: int = 1_000) -> None:
        self.now_ms += later_ms
        self.values += values_of([replace(event, event_timestamp_ms=self.now_ms) for event in events])
        write_topic(self.topic, {0: self.values})

    def copy(self, topic: str, count: int) -> None:
        """Write so many segments, and announce the last one as copied."""
        self.tell(finished(self.write(topic, count)[-1]))


def _remove(broker: Broker, topic: str) -> None:
    first = broker.write(topic, 3)[0]
    broker.tell(became(first, DELETING, DELETED))
    remove_first_segment(broker.archive, f"{topic}-0")


def _tombstone(broker: Broker) -> None:
    broker.values.append(None)
    broker.copy("quiet", 5)


COURSE: list[tuple[str, Callable[[Broker], object], int | None]] = [
    ("a copied segment", lambda broker: broker.copy("busy", 4), 1),
    ("a copy that has started", lambda broker: broker.tell([started(broker.write("copying", 4)[-1])]), 1),
    ("a segment without an event", lambda broker: broker.write("orphaned", 4), 2),
    # Partitions where a copy may still go on are looked at again, too.
    ("another segment, with the events of the next one", lambda broker: broker.copy("busy", 5), 3),
    ("events an hour later", lambda broker: broker.tell(finished(broker.write("busy", 6)[-1]), later_ms=7_200_000), 3),
    ("an event of what was listed before", lambda broker: broker.tell(finished(broker.write("orphaned", 4)[-1])), 1),
    ("a deleted segment", lambda broker: _remove(broker, "busy"), 1),
    ("a record without a value", _tombstone, None),
]
"""What a broker does, and to how many partitions the next run is limited; None: to no number."""


def test_events_of_the_metadata_topic_name_the_partitions_too(spark: SparkSession, tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    for topic in ("busy", "copying", "orphaned", "quiet"):
        broker.tell(finished(*broker.write(topic, 3)))
    both_ways = BothWays(spark=spark, assignments=[f"archive.uri={broker.archive}", f"metadata.uri={broker.topic}"])
    limited, whole = tmp_path / "limited", tmp_path / "whole"
    both_ways.run(limited)
    both_ways.run(whole)
    for name, go_on, partition_count in COURSE:
        go_on(broker)
        assert not both_ways.run(limited), name
        assert not both_ways.run(whole, "pipeline.skip_unchanged=false"), name
        tables = [table_contents(Warehouse(spark=spark, uri=str(location))) for location in (limited, whole)]
        assert tables[0] == tables[1], name
        assert limit_of(limited) == partition_count, name
    both_ways.repeat(limited)
