"""Test runs that work on the partitions only that have changed: their tables are those of runs that do everything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from both_ways import BothWays, limit_of, rows_after_kills
from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, write_archive
from builders.metadata_topic import DELETED, DELETING, became, finished, started, write_topic
from coldlog.errors import UsageError
from coldlog.indexing.last_run import SINCE, find_last_run, handing_on
from coldlog.indexing.pipeline import maintain
from coldlog.indexing.steps import scan_step
from coldlog.indexing.witness import KEY, find_change, read_surroundings, read_table_states
from coldlog.runtime.settings import Settings
from coldlog.tables.damage_reports import add_damage_reports, read_damage_reports
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.validation_results import VALIDATION_RESULTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.run_rows import read_newest_run
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import table_contents
from damage.cut_runs import copies_behind_each_write, copies_in_order
from worlds.first_runs import FirstRun
from worlds.tier_broker import OFFSETS, Broker, directory, remove_first_segment, segment

PARTITIONS = [TopicPartition(topic=topic, partition=number) for topic in ("one", "two") for number in range(3)]


def write(archive: Path, *partitions: TopicPartition, count: int) -> None:
    segments = [segment(number * OFFSETS) for number in range(count)]
    write_archive(archive, dict.fromkeys(partitions, segments))


def flip(archive: Path, name: str) -> None:
    """Damage the last log of a partition, so that its size changes, too."""
    log = max(directory(archive, name).glob("*.log"))
    log.write_bytes(log.read_bytes()[:-20])


def _grow(archive: Path) -> None:
    write(archive, *PARTITIONS[1::3], count=4)
    write(archive, TopicPartition(topic="one", partition=9), count=2)


def _shrink(archive: Path) -> None:
    flip(archive, "two-0")
    remove_first_segment(archive, "one-0")
    shutil.rmtree(directory(archive, "one-2"))
    min(directory(archive, "two-2").glob("*.index")).unlink()


CHANGES: list[tuple[str, Callable[[Path], object], int | None]] = [
    ("new segments, and a new partition", _grow, 3),
    ("a damaged log, an incomplete segment, a segment and a partition that are gone", _shrink, 4),
    ("a damaged segment that is gone", lambda archive: shutil.rmtree(directory(archive, "two-0")), 1),
    ("a new segment elsewhere", lambda archive: write(archive, PARTITIONS[1], count=5), 1),
    ("an object that is no part of a segment", lambda archive: (directory(archive, "two-2") / "x").touch(), None),
]
"""What changes, and to how many partitions the next run is limited; None: to no number."""


def _run_both(both_ways: BothWays, limited: Path, whole: Path, name: str, partition_count: int | None) -> None:
    """Run as the command does, and over everything; the tables must be equal."""
    assert not both_ways.run(limited), name
    assert not both_ways.run(whole, "pipeline.skip_unchanged=false"), name
    assert limit_of(limited) == partition_count, name
    assert limit_of(whole) is None
    tables = [table_contents(Warehouse(spark=both_ways.spark, uri=str(location))) for location in (limited, whole)]
    assert tables[0] == tables[1], name


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """An archive of six partitions, and a warehouse after a run over it."""

    archive: Path
    warehouse: Path
    both_ways: BothWays

    def copy(self, location: Path) -> Path:
        """The same warehouse elsewhere, where the next run has no witness."""
        shutil.copytree(self.warehouse, location)
        return location


def _begun(spark: SparkSession, place: Path) -> Begun:
    archive = place / "archive"
    both_ways = BothWays(spark=spark, assignments=[f"archive.uri={archive}"])
    return Begun(archive=archive, warehouse=place / "warehouse", both_ways=both_ways)


@pytest.fixture(scope="module")
def first_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    first = FirstRun(spark=spark, folder=tmp_path_factory.mktemp("touched"))
    begun = _begun(spark, first.place)
    write(begun.archive, *PARTITIONS, count=3)
    begun.both_ways.run(begun.warehouse)
    first.keep()
    return first


@pytest.fixture
def begun(spark: SparkSession, first_run: FirstRun) -> Begun:
    return _begun(spark, first_run.restore())


def test_tables_equal_those_of_runs_over_everything(begun: Begun, tmp_path: Path) -> None:
    archive, both_ways, limited = begun.archive, begun.both_ways, begun.warehouse
    whole = begun.copy(tmp_path / "whole")
    for name, change, partition_count in CHANGES:
        change(archive)
        _run_both(both_ways, limited, whole, name, partition_count)
    both_ways.repeat(limited)


def test_maintenance_leaves_nothing_for_the_next_run(
    begun: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldlog.upkeep.maintain._HOUR_MS", 1)
    archive, both_ways, limited = begun.archive, begun.both_ways, begun.warehouse
    write(archive, PARTITIONS[4], count=4)
    both_ways.run(limited)
    remove_first_segment(archive, "one-0")
    both_ways.run(limited)
    both_ways.do(maintain, limited)
    row = read_newest_run(str(limited))
    assert row is not None
    assert json.loads(str(row["summary"]))["maintain"]["dropped_segments"] == 1
    assert both_ways.run(limited), "nothing has changed"
    whole = begun.copy(tmp_path / "whole")
    write(archive, PARTITIONS[1], count=5)
    _run_both(both_ways, limited, whole, "a new segment after maintenance", 1)


def test_a_witness_is_handed_on_only_if_it_is_true(spark: SparkSession, begun: Begun) -> None:
    uri = str(begun.warehouse)
    warehouse, last = Warehouse(spark=spark, uri=uri), find_last_run(uri)
    assert last is not None

    def handed_on(*edits: tuple[TableDefinition, Row]) -> dict[str, object]:
        summary: dict[str, object] = {}
        with handing_on(uri, last, summary):
            for table, row in edits:
                warehouse.append(table, [row])
        return summary

    row = warehouse.small_rows(SEGMENTS, SEGMENTS.column_names)[0]
    empty = {"STRING": "", "INT": 0, "BIGINT": 0, "BOOLEAN": True, "DOUBLE": 0.0}
    result = {each.name: empty.get(each.type) for each in VALIDATION_RESULTS.columns}
    after = handed_on((VALIDATION_RESULTS, result))
    assert after[SINCE] == last.full_run_id
    assert find_change(after[KEY], read_table_states(uri)) is None  # type: ignore[arg-type]  # JSON
    assert handed_on() == {}, "the tables were changed before"
    last = replace(last, witness=after[KEY])  # type: ignore[arg-type]  # JSON
    assert handed_on().keys() == {SINCE, KEY}
    pending = row | {"segment_id": "another", "index_status": "pending", "build_number": None}
    assert handed_on((SEGMENTS, pending)) == {}, "there is work for a build"


def test_a_run_does_everything_if_anything_else_has_changed(spark: SparkSession, begun: Begun) -> None:
    archive, both_ways, location = begun.archive, begun.both_ways, begun.warehouse
    write(archive, PARTITIONS[0], count=4)
    both_ways.run(location, "build.max_quarantined_share=0.7")
    assert limit_of(location) is None, "another setting"
    write(archive, PARTITIONS[0], count=5)
    Warehouse(spark=spark, uri=str(location)).merge(SEGMENTS, [])
    both_ways.run(location, "build.max_quarantined_share=0.7")
    assert limit_of(location) == 1, "no commit"

    for file in (location / DIRECTORY_DIGESTS.name).glob("*.parquet"):
        file.write_bytes(b"damaged")
    for count, partition_count in ((4, None), (5, 1)):  # A damaged table is made anew.
        write(archive, PARTITIONS[3], count=count)
        both_ways.run(location, "build.max_quarantined_share=0.7")
        assert limit_of(location) == partition_count, "digests that cannot be read"

    digests = SmallTable(uri=str(location), table=DIRECTORY_DIGESTS)
    digests.change(lambda rows: [row | {"digest": "1"} if row["partition"] == 2 else row for row in rows])
    write(archive, PARTITIONS[0], count=6)
    both_ways.run(location, "build.max_quarantined_share=0.7")
    assert limit_of(location) is None, "digests that are not those of the last run"
    write(archive, PARTITIONS[0], count=7)
    spark.sql(f"DELETE FROM delta.`{location / SEGMENTS.name}` WHERE topic = 'two'")
    both_ways.run(location, "build.max_quarantined_share=0.7")
    assert limit_of(location) is None, "a table that another program has changed"


def test_what_changes_during_a_limited_run_is_left_to_the_next_one_or_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, log_starts, location = tmp_path / "archive", tmp_path / "starts.csv", tmp_path / "warehouse"
    write(archive, *PARTITIONS, count=3)
    log_starts.write_text("topic,partition,log_start_offset\none,0,0\n")
    settings = [f"archive.uri={archive}", f"log_start_offsets.uri={log_starts}"]
    both_ways = BothWays(spark=spark, assignments=settings)
    both_ways.run(location)

    def after_the_preflight(change: Callable[[], object]) -> None:
        with monkeypatch.context() as patch:

            def read_later(settings: Settings) -> dict[str, str]:
                change()
                return read_surroundings(settings)

            patch.setattr("coldlog.indexing.pipeline.read_surroundings", read_later)
            both_ways.run(location)

    write(archive, PARTITIONS[1], count=4)
    after_the_preflight(lambda: log_starts.write_text("topic,partition,log_start_offset\none,0,8\n"))
    assert limit_of(location) is None, "another log start"

    tables = Warehouse(spark=spark, uri=str(location))
    row = tables.read(SEGMENTS).where("topic = 'two' AND partition = 2").collect()[0].asDict()
    report = {name: row[name] for name in (*SEGMENTS.key, "build_number")}
    report |= dict.fromkeys(("reason", "message", "object_name", "expected", "found"), "x")
    report |= {"position": 0, "reported_ms": 1}
    write(archive, PARTITIONS[1], count=5)
    with monkeypatch.context() as patch:

        def scan_then_report(*arguments: Any, **named: Any) -> object:
            add_damage_reports(str(location), [report])
            return scan_step(*arguments, **named)

        patch.setattr("coldlog.indexing.pipeline.scan_step", scan_then_report)
        both_ways.run(location)
    assert limit_of(location) == 1
    assert read_damage_reports(str(location)) == [report]
    assert not both_ways.run(location), "the next run reads what was reported"
    assert not read_damage_reports(str(location))


def test_an_archive_of_which_nothing_is_left_is_refused(begun: Begun) -> None:
    root = begun.archive / ARCHIVE_FOLDER
    for folder in root.iterdir():
        for file in folder.iterdir():
            file.unlink()
    write(begun.archive, TopicPartition(topic="other", partition=0), count=2)
    with pytest.raises(UsageError, match="holds none of the segments"):
        begun.both_ways.run(begun.warehouse)


def test_a_limited_run_that_was_killed_after_any_write_ends_the_same_when_repeated(
    spark: SparkSession, begun: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, both_ways, limited = begun.archive, begun.both_ways, begun.warehouse
    whole = begun.copy(tmp_path / "whole")
    write(archive, PARTITIONS[1], count=4)
    flip(archive, "two-0")
    with copies_behind_each_write(limited, tmp_path / "cut", monkeypatch):
        both_ways.run(limited)
    assert limit_of(limited) == 2
    both_ways.run(whole, "pipeline.skip_unchanged=false")
    undisturbed = table_contents(Warehouse(spark=spark, uri=str(whole)))
    copies = copies_in_order(tmp_path / "cut")
    assert len(copies) >= 6
    for copy in copies[::3]:
        assert rows_after_kills(both_ways.finish(copy)) == undisturbed, copy.name


def _begin(broker: Broker) -> None:
    broker.copy("busy", 4)
    broker.tell([started(broker.write("copying", 4)[-1])])
    broker.write("orphaned", 4)


def _settle(broker: Broker) -> None:
    """Announce what was listed before, and delete a segment elsewhere."""
    broker.tell(finished(broker.write("orphaned", 4)[-1]))
    broker.tell(became(broker.write("busy", 3)[0], DELETING, DELETED))
    remove_first_segment(broker.archive, "busy-0")


def _junk(broker: Broker) -> None:
    """Write an event that is not valid as long as no event is missing, and a record that is no event."""
    broker.tell(became(broker.write("quiet", 3)[0], DELETED))
    broker.values.append(b"junk")
    write_topic(broker.topic, {0: broker.values})


def _copy_an_hour_later(broker: Broker) -> None:
    broker.tell(finished(broker.write("busy", 5)[-1]), later_ms=7_200_000)


COURSE: list[tuple[str, Callable[[Broker], object], int | None]] = [
    ("a copy, one that has started, and a segment without an event", _begin, 3),
    # Partitions where a copy may still go on are looked at again, too.
    ("events an hour later", _copy_an_hour_later, 3),
    ("an event of what was listed, and a deletion", _settle, 3),
    ("a record that is no event", _junk, None),
    ("an event behind it", lambda broker: broker.copy("busy", 6), None),
]
"""What a broker does, and to how many partitions the next run is limited; None: to no number."""


def test_events_of_the_metadata_topic_name_the_partitions_too(spark: SparkSession, tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    for topic in ("busy", "copying", "orphaned", "quiet"):
        broker.tell(finished(*broker.write(topic, 3)))
    places = [f"archive.uri={broker.archive}", f"metadata.uri={broker.topic}"]
    both_ways = BothWays(spark=spark, assignments=[*places, "scan.full_listing_hours=0"])
    limited, whole = tmp_path / "limited", tmp_path / "whole"
    both_ways.run(limited)
    shutil.copytree(limited, whole)
    for name, go_on, partition_count in COURSE:
        go_on(broker)
        _run_both(both_ways, limited, whole, name, partition_count)
    both_ways.repeat(limited)


def test_events_of_a_table_name_the_partitions_too(spark: SparkSession, tmp_path: Path) -> None:
    broker, table = Broker(tmp_path), tmp_path / "table"
    for topic in ("busy", "quiet"):
        broker.tell(finished(*broker.write(topic, 3)))

    def append(values: list[bytes | None]) -> None:
        """A stream from Kafka writes the newest records of the topic."""
        first = len(broker.values) - len(values)
        schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
        rows = [{"partition": 0, "offset": first + at, "value": value} for at, value in enumerate(values)]
        write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="append")

    append(broker.values)
    places = [f"archive.uri={broker.archive}", f"metadata.uri={table}", "metadata.source=table"]
    both_ways = BothWays(spark=spark, assignments=places)
    limited, whole = tmp_path / "limited", tmp_path / "whole"
    both_ways.run(limited)
    assert both_ways.run(limited), "nothing has changed"
    shutil.copytree(limited, whole)
    broker.copy("busy", 4)
    append(broker.values[-2:])
    _run_both(both_ways, limited, whole, "a copy", 1)
    assert both_ways.run(limited), "the run that is limited leaves a witness, too"
