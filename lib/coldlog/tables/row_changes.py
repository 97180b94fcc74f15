"""row_changes: have rows that a table held at a version been changed since?

Told from Delta's log alone: what appends rows, removes them, or writes them anew as they are changes none. Everything
else, and a log that no longer reaches back that far, counts as a change.
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

_HARMLESS = frozenset(
    {
        "CREATE TABLE",
        "DELETE",
        "OPTIMIZE",
        "VACUUM START",
        "VACUUM END",
        "CLUSTER BY",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "COMPUTE STATS",
        "CHANGE COLUMN",
    }
)


def newest_version(spark: SparkSession, location: str) -> int:
    """The table's version now."""
    row = DeltaTable.forPath(spark, location).history(1).select("version").head()
    assert row is not None  # a table has at least the version that made it
    return int(row["version"])


def are_rows_changed(spark: SparkSession, location: str, since: int, until: int) -> bool:
    """Whether a commit behind version `since`, up to `until`, may have changed rows that were there."""
    history = DeltaTable.forPath(spark, location).history(max(1, until - since + 1))
    commits = history.where(F.col("version").between(since + 1, until))
    rows = commits.select("operation", "operationParameters", "operationMetrics").collect()
    return len(rows) < until - since or not all(_is_harmless(row) for row in rows)


def _is_harmless(commit: Row) -> bool:
    parameters, metrics = commit["operationParameters"] or {}, commit["operationMetrics"] or {}
    if commit["operation"] == "WRITE":
        return bool(parameters.get("mode") == "Append")
    if commit["operation"] == "MERGE":
        return all(metrics.get(name) == "0" for name in ("numTargetRowsUpdated", "numTargetRowsInserted"))
    return commit["operation"] in _HARMLESS
