"""Name the tables of a warehouse for SQL: `coldlog.<table>` in the session's catalog."""

from __future__ import annotations

from py4j.java_gateway import JavaClass
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.delta_log import stored_column_names
from coldlog.tables.delta.files.file_checksums import damaged
from coldlog.tables.delta.files.table_files import open_table
from coldlog.tables.delta.locations import spark_uri
from coldlog.tables.delta.log_check import LOG_FOLDER
from coldlog.tables.delta.warehouse import Warehouse

DATABASE = "coldlog"


def has_lasting_catalog(spark: SparkSession) -> bool:
    """Whether registered names outlive the session and are visible to other sessions."""
    return spark.conf.get("spark.sql.catalogImplementation") == "hive"


def register_tables(warehouse: Warehouse) -> None:
    """Register the tables in the session's catalog as `coldlog.<table>`; with `as_of`, as views.

    A name that pointed to another warehouse now points to this one. The other warehouse's data does not change.
    """
    spark = warehouse.spark
    if warehouse.as_of is not None and has_lasting_catalog(spark):
        raise UsageError(
            "other sessions share this session's catalog, so its names must not mean the past: unset "
            "warehouse.as_of, or start a session with spark.sql.catalogImplementation=in-memory"
        )
    statements = [(table, _statement(warehouse, table)) for table in ALL_TABLES]
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    # A name may belong to a table of another warehouse, which may be gone, or to a view of the past.
    views = {row["viewName"] for row in spark.sql(f"SHOW VIEWS IN {DATABASE}").collect()}
    known = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {DATABASE}").collect()}
    for table, statement in statements:
        if table.name in views | known:
            kind = "VIEW" if table.name in views else "TABLE"
            spark.sql(f"DROP {kind} IF EXISTS {DATABASE}.{table.name}")
        try:
            spark.sql(statement)
        except AnalysisException as refused:
            # The log was read before, and its tables are there.
            if refused.getCondition() != "DELTA_CREATE_EXTERNAL_TABLE_WITHOUT_TXN_LOG":
                raise
            why = "Spark finds no schema in it"
            raise damaged(f"{warehouse.location(table)}/{LOG_FOLDER}", why) from refused
        _require_columns(warehouse, table)
    _take_small_tables_whole(warehouse)


def _require_columns(warehouse: Warehouse, table: TableDefinition) -> None:
    if warehouse.as_of is not None:
        return  # the view has NULL for a column that came later
    stored = stored_column_names(warehouse.spark, warehouse.location(table))
    if missing := [name for name in table.column_names if name not in stored]:
        raise UsageError(
            f"{warehouse.location(table)} has no column {', '.join(missing)}: the next run_pipeline adds the columns "
            "of this release; if it has run, the log of the table is damaged, and rebuild_tables makes it anew"
        )


def _take_small_tables_whole(warehouse: Warehouse) -> None:
    """Spare queries the Spark job with which Delta chooses files of a small table (lib/java/coldlog/SmallTables.java).

    Without coldlog's jar, queries find the same rows, with that job.
    """
    gateway = warehouse.spark._jvm
    assert gateway is not None
    rule = gateway.coldlog.SmallTables
    if isinstance(rule, JavaClass):
        rule.install(warehouse.spark._jsparkSession, spark_uri(warehouse.uri))


def _statement(warehouse: Warehouse, table: TableDefinition) -> str:
    name = f"{DATABASE}.{table.name}"
    if warehouse.as_of is None:
        location = warehouse.location(table).replace("\\", "\\\\").replace("'", "\\'")
        return f"CREATE TABLE {name} USING DELTA LOCATION '{location}'"
    version = warehouse.version(table)
    if version is None:
        columns = ", ".join(f"CAST(NULL AS {column.type}) AS {column.name}" for column in table.columns)
        return f"CREATE VIEW {name} AS SELECT {columns} WHERE false"
    past = open_table(warehouse.data_location(table), table, warehouse.as_of_ms)
    columns = ", ".join(table.select_list([field.name for field in past.schema().fields]))
    return f"CREATE VIEW {name} AS SELECT {columns} FROM {warehouse.identifier(table)} VERSION AS OF {version}"
