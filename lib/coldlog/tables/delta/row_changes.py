"""Find out whether rows that an index table had at a version have changed since.

Only Delta's log is read. An operation that removes rows, or rewrites them unchanged, changes no row. An append of rows
of newer builds changes none either; the log's file statistics have the smallest build number. Everything else counts as
a change: rows appended to older builds, files without statistics, any other operation, and a log that no longer has the
version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from delta.tables import DeltaTable
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from coldlog.tables.delta.delta_log import commit_text

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


def are_rows_changed(spark: SparkSession, location: str, since: int, until: int, *, until_build: int) -> bool:
    """Whether a commit after version `since`, up to `until`, may have changed rows or added rows to builds up to
    `until_build`."""
    history = DeltaTable.forPath(spark, location).history(max(1, until - since + 1))
    commits = history.where(F.col("version").between(since + 1, until))
    rows = commits.select("version", "operation", "operationParameters", "operationMetrics").collect()
    if len(rows) < until - since or not all(_is_harmless(row) for row in rows):
        return True
    appends = sorted(int(row["version"]) for row in rows if row["operation"] == "WRITE")
    return not all(_adds_newer_builds(spark, location, version, until_build) for version in appends)


def _is_harmless(commit: Row) -> bool:
    """Whether the operation changes no rows; for an append, the files must be checked too."""
    parameters, metrics = commit["operationParameters"] or {}, commit["operationMetrics"] or {}
    if commit["operation"] == "WRITE":
        return bool(parameters.get("mode") == "Append")
    if commit["operation"] == "MERGE":
        return all(metrics.get(name) == "0" for name in ("numTargetRowsUpdated", "numTargetRowsInserted"))
    return commit["operation"] in _HARMLESS


def _adds_newer_builds(spark: SparkSession, location: str, version: int, until_build: int) -> bool:
    """Whether all files that a commit adds are known to hold only rows of builds after `until_build`."""
    files = _iter_added(commit_text(spark, location, version))
    return all(_is_empty(file) or _smallest_build(file) > until_build for file in files)


def _iter_added(commit: str) -> Iterator[dict[str, object]]:
    """Iterate over the statistics of each file that a commit adds."""
    for line in commit.split("\n"):
        action = json.loads(line)
        if "add" in action:
            yield json.loads(action["add"].get("stats") or "{}")


def _is_empty(statistics: dict[str, object]) -> bool:
    return statistics.get("numRecords") == 0


def _smallest_build(statistics: dict[str, object]) -> int:
    """Return the smallest build number; -1 if it is unknown."""
    smallest = statistics.get("minValues")
    number = smallest.get("build_number") if isinstance(smallest, dict) else None
    return number if isinstance(number, int) else -1
