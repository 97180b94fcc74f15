"""Test that tables get the same rows whether jobs read and change them with Spark or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.plain_commit import create_table
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse
from counts.spark_work import counting_work
from planning import as_large_tables

UPDATE = ("index_status", "holes", "end_offset")
_KEPT = {*SEGMENTS.key, *UPDATE, "size_bytes", "segment_leader_epochs", "build_number"}
NARROW = replace(
    SEGMENTS,
    columns=tuple(each for each in SEGMENTS.columns if each.name in _KEPT),
    skipping_columns=tuple(name for name in SEGMENTS.skipping_columns if name in _KEPT),
)
"""With all its sixty columns Spark plans each MERGE for seconds."""


def _changed(row: Row, **values: object) -> Row:
    return row | values


def _contents(warehouse: Warehouse) -> list[Row]:
    """The rows as Spark reads them."""
    place = warehouse.location(NARROW)
    rows = warehouse.spark.read.format("delta").load(place).select(*NARROW.column_names).toArrow().to_pylist()
    return sorted(rows, key=lambda row: [str(row[name]) for name in NARROW.key])


def _apply(warehouse: Warehouse, golden: Sequence[Row]) -> list[list[Row]]:
    """Append, update, insert, remove by key and by other columns; the contents after each."""
    bounds = {"from_offset": 1, "to_offset": 2, "position": 0, "end_position": 9}
    hole = bounds | {"reason": "bad", "max_timestamp_bound_ms": 5}
    updates = [_changed(row, index_status="pending", holes=[hole], end_offset=None) for row in golden[3:9]]
    marked = [
        *(_changed(row, end_offset=7, is_gone=False) for row in golden[:2]),
        *(row | {"is_gone": True} for row in golden[4:6]),
        *(row | {"is_gone": False} for row in golden[8:11]),
    ]
    steps = []
    warehouse.append(NARROW, warehouse.local(NARROW, golden[:6]), count=6)
    steps.append(_contents(warehouse))
    warehouse.merge(NARROW, updates, update=UPDATE)
    steps.append(_contents(warehouse))
    warehouse.merge(NARROW, marked, remove="is_gone")
    steps.append(_contents(warehouse))
    warehouse.merge(NARROW, warehouse.local(NARROW, golden[2:4]), count=2)
    steps.append(_contents(warehouse))
    warehouse.delete_keys(NARROW, warehouse.local(NARROW, golden[2:3]))
    steps.append(_contents(warehouse))
    places = [{name: row[name] for name in ("topic", "partition", "end_offset")} for row in golden[:11]]
    warehouse.delete_matching(NARROW, [places[0], places[8], places[3] | {"end_offset": None}])
    steps.append(_contents(warehouse))
    return steps


def test_a_frame_has_the_rows_behind_an_empty_batch(spark: SparkSession, golden_uri: str) -> None:
    warehouse = Warehouse(spark=spark, uri=golden_uri)
    rows = warehouse.read(SEGMENTS).toArrow()
    pieces = [rows.slice(0, 3), rows.slice(0, 0), rows.slice(3, 2)]
    in_batches = pa.Table.from_batches([_batch(piece) for piece in pieces])
    assert warehouse.local(SEGMENTS, in_batches).count() == 5


def _batch(table: pa.Table) -> pa.RecordBatch:
    """One batch, also of no rows."""
    return pa.RecordBatch.from_pylist(table.to_pylist(), schema=table.schema)


@pytest.fixture
def golden_rows(spark: SparkSession, golden_uri: str) -> list[Row]:
    rows = Warehouse(spark=spark, uri=golden_uri).read(SEGMENTS).toArrow().to_pylist()
    return sorted(rows, key=lambda row: [str(row[name]) for name in SEGMENTS.key])


def test_changes_without_spark_equal_those_with_it(spark: SparkSession, golden_rows: list[Row], tmp_path: Path) -> None:
    small = Warehouse(spark=spark, uri=str(tmp_path / "small"))
    large = Warehouse(spark=spark, uri=str(tmp_path / "large"))
    for each in (small, large):
        assert create_table(each.location(NARROW), NARROW, NARROW.schema_json, {})
    rows = [{name: row[name] for name in NARROW.column_names} for row in golden_rows]
    with as_large_tables():
        expected = _apply(large, rows)
    assert _apply(small, rows) == expected
    assert [len(rows) for rows in expected] == [6, 6, 7, 7, 6, 5]
    assert small.read(NARROW).toArrow().sort_by("segment_id") == large.read(NARROW).toArrow().sort_by("segment_id")


def test_queries_of_small_tables_skip_no_row_that_was_written_without_spark(
    spark: SparkSession, golden_rows: list[Row], tmp_path: Path
) -> None:
    """Spark skips files by the statistics that the writer gave them."""
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    with counting_work(spark) as work:
        warehouse.merge(SEGMENTS, golden_rows)
    assert work.jobs == 0
    with as_large_tables():
        segments = warehouse.read(SEGMENTS)
        for name in SEGMENTS.skipping_columns:
            value = next(row[name] for row in golden_rows if row[name] is not None)
            assert segments.where(F.col(name) == F.lit(value)).count() > 0, name
