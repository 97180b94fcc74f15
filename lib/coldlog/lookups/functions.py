"""functions: which table functions does an analyst call, and which views does an operator read?

`register_functions` needs the tables registered by name (`Warehouse.register`). The functions are temporary and live as
long as the session; `persistent`, they are kept in the database `coldlog` too, where a catalog outlives the session
(Hive's metastore): every later session calls `coldlog.<function>` and reads the views with nothing registered. Each is
right under LATERAL too: a test compares every one with a scan. Views stand beside the tables, as `coldlog.<view>`.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.lookups.queries import query_text
from coldlog.tables.delta.warehouse import DATABASE, has_lasting_catalog

FUNCTIONS: tuple[str, ...] = (
    "offset_for_timestamp",
    "list_offsets",
    "max_timestamp",
    "earliest_offset",
    "latest_tiered_offset",
    "next_segment_with_txn_index",
    "aborted_transactions",
)
VIEWS: tuple[str, ...] = ("archive_problems", "list_offsets_expiration_rates")

_TEMPORARY = "CREATE OR REPLACE TEMPORARY FUNCTION "
_PERSISTENT = f"CREATE OR REPLACE FUNCTION {DATABASE}."


def register_functions(spark: SparkSession, *, persistent: bool = False) -> None:
    """Makes the SQL table functions and the views of coldlog known to this session or, if `persistent`, to every
    session of its catalog; a catalog that ends with the session is a `UsageError` then."""
    if persistent and not has_lasting_catalog(spark):
        raise UsageError(
            "functions can only be kept in a catalog that outlives the session: set "
            "spark.sql.catalogImplementation=hive, or unset warehouse.persistent_functions"
        )
    for name in (*FUNCTIONS, *VIEWS):
        spark.sql(query_text(name))
    for name in FUNCTIONS if persistent else ():
        spark.sql(query_text(name).replace(_TEMPORARY, _PERSISTENT, 1))
