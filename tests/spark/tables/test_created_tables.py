"""Test what Delta reports about every table after it was created."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import Row, SparkSession

from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.directory_digests import DIRECTORY_DIGESTS
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.metadata_positions import METADATA_POSITIONS
from coldlog.tables.definitions.replay_positions import REPLAY_POSITIONS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.tier.tier_partitions import TIER_PARTITIONS
from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.definitions.tier.tier_schedule import TIER_SCHEDULE
from coldlog.tables.delta.delta_log import file_count_if_known
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse
from counts.spark_work import counting_work

FIRST = "_delta_log/00000000000000000000.json"

SMALL_TABLES = (
    TIER_SCHEDULE,
    TIER_PARTITIONS,
    TIER_QUOTAS,
    REPLAY_POSITIONS,
    COMMITTED_OFFSETS,
    DAMAGE_REPORTS,
    DIRECTORY_DIGESTS,
    METADATA_POSITIONS,
)
# A feature of readers keeps out those that do not know it; version 1 has none, and every reader of Delta knows it.
READER_VERSION = 1
# These bind only who writes, and none of them changes what a reader finds in the files: clustering is kept in domain
# metadata, invariants are the columns that are NOT NULL, and no table is append-only.
WRITER_FEATURES = {"appendOnly", "invariants", "domainMetadata", "clustering"}


@pytest.fixture(scope="module")
def created(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Every table, also those that are written without Spark."""
    warehouse = Warehouse(spark=spark, uri=str(tmp_path_factory.mktemp("created") / "warehouse"))
    warehouse.create_missing()
    for table in SMALL_TABLES:
        SmallTable(uri=warehouse.uri, table=table).change(lambda rows: rows)
    return warehouse


@pytest.fixture(scope="module")
def details(created: Warehouse) -> dict[str, Row]:
    """By table name: the row of DESCRIBE DETAIL."""
    asked = {table.name: f"DESCRIBE DETAIL {created.identifier(table)}" for table in (*ALL_TABLES, *SMALL_TABLES)}
    return {name: created.spark.sql(statement).collect()[0] for name, statement in asked.items()}


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_table_has_the_clustering_and_skipping_columns_of_its_definition(
    details: dict[str, Row], table: TableDefinition
) -> None:
    detail = details[table.name]
    assert tuple(detail.clusteringColumns) == table.clustered_by
    assert detail.partitionColumns == []
    assert detail.properties["delta.dataSkippingStatsColumns"] == ",".join(table.skipping_columns)
    assert {key: detail.properties[key] for key in table.properties} == table.properties
    assert set(table.clustered_by) <= set(table.skipping_columns), "Delta clusters by columns with statistics"


@pytest.mark.parametrize("table", [*ALL_TABLES, *SMALL_TABLES], ids=lambda table: table.name)
def test_table_needs_no_feature_that_other_engines_do_not_have(
    created: Warehouse, details: dict[str, Row], table: TableDefinition
) -> None:
    detail = details[table.name]
    assert detail.minReaderVersion == READER_VERSION
    assert set(detail.tableFeatures) <= WRITER_FEATURES
    assert detail.properties.get("delta.columnMapping.mode", "none") == "none"
    opened = DeltaTable(created.location(table))
    assert opened.protocol().reader_features in (None, [])
    assert pa.schema(opened.schema().to_arrow()).names == list(table.column_names)


@pytest.mark.parametrize("table", [*ALL_TABLES, *SMALL_TABLES], ids=lambda table: table.name)
def test_table_and_each_of_its_columns_have_a_comment(
    created: Warehouse, details: dict[str, Row], table: TableDefinition
) -> None:
    assert details[table.name].description == table.comment
    assert table.comment
    described = created.spark.sql(f"DESCRIBE TABLE {created.identifier(table)}").collect()
    comments = {row.col_name: row.comment for row in described[: len(table.columns)]}
    assert comments == {column.name: column.comment for column in table.columns}
    assert all(comments.values())
    # As engines without Spark see them.
    fields = DeltaTable(created.location(table)).schema().fields
    assert {field.name: field.metadata.get("comment") for field in fields} == comments


def test_tables_created_without_spark_are_those_of_its_statements(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "made" / "here"))
    by_spark = Warehouse(spark=spark, uri=str(tmp_path / "by spark"))
    with counting_work(spark) as work:
        assert warehouse.create_missing() == len(ALL_TABLES)
    assert (work.jobs, work.executions) == (0, 0)
    for table in (SEGMENTS, JOB_RUNS, OFFSET_INDEX):
        spark.sql(table.create_statement(by_spark.identifier(table), by_spark.location(table)))
        made, expected = (
            [json.loads(line) for line in Path(each.location(table), FIRST).read_text("utf-8").splitlines()]
            for each in (warehouse, by_spark)
        )
        assert [_comparable(action) for action in made[1:]] == [_comparable(action) for action in expected[1:]]
        assert file_count_if_known(spark, warehouse.location(table)) == 0
    assert warehouse.create_missing() == 0


def _comparable(action: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from table to table, sets sorted, JSON in texts parsed."""
    ((kind, fields),) = action.items()
    fields = {name: value for name, value in fields.items() if name not in ("id", "createdTime")}
    for name in {"schemaString", "configuration"} & fields.keys():
        fields[name] = json.loads(fields[name]) if isinstance(fields[name], str) else fields[name]
    if kind == "protocol":
        fields["writerFeatures"] = sorted(fields["writerFeatures"])
    return {kind: fields}


def test_every_defined_table_was_checked() -> None:
    modules = (Path(__file__).parents[3] / "lib" / "coldlog" / "tables" / "definitions").rglob("*.py")
    defined = {path.stem for path in modules if "TableDefinition(\n    name=" in path.read_text(encoding="utf-8")}
    assert defined == {table.name for table in (*ALL_TABLES, *SMALL_TABLES)}
