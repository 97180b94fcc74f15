"""Test that a table needs no more than CONTRIBUTING.md says: a module with its suite, and a line of the catalog."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from changed_library import changed_library
from coldlog.tables.delta.warehouse import Warehouse

TABLE = '''"""Define the table of holidays."""

from coldlog.tables.definitions.definition import Column, TableDefinition

HOLIDAYS = TableDefinition(
    name="holidays",
    comment="Days without records",
    key=("day",),
    clustered_by=("day",),
    skipping_columns=("day",),
    columns=(Column(name="day", type="STRING", required=True, comment="The day"),),
)
'''
SUITE = '{"name": "holidays", "meta": {"views": {}}, "expectations": []}'
DEFINITIONS = "lib/coldlog/tables/definitions"
CATALOG = f"{DEFINITIONS}/catalog.py"


def test_a_table_needs_a_module_and_a_line_of_the_catalog(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    Warehouse(spark=spark, uri=str(warehouse)).create_missing()
    with changed_library(
        tmp_path / "copy",
        files={f"{DEFINITIONS}/holidays.py": TABLE, "conf/expectations/holidays.json": SUITE},
        lines=[
            (
                CATALOG,
                "from coldlog.tables.definitions.discrepancies import DISCREPANCIES",
                "from coldlog.tables.definitions.holidays import HOLIDAYS",
            ),
            (CATALOG, "    VALIDATION_RESULTS,", "    HOLIDAYS,"),
        ],
    ):
        warehouses: Any = import_module("coldlog.tables.delta.warehouse")
        holidays = import_module("coldlog.tables.definitions.holidays").HOLIDAYS
        newer = warehouses.Warehouse(spark=spark, uri=str(warehouse))
        assert newer.create_missing() == 1, "the tables of the release before stay"
        newer.append(holidays, newer.local(holidays, [{"day": "2023-12-25"}]))
        suites = import_module("coldlog.upkeep.expectation_suites").load_suites()
        page = import_module("docs.reference").page_text("tables.md")
    (row,) = spark.read.format("delta").load(f"{warehouse}/holidays").collect()
    assert row.day == "2023-12-25"
    assert "## holidays\n\nDays without records.\n" in page
    assert [suite.table for suite in suites][-1] == "holidays"
