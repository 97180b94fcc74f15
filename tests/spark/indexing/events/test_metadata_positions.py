"""Test that what is kept of a large table of events is what a scan of it finds, and that nothing depends on it."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from coldlog.indexing.events import positions
from coldlog.indexing.events.event_rows import LOST, SEGMENT, UNREADABLE
from coldlog.indexing.events.positions import Positions, advance_positions, read_positions
from coldlog.tables.definitions.metadata_positions import METADATA_POSITIONS
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse

_NO_EVENT = dict.fromkeys(SEGMENT_EVENTS.column_names)


def _events(random: Random, after: dict[int, int], count: int) -> list[Row]:
    """Draw rows behind these offsets: events, holes that compaction left, unreadable values and lost records."""
    rows = []
    for _ in range(count):
        partition = random.choice([0, 3, 7])
        after[partition] = after.get(partition, -1) + random.choice([1, 1, 1, 3] if partition == 3 else [1])
        kind = random.choices([SEGMENT, UNREADABLE, LOST], [12, 1, 0 if partition == 7 else 1])[0]
        value = None if kind == LOST else b"%d" % random.randrange(99)
        place = {"metadata_partition": partition, "metadata_offset": after[partition]}
        rows.append(
            _NO_EVENT | place | {"event_kind": kind, "value": value, "problem": None if kind == SEGMENT else "?"}
        )
    return rows


def _found(warehouse: Warehouse) -> dict[int, tuple[object, ...]]:
    """What a scan finds, written a second time."""
    rows = warehouse.small_rows(SEGMENT_EVENTS, SEGMENT_EVENTS.column_names)
    found: dict[int, tuple[object, ...]] = {}
    for partition in {row["metadata_partition"] for row in rows}:
        own = sorted(
            (row for row in rows if row["metadata_partition"] == partition), key=lambda row: row["metadata_offset"]
        )
        offsets = [row["metadata_offset"] for row in own if row["problem"] is None]
        lost = tuple(row["metadata_offset"] for row in own if row["event_kind"] == LOST)
        is_complete = offsets == list(range(len(offsets)))
        last = own[-1]
        found[partition] = (last["metadata_offset"], last["value"], last["problem"] is not None, is_complete, lost)
    return found


def _seen(of: Positions) -> dict[int, tuple[object, ...]]:
    return {
        partition: (each.last_offset, each.value, each.has_problem, each.is_complete, each.lost_offsets)
        for partition, each in of.items()
    }


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    return warehouse


@pytest.mark.parametrize("seed", range(3))
def test_kept_positions_are_those_of_a_scan(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random, after = Random(seed), dict[int, int]()
    warehouse.append(SEGMENT_EVENTS, _events(random, after, 80))
    assert _seen(read_positions(warehouse)) == _found(warehouse)
    assert not SmallTable(uri=warehouse.uri, table=METADATA_POSITIONS).exists(), "a small table is looked through"

    monkeypatch.setattr(positions, "EVENTS_HERE", 0)
    before = read_positions(warehouse)
    assert _seen(before) == _found(warehouse)
    for _ in range(4):
        new = _events(random, after, 9)
        warehouse.append(SEGMENT_EVENTS, new)
        advance_positions(warehouse, before, new)
        with monkeypatch.context() as no_query:
            no_query.setattr(positions, "_positions_in_tasks", None)
            before = read_positions(warehouse)
        assert _seen(before) == _found(warehouse)


def test_positions_of_other_events_or_damaged_ones_do_not_count(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, after = Random(5), dict[int, int]()
    monkeypatch.setattr(positions, "EVENTS_HERE", 0)
    warehouse.append(SEGMENT_EVENTS, _events(random, after, 30))
    read_positions(warehouse)
    # As a run does that is killed in between, or one of an earlier release.
    warehouse.append(SEGMENT_EVENTS, _events(random, after, 30))
    assert _seen(read_positions(warehouse)) == _found(warehouse)

    table = Path(warehouse.uri) / METADATA_POSITIONS.name
    for file in table.rglob("*.parquet"):
        file.write_bytes(b"no Parquet")
    assert _seen(read_positions(warehouse)) == _found(warehouse)
    with monkeypatch.context() as no_query:
        no_query.setattr(positions, "_positions_in_tasks", None)
        assert _seen(read_positions(warehouse)) == _found(warehouse), "made anew"
    shutil.rmtree(table)
    assert _seen(read_positions(warehouse)) == _found(warehouse)
