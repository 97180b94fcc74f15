"""delta_log: what does Delta know of a table from its log, without a query?

Delta 4.4.0 keeps the newest snapshot of each table, and a checksum beside each of its commits that counts the files;
Python's API shows neither, so that both are asked of the JVM.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def newest_version(spark: SparkSession, location: str) -> int:
    """The table's newest version; -1 where there is no table."""
    return int(_snapshot(spark, location).version())


def file_count_if_known(spark: SparkSession, location: str, *, is_just_loaded: bool = False) -> int | None:
    """Files of the table's newest version; None where there is no table, and where the commit came without a checksum,
    as those of other writers may. `is_just_loaded`: this session has just read the log, which is not listed again."""
    snapshot = _snapshot(spark, location, is_just_loaded=is_just_loaded)
    # Not `numOfFilesIfKnown`, which begins a query to know it.
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles()) if snapshot.version() >= 0 and checksum.isDefined() else None


def commit_text(spark: SparkSession, location: str, version: int) -> str:
    """The lines of a commit, by Delta's own reader: where it lies, it is read as Delta reads it."""
    jvm = _jvm(spark)
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location)
    path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
    return str(log.store().read(path, log.newDeltaHadoopConf()).mkString("\n"))


def _snapshot(spark: SparkSession, location: str, *, is_just_loaded: bool = False) -> Any:
    log = _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location)
    if is_just_loaded:
        return log.unsafeVolatileSnapshot()
    return log.update(*(getattr(log, f"update$default${number}")() for number in (1, 2, 3)))


def _jvm(spark: SparkSession) -> Any:
    assert spark._jvm is not None  # a classic session, not a client of Spark Connect
    return spark._jvm
