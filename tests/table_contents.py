"""table_contents: do two warehouses hold the same rows?"""

from __future__ import annotations

from collections.abc import Collection

from coldlog.tables.catalog import ALL_TABLES
from coldlog.tables.definition import TableDefinition
from coldlog.tables.job_runs import JOB_RUNS
from coldlog.tables.warehouse import Warehouse

TIMES_OF_RUNS = ("first_seen_ms", "last_seen_ms")
BUILD_NUMBERS = ("build_number", "superseded_build_number")


def table_rows(warehouse: Warehouse, table: TableDefinition, *, without: Collection[str] = ()) -> list[str]:
    """Every row as text, in a fixed order, without times of runs and the columns of `without`."""
    columns = [name for name in table.column_names if name not in (*TIMES_OF_RUNS, *without)]
    return sorted(map(repr, warehouse.read(table).select(*columns).toArrow().to_pylist()))


def table_contents(warehouse: Warehouse, *, without: Collection[str] = ()) -> dict[str, list[str]]:
    """The rows of every table but `job_runs`, by the table's name."""
    return {table.name: table_rows(warehouse, table, without=without) for table in ALL_TABLES if table is not JOB_RUNS}
