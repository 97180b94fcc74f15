"""Open a Spark session with coldlog's tables and SQL functions.

    from coldlog.sql import sql_session
    spark = sql_session(["warehouse.uri=/data/coldlog"])
    spark.sql("SELECT * FROM offset_for_timestamp('orders', 0, 1700042400000)").show()

In an existing session (a notebook on a cluster), use `attach_warehouse(spark, uri)`. With `warehouse.as_of`, tables and
functions answer as at that time. With `warehouse.persistent_functions` and a persistent catalog, every later session
can call `coldlog.offset_for_timestamp(...)` directly. `spark.read.format("coldlog")` reads the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from coldlog.launch.session import spark_session
from coldlog.launch.spark_options import PAGE_CHECKSUMS
from coldlog.lookups.functions import register_functions
from coldlog.records.source.datasource import register_source
from coldlog.records.source.options import source_defaults
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.delta.delta_log import check_checkpoint
from coldlog.tables.delta.manifest import HELD_TABLES, check_footers, check_published
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.sql_names import register_tables


def sql_session(assignments: Sequence[str] = (), env: str = "local") -> SparkSession:
    """A session over the warehouse of the settings; `assignments` are `key=value` as after `--set`."""
    settings = load_settings(env, list(assignments))
    warehouse = settings.warehouse
    spark = spark_session(settings, app_name="coldlog sql")
    attach_warehouse(
        spark,
        settings.warehouse_uri,
        as_of=warehouse.as_of,
        persistent_functions=warehouse.persistent_functions,
        source_options=source_defaults(settings),
    )
    return spark


def attach_warehouse(
    spark: SparkSession,
    uri: str,
    *,
    as_of: str | None = None,
    persistent_functions: bool = False,
    source_options: Mapping[str, str] | None = None,
) -> None:
    """Register the tables below `uri` as `coldlog.<table>`, the table functions and the data source of records.

    A wrong uri is a `UsageError`, a damaged log or footer of a table a `ColdlogError`. `source_options` are the default
    options of each read of records, such as `archive.uri`.
    """
    warehouse = Warehouse(spark=spark, uri=uri, as_of=as_of)
    warehouse.require_tables()
    check_footers(check_published(uri))
    for table in HELD_TABLES:
        check_checkpoint(spark, warehouse.location(table))
    for key, value in PAGE_CHECKSUMS.items():
        # Options of Hadoop that a session was not started with.
        spark.conf.set(key, value)
    register_tables(warehouse)
    register_functions(spark, persistent=persistent_functions)
    moment = {} if warehouse.as_of_ms is None else {"warehouse.as_of": str(warehouse.as_of_ms)}
    register_source(spark, {**(source_options or {}), "warehouse.uri": uri, **moment})
