"""Read requests from a Delta table with Spark; the columns are those of a file (`requests_file`)."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.lookups.requests.requests_file import ISOLATION_LEVELS, REQUIRED, has_known_levels
from coldlog.lookups.requests.rows import REQUEST_TYPES, numbered_requests

_SQL_TYPES = {pa.string(): "STRING", pa.int32(): "INT", pa.int64(): "BIGINT"}


def read_requests_table(path: str, spark: SparkSession) -> pa.Table:
    """Read requests from a Delta table."""
    location = path.removeprefix("delta:")
    try:
        rows = spark.read.format("delta").load(location)
    except AnalysisException as unreadable:
        raise UsageError(
            f"no requests at {path}: expected a .csv or .jsonl file or a Delta table ({unreadable.getCondition()})"
        ) from unreadable
    missing = [name for name in REQUIRED if name not in rows.columns]
    if missing:
        raise UsageError(f"{path}: the table of requests has no columns {missing}")
    names = [name for name in REQUEST_TYPES if name in rows.columns]
    # The table may have other column types. A value that cannot be cast becomes NULL, and is reported below.
    arrow = rows.selectExpr(
        *(f"CAST({name} AS {_SQL_TYPES[REQUEST_TYPES[name]]}) AS {name}" for name in names)
    ).toArrow()
    if any(arrow.column(name).null_count for name in REQUIRED):
        raise UsageError(f"{path}: topic, partition and timestamp_ms of a request must not be null")
    if "isolation_level" in names and not has_known_levels(arrow.column("isolation_level")):
        raise UsageError(f"{path}: isolation_level must be {' or '.join(sorted(ISOLATION_LEVELS))}")
    return numbered_requests({name: arrow.column(name) for name in names})
