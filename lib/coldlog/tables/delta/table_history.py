"""List the versions of a table with Spark."""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coldlog.tables.delta.as_of import Commit


def list_commits(spark: SparkSession, location: str) -> list[Commit]:
    """List every version in the table's log, the oldest first."""
    history = DeltaTable.forPath(spark, location).history()
    rows = history.select("version", F.unix_millis("timestamp").alias("committed_ms")).orderBy("version").collect()
    return [Commit(version=row["version"], committed_ms=row["committed_ms"]) for row in rows]
