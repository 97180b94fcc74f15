"""Test that maintenance keeps a table in small files in order, that the rows stay, and that order costs nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import read_if_small
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.table_storage import open_delta
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep import sorted_files
from coldlog.upkeep.sorted_files import sort_files

_PARTITIONS = 20
_REQUIRED = {"STRING": "x", "INT": 0, "BIGINT": 0, "BOOLEAN": True}


def _row(partition: int, offset: int) -> Row:
    """A row of `segments`."""
    others = {each.name: _REQUIRED.get(each.type, []) if each.required else None for each in SEGMENTS.columns}
    key = {"topic": "t", "partition": partition, "start_offset": offset, "segment_id": f"{partition} {offset}"}
    return {**others, **key}


def _append(warehouse: Warehouse, random: Random, count: int) -> None:
    rows = [_row(random.randrange(_PARTITIONS), random.randrange(1 << 40)) for _ in range(count)]
    warehouse.append(SEGMENTS, rows)


def _sorted(warehouse: Warehouse) -> int:
    """Sort the files, hold the rows to those before, and return how many versions that took."""

    def seen() -> tuple[list[str], int]:
        rows = warehouse.small_rows(SEGMENTS, SEGMENTS.column_names)
        return sorted(map(str, rows)), open_delta(warehouse.data_location(SEGMENTS)).version()

    before, version = seen()
    sort_files(warehouse, SEGMENTS)
    after, sorted_version = seen()
    assert after == before
    return sorted_version - version


def _files(warehouse: Warehouse) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pa.table(
        open_delta(warehouse.data_location(SEGMENTS)).get_add_actions(flatten=True)
    ).to_pylist()
    return rows


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """Tables whose files have at most a hundred rows each when they are sorted."""
    monkeypatch.setattr(sorted_files, "FILE_ROWS", 100)
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    return warehouse


@pytest.mark.parametrize("by", ["this process", "tasks"])
def test_a_partition_is_read_from_few_files(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    random = Random(1)
    if by == "tasks":
        monkeypatch.setattr(sorted_files, "SORTED_HERE", 0)
    # Files that are too large, or of the right size with rows of all partitions.
    for count in [300] * 4 if by == "tasks" else [90] * 12:
        _append(warehouse, random, count)
    assert _sorted(warehouse) == 1
    files = _files(warehouse)
    assert len(files) <= 16
    assert all(int(str(file["num_records"])) <= 100 for file in files)
    for partition in range(_PARTITIONS):
        place = frozenset({("t", partition)})
        holders = [file for file in files if file["min.partition"] <= partition <= file["max.partition"]]  # type: ignore[operator]
        assert len(holders) <= 3
        most = sum(int(str(file["num_records"])) for file in holders)
        rows = read_if_small(warehouse.data_location(SEGMENTS), SEGMENTS, most, partitions=place, most_files=3)
        assert rows is not None
        assert set(rows["partition"].to_pylist()) == {partition}
    assert _sorted(warehouse) == 0, "nothing is done where all is in order"


def test_rows_of_segments_that_are_gone_have_files_of_their_own(warehouse: Warehouse) -> None:
    """The segments of a partition that are gone are the oldest; every run adds some, and changes others."""

    def run(offset: int) -> None:
        rows = [_row(at, offset) | {"index_status": "indexed"} for at in range(_PARTITIONS)]
        if offset >= 3:
            rows += [_row(at, offset - 3) | {"index_status": "gone"} for at in range(_PARTITIONS)]
        warehouse.merge(SEGMENTS, rows)

    for first in (0, 8, 16):
        for offset in range(first, first + 8):
            run(offset)
        assert _sorted(warehouse) == 1
        files = _files(warehouse)
        statuses = [(file["min.index_status"], file["max.index_status"]) for file in files]
        assert statuses.count(("indexed", "indexed")) == 1
        assert set(statuses) == {("indexed", "indexed"), ("gone", "gone")}
        assert _sorted(warehouse) == 0
        run(first + 8)
        gone = {file["path"] for file in files if file["min.index_status"] == "gone"}
        assert gone < {file["path"] for file in _files(warehouse)}, "what is gone is not written again"


def test_a_large_table_is_not_sorted_because_some_segments_have_gone(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [_row(at, offset) | {"index_status": "indexed"} for at in range(_PARTITIONS) for offset in range(10)]
    warehouse.append(SEGMENTS, rows)
    assert _sorted(warehouse) == 1
    for partition in (3, 15):
        gone = [_row(partition, offset) | {"index_status": "gone"} for offset in range(5)]
        warehouse.merge(SEGMENTS, gone)
    monkeypatch.setattr(sorted_files, "SORTED_HERE", 150)
    assert _sorted(warehouse) == 0
    monkeypatch.setattr(sorted_files, "SORTED_HERE", 200)
    assert _sorted(warehouse) == 1


def test_few_new_rows_are_joined_and_many_are_sorted_in(warehouse: Warehouse) -> None:
    random = Random(2)
    _append(warehouse, random, 2_000)
    assert _sorted(warehouse) == 1
    old = {file["path"] for file in _files(warehouse)}
    for _ in range(5):
        _append(warehouse, random, 10)
    assert _sorted(warehouse) == 1
    new = {file["path"] for file in _files(warehouse)} - old
    assert len(new) == 1, "five small files are one"
    assert old < {file["path"] for file in _files(warehouse)}, "the others stay as they are"
    assert _sorted(warehouse) == 0

    _append(warehouse, random, 300)
    assert _sorted(warehouse) == 1
    assert not old & {file["path"] for file in _files(warehouse)}
    assert _sorted(warehouse) == 0
