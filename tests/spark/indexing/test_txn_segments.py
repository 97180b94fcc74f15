"""Test the search for the next segment with aborts: any order of segments, epochs and gaps, and how much it reads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from coldlog.indexing.publish.txn_segments import publish_txn_segments, wanted_txn_segments
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.txn_segments import TXN_SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse


def segment_rows(spark: SparkSession, count: int, with_aborts: int) -> DataFrame:
    """Segments of 100 offsets that are served as a whole; `with_aborts` of them, evenly distributed, have aborts."""
    known = spark.range(count).select(
        F.lit("big").alias("topic"),
        F.lit(0).alias("partition"),
        F.lit("id").alias("topic_id"),
        (F.col("id") * 100).alias("start_offset"),
        F.concat(F.lit("segment-"), F.col("id").cast("string")).alias("segment_id"),
        (F.col("id") * 100 + 99).alias("end_offset"),
        (F.col("id") * 100).alias("served_from_offset"),
        (F.col("id") * 100 + 99).alias("served_to_offset"),
        (F.col("id") % (count // with_aborts) != 7).alias("txn_index_empty"),
        F.array(F.struct(F.lit(0).alias("leader_epoch"), (F.col("id") * 100).alias("start_offset"))).alias(
            "segment_leader_epochs"
        ),
        F.lit("COPY_SEGMENT_FINISHED").alias("state"),
        F.lit("listing").alias("state_source"),
        F.lit("indexed").alias("index_status"),
        F.lit(True).alias("is_listed"),
        F.from_json(F.lit("[]"), SEGMENTS.column_types["objects"]).alias("objects"),
        F.from_json(F.lit("[]"), SEGMENTS.column_types["missing_kinds"]).alias("missing_kinds"),
    )
    others = [name for name in SEGMENTS.column_names if name not in known.columns]
    return known.withColumns({name: F.lit(None).cast(SEGMENTS.column_types[name]) for name in others})


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
    for count in (1_000, 100_000):
        warehouse = Warehouse(spark=spark, uri=str(tmp_path / str(count)))
        warehouse.create_missing()
        warehouse.append(SEGMENTS, segment_rows(spark, count, with_aborts=10))
        warehouse.append(PARTITION_METADATA, warehouse.local(PARTITION_METADATA, [partition_row()]))
        assert publish_txn_segments(warehouse) == 10
        assert publish_txn_segments(warehouse) == 0
        attach_warehouse(spark, warehouse.uri)
        offset = (count // 2) * 100
        answer = spark.sql(f"SELECT * FROM next_segment_with_txn_index('big', 0, 0, {offset})")
        assert [row["segment_id"] for row in answer.collect()] == [f"segment-{count // 2 + 7}"]
        read[count] = sorted(scans_of(answer))
    assert read[1_000] == read[100_000]
    assert sum(rows for _, rows in read[1_000]) <= 12
    assert sum(files for files, _ in read[1_000]) <= 2


def test_rows_are_added_changed_and_removed_in_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    warehouse.append(SEGMENTS, segment_rows(spark, 100, with_aborts=10))
    assert publish_txn_segments(warehouse) == 10
    first, no_more, no_longer_served = "start_offset = 700", "start_offset = 1700", "start_offset = 9700"
    changed = warehouse.read(SEGMENTS).withColumns(
        {
            "txn_index_empty": F.expr(f"nullif({no_more} OR txn_index_empty AND NOT start_offset = 800, {first})"),
            "served_from_offset": F.expr(f"if({no_longer_served}, NULL, served_from_offset)"),
        }
    )
    warehouse.merge(SEGMENTS, changed.localCheckpoint(), update=("txn_index_empty", "served_from_offset"))
    before = warehouse.newest_version(TXN_SEGMENTS)
    publish_txn_segments(warehouse)
    assert warehouse.newest_version(TXN_SEGMENTS) == before + 1
    wanted = wanted_txn_segments(warehouse.read(SEGMENTS)).collect()
    assert sorted(warehouse.read(TXN_SEGMENTS).collect()) == sorted(wanted)
    starts = {row["segment_id"] for row in wanted}
    assert len(starts) == 9
    assert "segment-8" in starts
    assert not starts & {"segment-17", "segment-97"}


def random_segments(chance: random.Random, topic: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    at, epoch = chance.randrange(50), chance.randrange(3)
    for number in range(chance.randrange(1, 14)):
        epochs, start = [(epoch, at)], at
        at += chance.randrange(1, 6)
        while chance.random() < 0.3:
            epoch += chance.randrange(1, 3)
            epochs.append((epoch, at))
            at += chance.randrange(1, 5)
        rows.append(
            {
                "topic": topic,
                "partition": 0,
                "topic_id": "id",
                "segment_id": f"{topic}-{number}",
                "start_offset": start,
                "end_offset": at - 1,
                "served_from_offset": start,
                "served_to_offset": at - 1,
                "txn_index_empty": chance.choice([True, True, True, False, None]),
                "segment_leader_epochs": [{"leader_epoch": e, "start_offset": o} for e, o in epochs],
                "announced_leader_epochs": None,
                "announced_end_offset": None,
            }
        )
        if chance.random() < 0.2:
            at += chance.randrange(1, 9)
        if chance.random() < 0.2:
            epoch += 1
    return rows


def kafka_walk(rows: list[dict[str, object]], leader_epoch: int, offset: int) -> object:
    """As RemoteLogMetadataCache: go from the segment that holds the offset in the epoch to the one after its end."""
    while True:
        for row in rows:
            epochs = [(each["leader_epoch"], each["start_offset"]) for each in row["segment_leader_epochs"]]  # type: ignore[attr-defined]
            ends = [start - 1 for _, start in epochs[1:]] + [row["end_offset"]]
            spans = {epoch: (start, end) for (epoch, start), end in zip(epochs, ends, strict=True)}
            if leader_epoch in spans and spans[leader_epoch][0] <= offset <= spans[leader_epoch][1]:
                break
        else:
            return None
        if not row["txn_index_empty"]:
            return row["segment_id"]
        offset = row["end_offset"] + 1  # type: ignore[operator]


def found_in(rows: list[Row], leader_epoch: int, offset: int) -> object:
    fit = [
        row["segment_id"]
        for row in rows
        if row["leader_epoch"] == leader_epoch and row["epoch_from_offset"] <= offset <= row["to_offset"]
    ]
    assert len(fit) <= 1
    return fit[0] if fit else None


def first_behind(rows: list[dict[str, object]], offset: int) -> object:
    return next((row["segment_id"] for row in rows if row["end_offset"] >= offset and not row["txn_index_empty"]), None)  # type: ignore[operator]


@pytest.mark.parametrize("seed", [1])
def test_intervals_give_the_same_segment_as_a_walk(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    archives = {f"t{number}": random_segments(chance, f"t{number}") for number in range(150)}
    types = SEGMENTS.column_types
    ddl = ", ".join(f"{name} {types[name]}" for name in archives["t0"][0])
    segments = spark.createDataFrame([tuple(row.values()) for rows in archives.values() for row in rows], ddl)
    by_topic: dict[str, list[Row]] = {topic: [] for topic in archives}
    for row in wanted_txn_segments(segments).collect():
        by_topic[row["topic"]].append(row)
        assert row["is_certain"] is not None
    hits = 0
    for topic, rows in archives.items():
        own = by_topic[topic]
        first, last = rows[0]["start_offset"], rows[-1]["end_offset"]
        for offset in range(first - 2, last + 3):  # type: ignore[operator]
            for epoch in range(8):
                expected = kafka_walk(rows, epoch, offset)
                assert found_in(own, epoch, offset) == expected, (topic, epoch, offset)
                hits += expected is not None
            in_log = [row["segment_id"] for row in own if row["log_from_offset"] <= offset <= row["to_offset"]]
            assert in_log == ([] if offset < first else [s for s in [first_behind(rows, offset)] if s])  # type: ignore[operator]
    assert hits > 500
    assert set(TXN_SEGMENTS.key) <= set(wanted_txn_segments(segments).columns)
