"""delta_log: what does Delta know of a table from its log, without a query, and how are written files added to it?

Delta 4.4.0 keeps the newest snapshot of each table, and a checksum beside each of its commits that counts the files;
Python's API shows neither, nor does it take files that are written already, so that the JVM is asked for each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.tables.delta.data_files import DataFile
from coldlog.tables.delta.locations import bucket_and_prefix


def newest_version(spark: SparkSession, location: str) -> int:
    """The table's newest version; -1 where there is no table."""
    return int(_snapshot(spark, location).version())


def stored_column_names(spark: SparkSession, location: str) -> list[str]:
    """The columns that the table has now, which an older release may have created; empty where there is no table."""
    return list(_snapshot(spark, location).schema().fieldNames())


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


def find_data_location(spark: SparkSession, location: str) -> str:
    """Where a table's files lie, for who writes them without Spark: an absolute path, or the place in a bucket.

    A `UsageError` where that is neither, such as a path on a cluster whose paths are HDFS's.
    """
    if bucket_and_prefix(location) is not None:
        return location
    path: Any = _jvm(spark).org.apache.hadoop.fs.Path(location)
    file_system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    uri = file_system.makeQualified(path).toUri()
    if uri.getScheme() != "file":
        raise UsageError(
            f"{location} lies on {uri.getScheme()} here, and a warehouse has to lie in a folder that driver and "
            "workers share, or on S3: correct warehouse.uri, or Hadoop's fs.defaultFS"
        )
    return str(uri.getPath())


def add_files(
    spark: SparkSession, location: str, files: Sequence[DataFile], transaction: tuple[str, int] | None
) -> None:
    """Adds the rows of `files` in one commit, an append as Spark's own. Under a `transaction`, an application and its
    number, nothing is done where the table knows that number of it, or a later one, already."""
    jvm: Any = _jvm(spark)
    delta, scala = jvm.org.apache.spark.sql.delta, jvm.org.apache.spark.api.python.PythonUtils
    none = jvm.scala.Option.empty()
    commit = delta.DeltaLog.forTable(spark._jsparkSession, location).startTransaction(none, none)
    actions = [
        delta.actions.AddFile(
            file.path, scala.toScalaMap({}), file.size_bytes, file.modified_ms, True, file.statistics,
            None, None, *[none] * 5,
        )
        for file in files
    ]  # fmt: skip
    if transaction is not None:
        application, number = transaction
        if commit.txnVersion(application) >= number:
            return
        now_ms = jvm.scala.Option.apply(time.time_ns() // 1_000_000)
        actions.append(delta.actions.SetTransaction(application, number, now_ms))
    unpartitioned = jvm.scala.Option.apply(scala.toSeq([]))
    append = delta.DeltaOperations.Write(jvm.org.apache.spark.sql.SaveMode.Append, unpartitioned, *[none] * 7)
    commit.commit(scala.toSeq(actions), append)


def _snapshot(spark: SparkSession, location: str, *, is_just_loaded: bool = False) -> Any:
    log = _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location)
    if is_just_loaded:
        return log.unsafeVolatileSnapshot()
    return log.update(*(getattr(log, f"update$default${number}")() for number in (1, 2, 3)))


def _jvm(spark: SparkSession) -> Any:
    assert spark._jvm is not None  # a classic session, not a client of Spark Connect
    return spark._jvm
