"""Read facts about a table from Delta's log without a query, and add written files to a table.

Delta 4.4.0 keeps the newest snapshot of each table in memory, and writes a checksum with the number of files beside
each commit. The Python API shows neither, and it cannot add files that are already written. So this module calls the
JVM. While Spark has not been started (`coldlog.runtime.spark.late_session`), delta-rs tells these facts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.runtime.spark.late_session import is_late
from coldlog.runtime.spark.spark_failures import LOG_IS_DAMAGED, explain_failure
from coldlog.tables.delta.as_of import Commit
from coldlog.tables.delta.files.data_files import DataFile
from coldlog.tables.delta.files.file_checksums import checksums_path, damaged
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder, plain_location
from coldlog.tables.delta.log_check import LOG_FOLDER
from coldlog.tables.delta.log_files import open_log
from coldlog.tables.delta.table_storage import open_newest, require_reachable, storage_error


def newest_version(spark: SparkSession, location: str) -> int:
    """Return the table's newest version; -1 if there is no table."""
    if is_late(spark):
        return -1 if (table := _open(location)) is None else table.version()
    return int(_snapshot(spark, location).version())


def stored_column_names(spark: SparkSession, location: str) -> list[str]:
    """List the columns of the table, which an older release may have created; empty if there is no table."""
    if is_late(spark):
        return [] if (table := _open(location)) is None else [field.name for field in table.schema().fields]
    return list(_snapshot(spark, location).schema().fieldNames())


def file_count_if_known(spark: SparkSession, location: str) -> int | None:
    """Count the files of the table's newest version; None if there is no table or no checksum.

    Commits of other writers may have no checksum.
    """
    if is_late(spark):
        return None if (table := _open(location)) is None else len(table.get_add_actions())
    snapshot = _snapshot(spark, location)
    # Not `numOfFilesIfKnown`, which starts a query.
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles()) if snapshot.version() >= 0 and checksum.isDefined() else None


def check_checkpoint(spark: SparkSession, location: str) -> None:
    """Let Spark read the newest checkpoint of a log, with what follows; `ColdlogError` names it if Spark cannot.

    Spark's own error names no file, and delta-rs reads fewer columns. A checkpoint with checksums is not read here: its
    bytes are checked. Delta keeps what it read, so that the first query does not read it again.
    """
    pointer = open_log(location).read("_last_checkpoint")
    if pointer is None:
        return
    try:
        name = f"{json.loads(pointer)['version']:020d}.checkpoint.parquet"
    except (ValueError, TypeError, KeyError):
        raise damaged(f"{location}/{LOG_FOLDER}/_last_checkpoint", "it is not the JSON of a checkpoint") from None
    folder = local_folder(location)
    if folder is not None and os.path.exists(checksums_path(os.path.join(folder, LOG_FOLDER, name))):
        return
    try:
        _snapshot(spark, location).numOfFiles()
    except Py4JJavaError as failed:
        why = unnamed_damage(failed, location)
        if why is None and explain_failure(failed) is not None:
            raise
        why = why or str(failed.java_exception).partition("\n")[0]
        raise damaged(f"{location}/{LOG_FOLDER}/{name}", f"Spark cannot read it ({why})") from failed


def unnamed_damage(failed: Py4JJavaError, location: str) -> str | None:
    """What Delta found wrong in the table's log, if a user would be told so without the table's name; else None."""
    explained = explain_failure(failed)
    if explained is not None:
        is_unnamed = explained.startswith(LOG_IS_DAMAGED) and location.rpartition("://")[2] not in explained
        return explained.removeprefix(f"{LOG_IS_DAMAGED}: ").partition(";")[0] if is_unnamed else None
    text = str(failed.java_exception).partition("\n")[0]
    return text.partition(": ")[2] if text.startswith("org.apache.spark.sql.delta.Delta") else None


def commit_text(spark: SparkSession, location: str, version: int) -> str:
    """Read the lines of a commit with Delta's own reader, so that every store works that works for Delta."""
    jvm, log = _jvm(spark), _delta_log(spark, location)
    path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
    return str(log.store().read(path, log.newDeltaHadoopConf()).mkString("\n"))


