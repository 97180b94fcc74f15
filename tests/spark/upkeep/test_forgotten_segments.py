"""Test that maintenance forgets segments that were deleted long ago, and that later runs find the same without them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays
from builders.archive_writer import WrittenSegment
from builders.metadata_topic import DELETED, DELETING, became, finished
from coldlog.indexing.events import positions
from coldlog.indexing.pipeline import maintain
from coldlog.indexing.publish.forgotten_segments import forget_deleted
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in, table_contents
from counts.spark_work import counting_work
from worlds.tier_broker import Broker, remove_first_segment

_LIFE = 4
"""Events of a segment that was copied and deleted."""


class _Retention:
    """A topic whose oldest segments are deleted while new ones come."""

    def __init__(self, broker: Broker, topic: str = "busy") -> None:
        self.broker, self.topic, self.first, self.count = broker, topic, 0, 0

    def grow(self, count: int) -> None:
        written = self.broker.write(self.topic, self.count + count)
        self._remove(self.first)
        self.broker.tell(finished(*written[self.count :]))
        self.count += count

    def delete(self, count: int, *, is_oldest_last: bool = False) -> list[WrittenSegment]:
        written = self.broker.write(self.topic, self.count)
        gone = written[self.first : self.first + count]
        self._remove(self.first + count)
        self.broker.tell(
            [event for each in (gone[::-1] if is_oldest_last else gone) for event in became(each, DELETING, DELETED)]
        )
        self.first += count
        return gone

    def _remove(self, count: int) -> None:
        for _ in range(count):
            remove_first_segment(self.broker.archive, f"{self.topic}-0")


@pytest.fixture(autouse=True)
def _hours_are_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index rows are dropped as soon as a segment is gone."""
    monkeypatch.setattr("coldlog.upkeep.maintain._HOUR_MS", 1)


def _jobs(spark: SparkSession, broker: Broker) -> BothWays:
    return BothWays(spark=spark, assignments=[f"archive.uri={broker.archive}", f"metadata.uri={broker.topic}"])


def _forgotten(warehouse: Warehouse) -> list[tuple[int, int]]:
    """Offset and count of the rows that stand for forgotten events."""
    rows = [row for row in rows_in(warehouse, SEGMENT_EVENTS) if row["event_kind"] == "forgotten"]
    return [(row["metadata_offset"], row["event_count"]) for row in rows]


def _without(rows: Sequence[Row], segments: Sequence[WrittenSegment]) -> list[Row]:
    ids = {each.segment_id for each in segments}
    return [row for row in rows if row["segment_id"] not in ids and row.get("event_kind") != "forgotten"]


def _maintain(both_ways: BothWays, location: Path) -> None:
    """The first one puts the rows of deleted segments apart, the second one forgets them."""
    for _ in range(2):
        both_ways.do(maintain, location)


def test_runs_find_the_same_without_the_segments_that_were_forgotten(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path)
    busy = _Retention(broker)
    broker.tell(finished(*broker.write("quiet", 3)))
    busy.grow(12)
    both_ways = _jobs(spark, broker)
    limited, whole = tmp_path / "limited", tmp_path / "whole"
    both_ways.run(limited)
    deleted = busy.delete(8)
    busy.grow(1)
    both_ways.run(limited)
    shutil.copytree(limited, whole)
    _drop_indexes(both_ways, whole, monkeypatch)
    with counting_work(spark) as work:
        _maintain(both_ways, limited)
    assert (work.jobs, work.executions) == (0, 0)
    shorter, longer = (Warehouse(spark=spark, uri=str(location)) for location in (limited, whole))
    gone = [row["segment_id"] for row in rows_in(shorter, SEGMENTS) if row["index_status"] == "gone"]
    assert gone == [deleted[-1].segment_id], "it tells where the log starts"
    # The last offset of the last event that is forgotten: 3 and 12 copies come before, then 8 deletions.
    assert _forgotten(shorter) == [(2 * (3 + 12) + 2 * 7 - 1, 7 * _LIFE)]
    _find_complete(shorter)

    more = busy.delete(2)
    busy.grow(1)
    tables = []
    for location, warehouse in ((limited, shorter), (whole, longer)):
        assert not both_ways.run(location)
        tables.append(table_contents(warehouse, without=("build_number",)))
    for name in tables[0]:
        if name not in (SEGMENTS.name, SEGMENT_EVENTS.name):
            assert tables[0][name] == tables[1][name], name
    forgotten = deleted[:-1]
    for table in (SEGMENTS, SEGMENT_EVENTS):
        rows = [_without(rows_in(warehouse, table), forgotten) for warehouse in (shorter, longer)]
        assert sorted(map(str, rows[0])) == sorted(map(str, rows[1])), table.name
    both_ways.repeat(limited)

    _maintain(both_ways, limited)
    assert [count for _, count in _forgotten(shorter)] == [(len(forgotten) + len(more)) * _LIFE], (
        "one row stands for all"
    )
    _find_complete(shorter)
    # A copy of a forgotten segment is one that no event names.
    served = rows_in(shorter, SEGMENTS)
    broker.write("busy", 1)
    both_ways.run(limited, is_full_listing=True)
    (back,) = [row for row in rows_in(shorter, SEGMENTS) if row["segment_id"] == deleted[0].segment_id]
    assert (back["index_status"], back["served_from_offset"]) == ("orphan", None)
    assert len(rows_in(shorter, SEGMENTS)) == len(served) + 1


