"""Test that an empty table costs no query, and that rows can be written to it as to any other table."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from coldlog.errors import UsageError
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.sql_names import register_tables

GROUP = "looks at empty tables"


@pytest.fixture
def empty(spark: SparkSession, warehouse: Path) -> Warehouse:
    made = Warehouse(spark=spark, uri=str(warehouse))
    made.create_missing()
    return made


def rows_of(warehouse: Warehouse, advice: dict[str, str]) -> DataFrame:
    """One discrepancy for each segment id, with its advice."""
    facts = {"topic": "t", "partition": 0, "topic_id": "A" * 22, "start_offset": 0, "kind": "orphan"}
    told = {"severity": "warning", "expected": "an event", "found": "none", "first_seen_ms": 7}
    rows = [{**facts, **told, "segment_id": segment, "advice": text} for segment, text in advice.items()]
    return warehouse.local(DISCREPANCIES, rows)


def advice_in(warehouse: Warehouse) -> dict[str, str]:
    return {row["segment_id"]: row["advice"] for row in warehouse.read(DISCREPANCIES).collect()}


def jobs_of(spark: SparkSession, group: str) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_reading_an_empty_table_starts_no_spark_job(spark: SparkSession, empty: Warehouse) -> None:
    empty.read(DISCREPANCIES)  # the first look reads the log
    spark.sparkContext.setJobGroup(GROUP, GROUP)
    try:
        assert advice_in(empty) == {}
        assert not empty.read(DISCREPANCIES).where("partition = 0").head(1)
        empty.merge(DISCREPANCIES, rows_of(empty, {"a": "look"}), update=("advice",))
        empty.delete_keys(DISCREPANCIES, rows_of(empty, {"a": "look"}))
        assert jobs_of(spark, GROUP) == 0
        empty.merge(DISCREPANCIES, rows_of(empty, {"a": "look"}))
        assert jobs_of(spark, GROUP) > 0, "jobs are counted"
    finally:
        spark.sparkContext.setJobGroup("", "")
    assert advice_in(empty) == {"a": "look"}


def test_merge_into_an_empty_table_works_as_in_a_table_with_rows(empty: Warehouse) -> None:
    for _ in range(2):
        merged = rows_of(empty, {"a": "look", "b": "wait", "c": "gone"})
        empty.merge(DISCREPANCIES, merged.selectExpr("*", "segment_id = 'c' AS is_mended"), remove="is_mended")
        assert advice_in(empty) == {"a": "look", "b": "wait"}
        empty.merge(DISCREPANCIES, rows_of(empty, {"b": "act", "d": "new"}))
        assert advice_in(empty) == {"a": "look", "b": "act", "d": "new"}
        empty.delete_keys(DISCREPANCIES, rows_of(empty, {"a": "", "b": "", "d": ""}))
        assert advice_in(empty) == {}


def test_rows_of_a_writer_without_checksums_are_read(spark: SparkSession, empty: Warehouse) -> None:
    key = "spark.databricks.delta.writeChecksumFile.enabled"
    assert advice_in(empty) == {}
    spark.conf.set(key, "false")
    try:
        rows_of(empty, {"a": "look"}).write.format("delta").mode("append").save(empty.location(DISCREPANCIES))
    finally:
        spark.conf.unset(key)
    assert advice_in(empty) == {"a": "look"}


def test_a_lost_table_that_cannot_be_rebuilt_is_not_created_empty(empty: Warehouse, spark: SparkSession) -> None:
    lost = [OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SEGMENT_EVENTS]
    for table in lost:
        shutil.rmtree(Path(empty.uri) / table.name)
    assert empty.create_missing() == len(lost), "nothing is indexed yet"
    row = {"topic": "t", "partition": 0, "topic_id": "A" * 22, "segment_id": "B" * 22, "start_offset": 0}
    state = {"is_listed": True, "state": "COPY_SEGMENT_FINISHED", "state_source": "listing", "index_status": "indexed"}
    empty.append(
        SEGMENTS, empty.local(SEGMENTS, [{**row, **state, "objects": [], "missing_kinds": [], "build_number": 1}])
    )
    for table in lost:
        kept = Path(empty.uri).with_name(f"kept-{table.name}")
        (Path(empty.uri) / table.name).rename(kept)
        with pytest.raises(UsageError, match=f"^the warehouse .* has indexed segments, but no table {table.name}; res"):
            Warehouse(spark=spark, uri=empty.uri).create_missing()
        assert not empty.has(table)
        kept.rename(Path(empty.uri) / table.name)


def test_a_lost_table_of_intervals_is_created_unless_a_segment_is_at_sidecar_depth(empty: Warehouse) -> None:
    """A warehouse of an older release has none."""
    row = {"topic": "t", "partition": 0, "topic_id": "A" * 22, "start_offset": 0, "objects": [], "missing_kinds": []}
    state = {"is_listed": True, "state": "COPY_SEGMENT_FINISHED", "state_source": "listing", "index_status": "indexed"}
    for number, depth in enumerate(("record", "sidecar")):
        built = {"segment_id": depth, "build_number": number + 1, "index_depth": depth}
        empty.append(SEGMENTS, empty.local(SEGMENTS, [row | state | built]))
        shutil.rmtree(Path(empty.uri) / INTERVAL_INDEX.name)
        again = Warehouse(spark=empty.spark, uri=empty.uri)
        if depth == "record":
            assert again.create_missing() == 1
            continue
        with pytest.raises(UsageError, match="has indexed segments, but no table interval_index; restore"):
            again.create_missing()


def test_missing_columns_are_added_to_a_table_of_an_older_release(spark: SparkSession, warehouse: Path) -> None:
    made = Warehouse(spark=spark, uri=str(warehouse))
    kept = [column for column in SEGMENT_EVENTS.columns if column.name != "problem"]
    older = replace(SEGMENT_EVENTS, columns=tuple(kept))
    spark.sql(older.create_statement(made.identifier(older), made.location(older)))
    event = {"metadata_partition": 0, "metadata_offset": 7, "event_kind": "unreadable", "value": b"?"}
    made.append(older, made.local(older, [event]))
    assert made.create_missing() == len(ALL_TABLES) - 1
    made.append(SEGMENT_EVENTS, made.local(SEGMENT_EVENTS, [event | {"metadata_offset": 8, "problem": "no event"}]))
    rows = {row["metadata_offset"]: row["problem"] for row in made.read(SEGMENT_EVENTS).collect()}
    assert rows == {7: None, 8: "no event"}
    version = made.newest_version(SEGMENT_EVENTS)
    assert made.create_missing() == 0
    assert made.newest_version(SEGMENT_EVENTS) == version, "columns are added once"


def test_sql_names_the_table_that_lacks_a_column_of_this_release(spark: SparkSession, empty: Warehouse) -> None:
    older = replace(SEGMENT_EVENTS, columns=SEGMENT_EVENTS.columns[:-1])
    shutil.rmtree(Path(empty.uri) / SEGMENT_EVENTS.name)
    spark.sql(older.create_statement(empty.identifier(older), empty.location(older)))
    with pytest.raises(
        UsageError, match=f"segment_events has no column {SEGMENT_EVENTS.columns[-1].name}: the next run"
    ):
        register_tables(empty)


def test_table_without_a_required_column_is_refused_with_its_name(spark: SparkSession, warehouse: Path) -> None:
    made = Warehouse(spark=spark, uri=str(warehouse))
    spark.sql(f"CREATE TABLE {made.identifier(SEGMENT_EVENTS)} (metadata_offset BIGINT) USING DELTA")
    with pytest.raises(UsageError, match=r"not coldlog's table segment_events: metadata_partition.*rebuild_tables"):
        made.create_missing()
