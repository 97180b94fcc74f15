"""functions: which table functions does an analyst call?

`register_functions` needs the tables registered by name (`Warehouse.register`); the functions are temporary and live
as long as the session. Each is right under LATERAL too: a test compares every one with a scan.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from coldlog.lookups.queries import query_text

FUNCTIONS: tuple[str, ...] = ("offset_for_timestamp", "next_segment_with_txn_index", "aborted_transactions")


def register_functions(spark: SparkSession) -> None:
    """Makes the SQL table functions of coldlog callable in this session."""
    for name in FUNCTIONS:
        spark.sql(query_text(name))
