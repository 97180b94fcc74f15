"""Test that a run shows the lookups that the SQL function answers."""

from __future__ import annotations

import io
from argparse import Namespace

import pytest
from pyspark.sql import SparkSession

from coldlog.indexing.show import show_lookups
from coldlog.runtime.console import Console, human_timestamp
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse

WORLDS = {
    "golden_uri": {"FOUND", "LATER_THAN_ARCHIVE"},
    "golden_shallow_uri": {"NOT_DECODED", "LATER_THAN_ARCHIVE"},
    "written_uri": {"FOUND", "LATER_THAN_ARCHIVE"},
}


@pytest.mark.parametrize("world", WORLDS)
def test_shown_lookups_are_answers_of_the_sql_function(
    spark: SparkSession, request: pytest.FixtureRequest, world: str
) -> None:
    warehouse = Warehouse(spark=spark, uri=request.getfixturevalue(world))
    shown = _shown(warehouse)
    attach_warehouse(spark, warehouse.uri)
    largest = warehouse.read(PARTITION_METADATA).where("is_current").orderBy("record_count", ascending=False).head(1)[0]
    answers = [["lookup", "offset", "timestamp", "leader", "epoch", "outcome"]]
    times = [0, largest["max_timestamp_ms"], largest["max_timestamp_ms"] + 1]
    place = f"'{largest['topic']}', {largest['partition']}"
    every = f"posexplode(array({', '.join(map(str, times))})) AS t(at, ms)"
    asked = f"SELECT o.* FROM {every}, LATERAL offset_for_timestamp({place}, t.ms) o ORDER BY at"
    for timestamp_ms, row in zip(times, spark.sql(asked).collect(), strict=True):
        call = f"offset_for_timestamp({place}, {timestamp_ms})"
        cells = [call, row["offset"], human_timestamp(row["offset_timestamp_ms"]), row["leader_epoch"], row["outcome"]]
        words = " ".join("" if cell is None else str(cell) for cell in cells)
        answers.append((words + (", not exact" if row["is_exact"] is False else "")).split())
    assert {words[-1] for words in answers[1:]} == WORLDS[world]
    assert shown == answers


def test_nothing_is_shown_of_a_warehouse_without_records(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path_factory.mktemp("empty")))
    assert warehouse.create_missing() == len(ALL_TABLES)
    assert _shown(warehouse) == []


def _shown(warehouse: Warehouse) -> list[list[str]]:
    """Return the words of each line."""
    results = io.StringIO()
    console = Console(progress=io.StringIO(), results=results)
    settings = load_settings("local", [f"warehouse.uri={warehouse.uri}"])
    show_lookups(Job(spark=warehouse.spark, settings=settings, arguments=Namespace(), console=console), warehouse)
    lines = [line.split() for line in results.getvalue().splitlines()]
    return [words for words in lines if words and set("".join(words)) != {"-"}]