def _drop_indexes(both_ways: BothWays, location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintain the tables as before, without forgetting anything."""
    with monkeypatch.context() as patched:
        patched.setattr("coldlog.indexing.pipeline.forget_deleted", lambda *_: 0)
        _maintain(both_ways, location)


def _find_complete(warehouse: Warehouse) -> None:
    """All events of the metadata topic are known, however they are counted."""
    found = positions.read_positions(warehouse)
    assert [each.is_complete for each in found.values()] == [True]
    assert positions._positions_in_tasks(warehouse) == found


def test_a_run_that_was_killed_between_both_tables_is_finished(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path)
    busy = _Retention(broker)
    busy.grow(5)
    both_ways = _jobs(spark, broker)
    location = tmp_path / "warehouse"
    both_ways.run(location)
    busy.delete(3)
    busy.grow(1)
    both_ways.run(location)
    warehouse = Warehouse(spark=spark, uri=str(location))

    remove = Warehouse.delete_matching

    def kill(this: Warehouse, table: TableDefinition, rows: Sequence[Row]) -> None:
        if table is SEGMENTS:
            raise KeyboardInterrupt
        remove(this, table, rows)

    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "delete_matching", kill)
        with pytest.raises(KeyboardInterrupt):
            _maintain(both_ways, location)
    assert _forgotten(warehouse)
    assert len([row for row in rows_in(warehouse, SEGMENTS) if row["index_status"] == "gone"]) == 3
    # A run sets what was announced again, if the index that knew more was dropped.
    left = table_contents(warehouse, without=("txn_index_empty",))
    both_ways.finish(location)
    assert table_contents(warehouse, without=("txn_index_empty",)) == left
    both_ways.do(maintain, location)
    assert len([row for row in rows_in(warehouse, SEGMENTS) if row["index_status"] == "gone"]) == 1
    both_ways.repeat(location)


def test_what_was_deleted_later_or_is_needed_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments of `busy` are deleted one after the other: two, one with an event twice, one in quarantine, two
    later; the last event of all is that of a segment of `quiet`."""
    broker = Broker(tmp_path)
    busy, quiet = _Retention(broker), _Retention(broker, topic="quiet")
    busy.grow(8)
    quiet.grow(3)
    both_ways = _jobs(spark, broker)
    location = tmp_path / "warehouse"
    both_ways.run(location)
    forgotten = busy.delete(2)
    (repeated,) = busy.delete(1)
    broker.tell(became(repeated, DELETING))
    (quarantined,) = busy.delete(1)
    first_ms = broker.now_ms
    later = busy.delete(2)
    busy.grow(1)
    quiet.delete(2, is_oldest_last=True)
    both_ways.run(location)
    warehouse = Warehouse(spark=spark, uri=str(location))
    _drop_indexes(both_ways, location, monkeypatch)
    damage = dict.fromkeys(QUARANTINE.column_names, "") | {
        **{name: 0 for name in QUARANTINE.column_names if QUARANTINE.column_types[name] != "STRING"},
        "topic": "busy",
        "segment_id": quarantined.segment_id,
    }
    warehouse.merge(QUARANTINE, [damage])
    assert forget_deleted(warehouse, first_ms + 1) == len(forgotten)
    gone = {row["segment_id"] for row in rows_in(warehouse, SEGMENTS) if row["index_status"] == "gone"}
    assert {each.segment_id for each in (repeated, quarantined, *later)} < gone
    assert gone.isdisjoint(each.segment_id for each in forgotten)
    # The newest of each topic tells where its log starts; the other one of `quiet` has the last event.
    assert forget_deleted(warehouse, broker.now_ms + 1) == 1
    left = {row["segment_id"] for row in rows_in(warehouse, SEGMENTS) if row["index_status"] == "gone"}
    assert gone - left == {later[0].segment_id}
    _find_complete(warehouse)
