"""functions: which table functions does an analyst call, and which views does an operator read?

`register_functions` needs the tables registered by name (`Warehouse.register`); the functions are temporary and live
as long as the session. Each is right under LATERAL too: a test compares every one with a scan. Views stand beside the
tables, as `coldlog.<view>`.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from coldlog.lookups.queries import query_text

FUNCTIONS: tuple[str, ...] = (
    "offset_for_timestamp",
    "list_offsets",
    "max_timestamp",
    "earliest_offset",
    "latest_tiered_offset",
    "next_segment_with_txn_index",
    "aborted_transactions",
)
VIEWS: tuple[str, ...] = ("archive_problems",)


def register_functions(spark: SparkSession) -> None:
    """Makes the SQL table functions and the views of coldlog known to this session."""
    for name in (*FUNCTIONS, *VIEWS):
        spark.sql(query_text(name))
