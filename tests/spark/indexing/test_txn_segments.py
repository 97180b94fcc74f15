"""Test the table of segments with aborts: how much a search reads, and how changes are written."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from coldlog.index.txn_segments import ServedEpochs, find_txn_segments
from coldlog.indexing.publish.txn_segments import publish_txn_segments
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from planning import as_large_tables


def txn_rows(count: int, with_aborts: int) -> list[dict[str, Any]]:
    """Of `count` segments of 100 offsets; `with_aborts` of them, evenly distributed, have aborts."""
    segments = (
        ServedEpochs(
            segment_id=f"segment-{number}",
            start_offset=number * 100,
            end_offset=number * 100 + 99,
            served_from_offset=number * 100,
            served_to_offset=number * 100 + 99,
            leader_epochs=[(0, number * 100)],
            txn_index_empty=number % (count // with_aborts) != 7,
        )
        for number in range(count)
    )
    return [{"topic": "big", "partition": 0, "topic_id": "id"} | asdict(each) for each in find_txn_segments(segments)]


def partition_row() -> dict[str, object]:
    counts = [column.name for column in PARTITION_METADATA.columns if column.required and column.type == "BIGINT"]
    named = {"topic": "big", "partition": 0, "topic_id": "id", "is_current": True, "leader_epoch_lineage": []}
    return {**dict.fromkeys(PARTITION_METADATA.column_names), **dict.fromkeys(counts, 0), **named}


def scans_of(answer: DataFrame) -> list[tuple[int, int]]:
    """Files and rows that each scan of a table has read."""
    found: list[tuple[int, int]] = []

    def visit(node) -> None:  # type: ignore[no-untyped-def]  # a plan of the JVM
        kind = node.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            visit(node.executedPlan())
        elif kind.endswith("QueryStageExec"):
            visit(node.plan())
        else:
            if kind == "FileSourceScanExec":
                metrics = node.metrics()
                found.append((metrics.apply("numFiles").value(), metrics.apply("numOutputRows").value()))
            children = node.children()
            for at in range(children.size()):
                visit(children.apply(at))

    visit(answer._jdf.queryExecution().executedPlan())
    return found


def test_a_search_reads_no_more_with_more_segments_without_aborts(spark: SparkSession, tmp_path: Path) -> None:
    read: dict[int, list[tuple[int, int]]] = {}
    for count in (1_000, 20_000):
        warehouse = Warehouse(spark=spark, uri=str(tmp_path / str(count)))
        warehouse.create_missing()
        warehouse.append(PARTITION_METADATA, warehouse.local(PARTITION_METADATA, [partition_row()]))
        assert publish_txn_segments(warehouse, txn_rows(count, with_aborts=10)) == 10
        assert publish_txn_segments(warehouse, txn_rows(count, with_aborts=10)) == 0
        attach_warehouse(spark, warehouse.uri)
        offset = (count // 2) * 100
        answer = spark.sql(f"SELECT * FROM next_segment_with_txn_index('big', 0, 0, {offset})")
        assert [row["segment_id"] for row in answer.collect()] == [f"segment-{count // 2 + 7}"]
        read[count] = sorted(scans_of(answer))
    assert read[1_000] == read[20_000]
    assert sum(rows for _, rows in read[1_000]) <= 12
    assert sum(files for files, _ in read[1_000]) <= 2


@pytest.mark.parametrize("tables", [nullcontext, as_large_tables], ids=["small", "large"])
def test_rows_are_added_changed_and_removed_in_one_commit(spark: SparkSession, tmp_path: Path, tables: Any) -> None:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    first = txn_rows(100, with_aborts=10)
    assert publish_txn_segments(warehouse, first) == 10
    added = first[0] | {"segment_id": "segment-8", "start_offset": 800, "end_offset": 899, "to_offset": 899}
    changed = first[0] | {"is_certain": False}
    wanted = [changed, added, *first[2:-1]]
    before = warehouse.newest_version(TXN_SEGMENTS)
    with tables():
        planned = warehouse.local(TXN_SEGMENTS, wanted) if tables is as_large_tables else wanted
        # Of ten rows one changes, one is added, two are no more.
        assert publish_txn_segments(warehouse, planned) == 4
    assert warehouse.newest_version(TXN_SEGMENTS) == before + 1
    stored = [row.asDict() for row in warehouse.read(TXN_SEGMENTS).collect()]
    assert sorted(stored, key=lambda row: row["to_offset"]) == sorted(wanted, key=lambda row: row["to_offset"])
