"""sql: how does an analyst get a session that knows coldlog's tables and functions?

    from coldlog.sql import sql_session
    spark = sql_session(["warehouse.uri=/data/coldlog"])
    spark.sql("SELECT * FROM offset_for_timestamp('orders', 0, 1700042400000)").show()

Or, in a session that is there already (a notebook on a cluster), `attach_warehouse(spark, uri)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from coldlog.lookups.functions import register_functions
from coldlog.session import spark_session
from coldlog.settings_sources import load_settings
from coldlog.tables.warehouse import Warehouse


def sql_session(assignments: Sequence[str] = (), env: str = "local") -> SparkSession:
    """A session over the warehouse of the settings; `assignments` are `key=value` as after `--set`."""
    settings = load_settings(env, list(assignments))
    spark = spark_session(settings, app_name="coldlog sql")
    attach_warehouse(spark, settings.warehouse_uri)
    return spark


def attach_warehouse(spark: SparkSession, uri: str) -> None:
    """Registers the tables below `uri` as `coldlog.<table>` and the table functions; a wrong uri is a `UsageError`."""
    warehouse = Warehouse(spark=spark, uri=uri)
    warehouse.require_tables()
    warehouse.register()
    register_functions(spark)
