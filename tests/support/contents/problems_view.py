"""Read the view archive_problems of a warehouse. The SQL functions are left out: to register them takes longer."""

from __future__ import annotations

from pyspark.sql import DataFrame

from coldlog.lookups.functions import query_text
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.sql_names import register_tables


def problems_of(warehouse: Warehouse) -> DataFrame:
    """The rows of the view, as they are now."""
    register_tables(warehouse)
    warehouse.spark.sql(query_text("archive_problems"))
    return warehouse.spark.table("coldlog.archive_problems")
