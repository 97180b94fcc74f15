"""Test which commits to an index table do not change the rows of older builds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import DataFrame, SparkSession

from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.delta.delta_log import newest_version
from coldlog.tables.delta.row_changes import are_rows_changed
from coldlog.tables.delta.warehouse import Warehouse

VALIDATED_BUILD = 2


def _rows(warehouse: Warehouse, *builds: int) -> DataFrame:
    values: dict[str, object] = {"BIGINT": 0, "INT": 0, "STRING": "x", "BOOLEAN": False, "SMALLINT": 0}
    row = {column.name: values[column.type] for column in TXN_INDEX.columns}
    return warehouse.local(TXN_INDEX, [{**row, "build_number": build, "first_offset": build} for build in builds])


@contextmanager
def _without_statistics(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.databricks.delta.stats.collect", "false")
    try:
        yield
    finally:
        spark.conf.unset("spark.databricks.delta.stats.collect")


def _append_without_statistics(warehouse: Warehouse) -> None:
    with _without_statistics(warehouse.spark):
        warehouse.append(TXN_INDEX, _rows(warehouse, 3))


def _append(*builds: int) -> Callable[[Warehouse], None]:
    return lambda warehouse: warehouse.append(TXN_INDEX, _rows(warehouse, *builds))


def _run(statement: str) -> Callable[[Warehouse], None]:
    def commit(warehouse: Warehouse) -> None:
        warehouse.spark.sql(statement.format(warehouse.identifier(TXN_INDEX)))

    return commit


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A warehouse with aborted transactions of builds 1 and 2."""
    warehouse = Warehouse(spark=spark, uri=str(tmp_path_factory.mktemp("warehouse")))
    spark.sql(TXN_INDEX.create_statement(warehouse.identifier(TXN_INDEX), warehouse.location(TXN_INDEX)))
    warehouse.append(TXN_INDEX, _rows(warehouse, 1, 2))
    return warehouse


@pytest.mark.parametrize(
    ("commit", "is_changed"),
    [
        (_append(3), False),
        (_append(4, 3), False),
        (_append(), False),
        (_run("OPTIMIZE {}"), False),
        (_run("DELETE FROM {} WHERE build_number = 1"), False),
        (_append(2), True),
        (_append(3, 2), True),
        (_run("INSERT INTO {0} SELECT * FROM {0} WHERE build_number = 2 LIMIT 1"), True),
        (_run("UPDATE {} SET last_offset = last_offset + 1"), True),
        (_run("INSERT OVERWRITE {0} SELECT * FROM {0}"), True),
        (_append_without_statistics, True),
    ],
)
def test_a_commit_counts_as_a_change_if_it_may_change_rows_of_older_builds(
    filled: Warehouse, commit: Callable[[Warehouse], None], *, is_changed: bool
) -> None:
    spark, location = filled.spark, filled.location(TXN_INDEX)
    since = newest_version(spark, location)
    commit(filled)
    until = newest_version(spark, location)
    assert are_rows_changed(spark, location, since, until, until_build=VALIDATED_BUILD) is is_changed


def test_a_change_between_harmless_commits_is_found(filled: Warehouse) -> None:
    spark, location = filled.spark, filled.location(TXN_INDEX)
    since = newest_version(spark, location)
    for build in (3, 1, 4):
        _append(build)(filled)
    assert are_rows_changed(spark, location, since, since + 3, until_build=VALIDATED_BUILD)
    assert not are_rows_changed(spark, location, since + 2, since + 3, until_build=VALIDATED_BUILD)
