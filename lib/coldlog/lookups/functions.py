"""Register the SQL table functions for analysts and the views for operators.

`register_functions` needs the tables registered by name (`sql_names.register_tables`). The functions are temporary and
live as long as the session. If `persistent`, they are also kept in the database `coldlog`, if the catalog outlives the
session (Hive metastore): then every later session can call `coldlog.<function>` and read the views without registering
them.
Each function is also correct under LATERAL; a test compares each with a scan. The views are next to the tables, as
`coldlog.<view>`.
"""

from __future__ import annotations

from importlib import resources

from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.tables.sql_names import DATABASE, has_lasting_catalog

FUNCTIONS: tuple[str, ...] = (
    "offset_for_timestamp",
    "list_offsets",
    "max_timestamp",
    "earliest_offset",
    "latest_tiered_offset",
    "next_segment_with_txn_index",
    "aborted_transactions",
    "segment_for_offset",
)
VIEWS: tuple[str, ...] = ("archive_problems", "list_offsets_expiration_rates")

# A persistent function may not call a temporary one: list_offsets calls offset_for_timestamp.
_PERSISTENT_TEXTS = {
    "CREATE OR REPLACE TEMPORARY FUNCTION ": f"CREATE OR REPLACE FUNCTION {DATABASE}.",
    "FROM offset_for_timestamp(": f"FROM {DATABASE}.offset_for_timestamp(",
}


def query_text(question: str) -> str:
    """Return the SQL of `question`, as shipped."""
    return resources.files("coldlog.lookups").joinpath("sql", f"{question}.sql").read_text(encoding="utf-8")


def register_functions(spark: SparkSession, *, persistent: bool = False) -> None:
    """Register functions and views in this session or, if `persistent`, for every session of the catalog. Raise
    `UsageError` if `persistent` and the catalog ends with the session."""
    if persistent and not has_lasting_catalog(spark):
        raise UsageError(
            "functions can be kept only in a catalog that outlives the session: set "
            "spark.sql.catalogImplementation=hive, or unset warehouse.persistent_functions"
        )
    for name in (*FUNCTIONS, *VIEWS):
        spark.sql(query_text(name))
    for name in FUNCTIONS if persistent else ():
        text = query_text(name)
        for temporary, lasting in _PERSISTENT_TEXTS.items():
            text = text.replace(temporary, lasting)
        spark.sql(text)