def find_data_location(spark: SparkSession, location: str) -> str:
    """Return where files of a table must be written without Spark: an absolute path, or a URI in a bucket.

    Any other place raises `UsageError`, for example a path on a cluster whose default file system is HDFS.
    """
    if bucket_and_prefix(location) is not None:
        return location
    if is_late(spark):  # only for a folder that Hadoop takes for the same folder
        return os.path.abspath(plain_location(location))
    path: Any = _jvm(spark).org.apache.hadoop.fs.Path(location)
    file_system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    uri = file_system.makeQualified(path).toUri()
    if uri.getScheme() != "file":
        raise UsageError(
            f"{location} is on {uri.getScheme()} here, but a warehouse must be in a folder that driver and workers "
            "share, or on S3: correct warehouse.uri, or Hadoop's fs.defaultFS"
        )
    return str(uri.getPath())


def add_files(
    spark: SparkSession, location: str, files: Sequence[DataFile], transactions: Sequence[tuple[str, int]]
) -> None:
    """Add the rows of `files` in one commit, like an append of Spark.

    `transactions` are applications and their numbers. If the table already has that number or a higher one of an
    application, nothing is done.
    """
    jvm: Any = _jvm(spark)
    delta, scala = jvm.org.apache.spark.sql.delta, jvm.org.apache.spark.api.python.PythonUtils
    none = jvm.scala.Option.empty()
    commit = _delta_log(spark, location).startTransaction(none, none)
    actions = [
        delta.actions.AddFile(
            file.path, scala.toScalaMap({}), file.size_bytes, file.modified_ms, True, file.statistics,
            None, None, *[none] * 5,
        )
        for file in files
    ]  # fmt: skip
    for application, number in transactions:
        if commit.txnVersion(application) >= number:
            return
        now_ms = jvm.scala.Option.apply(time.time_ns() // 1_000_000)
        actions.append(delta.actions.SetTransaction(application, number, now_ms))
    unpartitioned = jvm.scala.Option.apply(scala.toSeq([]))
    append = delta.DeltaOperations.Write(jvm.org.apache.spark.sql.SaveMode.Append, unpartitioned, *[none] * 7)
    commit.commit(scala.toSeq(actions), append)


def is_plainly_there(location: str) -> bool | None:
    """Whether a table is in a folder or a bucket, without Spark; None if only Spark can say what is wrong there.

    What is wrong with a log in a bucket is raised, as `storage_error` tells it.
    """
    place = plain_location(location)
    is_in_bucket = bucket_and_prefix(location) is not None
    if not is_in_bucket and not os.path.isdir(os.path.join(place, LOG_FOLDER)):
        return False
    try:
        open_newest(place)
    except TableNotFoundError:
        # delta-rs reports a bucket that it may not list as empty.
        return False if is_in_bucket and not require_reachable(f"{place}/{LOG_FOLDER}") else None
    except (DeltaError, OSError) as failed:
        if is_in_bucket:
            raise storage_error(failed, location) from None
        return None
    return True


def _open(location: str) -> DeltaTable | None:
    """Open the newest version without Spark; None if there is no table."""
    try:
        return open_newest(plain_location(location))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as failed:
        raise storage_error(failed, location) from None


def _snapshot(spark: SparkSession, location: str) -> Any:
    log = _delta_log(spark, location)
    return log.update(*(getattr(log, f"update$default${number}")() for number in (1, 2, 3)))


def _delta_log(spark: SparkSession, location: str) -> Any:
    return _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location)


def _jvm(spark: SparkSession) -> Any:
    assert spark._jvm is not None  # a classic session, not a client of Spark Connect
    return spark._jvm


def list_commits(spark: SparkSession, location: str) -> list[Commit]:
    """List every version in the table's log, the oldest first."""
    history = SparkTable.forPath(spark, location).history()
    rows = history.select("version", F.unix_millis("timestamp").alias("committed_ms")).orderBy("version").collect()
    return [Commit(version=row["version"], committed_ms=row["committed_ms"]) for row in rows]
