"""table_contents: do two warehouses hold the same rows?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.table_storage import delta_storage_options
from coldlog.tables.delta.warehouse import Warehouse

TIMES_OF_RUNS = ("first_seen_ms", "last_seen_ms")
BUILD_NUMBERS = ("build_number", "superseded_build_numbers", "served_build_number")


def table_in(warehouse: Warehouse, table: TableDefinition) -> pa.Table:
    """Every row, in no order, read without Spark."""
    location = warehouse.location(table)
    return DeltaTable(location, storage_options=delta_storage_options(location)).to_pyarrow_table()


def rows_in(warehouse: Warehouse, table: TableDefinition) -> list[dict[str, Any]]:
    """Every row, in no order, read without Spark."""
    rows: list[dict[str, Any]] = table_in(warehouse, table).to_pylist()
    return rows


def table_rows(warehouse: Warehouse, table: TableDefinition, *, without: Collection[str] = ()) -> list[str]:
    """Every row as text, in a fixed order, without times of runs and the columns of `without`. Read without Spark,
    which would take a second for each table."""
    columns = [name for name in table.column_names if name not in (*TIMES_OF_RUNS, *without)]
    location = warehouse.location(table)
    delta = DeltaTable(location, storage_options=delta_storage_options(location))
    return sorted(map(repr, delta.to_pyarrow_table(columns=columns).to_pylist()))


def table_contents(warehouse: Warehouse, *, without: Collection[str] = ()) -> dict[str, list[str]]:
    """The rows of every table but `job_runs`, by the table's name."""
    return {table.name: table_rows(warehouse, table, without=without) for table in ALL_TABLES if table is not JOB_RUNS}
