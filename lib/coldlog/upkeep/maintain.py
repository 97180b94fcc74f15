"""Compact the tables and remove files and index rows that are no longer needed.

Maintenance does four things, and none of them changes an answer:

- It drops index rows of segments that are gone and were already gone `deleted_after_hours` ago. An old version of the
  table shows which these are; if that version is not kept, nothing is dropped. The segment's row in `segments` stays,
  as not indexed: if the segment comes back, it is indexed again. The newest build keeps its rows, so that a build
  number is never used twice.
- OPTIMIZE compacts small files in the order of the clustering. The files of `segments` and `segment_events` are sorted
  instead (`sorted_files`), so that a run over few partitions reads and writes few rows.
- VACUUM removes files that no version of the last `vacuum_after_hours` needs. The minimum is a week, because running
  jobs and reads of the past (`warehouse.as_of`) use old files. A table without such files is left as it is.
- A checkpoint lets a reader open a table from one file instead of many commits, and Delta cleans up its log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.model.states import IndexStatus
from coldlog.runtime.settings import MaintenanceSettings
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.log_check import check_log, create_checkpoint
from coldlog.tables.delta.publish_manifest import publish_manifest
from coldlog.tables.delta.table_storage import open_delta
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.sorted_files import SORTED_TABLES, sort_files
from coldlog.upkeep.superseded_builds import last_build_number, remove_superseded

_HOUR_MS = 3_600_000
_VACUUM_LOGGING = "spark.databricks.delta.vacuum.logging.enabled"
_RETENTION, _DELTAS_RETENTION_HOURS = "delta.deletedFileRetentionDuration", 168
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """Files and bytes of a table before and after maintenance, and what was removed from the store."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    removed_files: int
    removed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSummary:
    """What maintenance did; `dropped_segments` counts the segments whose index rows were dropped."""

    dropped_segments: int
    tables: tuple[TableMaintenance, ...]


def maintain_tables(
    warehouse: Warehouse, settings: MaintenanceSettings, *, now_ms: int | None = None
) -> MaintenanceSummary:
    """Drop, compact, vacuum and checkpoint, table by table; after a killed run, the next run continues.

    Settings under which VACUUM removes the version that shows which segments were gone raise `UsageError`.
    """
    if settings.deleted_after_hours > settings.vacuum_after_hours:
        raise UsageError(
            f"maintenance.deleted_after_hours={settings.deleted_after_hours} needs older versions than "
            f"maintenance.vacuum_after_hours={settings.vacuum_after_hours} keeps; make it no larger"
        )
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    dropped = drop_deleted(warehouse, now - settings.deleted_after_hours * _HOUR_MS)
    tables = tuple(maintain_table(warehouse, table, settings) for table in ALL_TABLES)
    publish_manifest(warehouse)
    return MaintenanceSummary(dropped_segments=dropped, tables=tables)


def drop_deleted(warehouse: Warehouse, before_ms: int) -> int:
    """Drop the index rows of segments that were gone at that time; return the number of these segments."""
    is_gone = F.col("index_status") == IndexStatus.GONE.value
    newest = last_build_number(warehouse)
    gone = warehouse.read(SEGMENTS).where(
        is_gone
        & F.col("build_number").isNotNull()
        & (F.col("build_number") < newest)
        & F.col("served_from_offset").isNull()
    )
    past = _read_past(warehouse, before_ms) if gone.head(1) else None
    if past is None:
        # A run that was killed after it marked builds left rows that must be removed.
        remove_superseded(warehouse)
        return 0
    then = past.read(SEGMENTS).where(is_gone).select(*SEGMENTS.key)
    unknown = F.lit(None)
    marks = gone.join(then, list(SEGMENTS.key), "left_semi").select(
        *SEGMENTS.key,
        F.array_union(
            F.ifnull("superseded_build_numbers", F.array().cast("array<bigint>")), F.array("build_number")
        ).alias("superseded_build_numbers"),
        unknown.cast("bigint").alias("build_number"),
        unknown.cast("string").alias("index_depth"),
    )
    count = marks.count()
    if count:
        warehouse.merge(
            SEGMENTS, marks, update=("superseded_build_numbers", "build_number", "index_depth"), count=count
        )
    remove_superseded(warehouse)
    return count


def _read_past(warehouse: Warehouse, moment_ms: int) -> Warehouse | None:
    """Open the warehouse as of that moment; None if it did not exist or its versions are no longer kept."""
    past = Warehouse(spark=warehouse.spark, uri=warehouse.uri, as_of=str(moment_ms))
    try:
        return past if past.version(SEGMENTS) is not None else None
    except UsageError:
        return None


def maintain_table(warehouse: Warehouse, table: TableDefinition, settings: MaintenanceSettings) -> TableMaintenance:
    """Compact, vacuum and checkpoint one table."""
    spark, name = warehouse.spark, warehouse.identifier(table)
    log = _log(warehouse, table)
    files_before, bytes_before = _size(log)
    _keep_files(warehouse, table, log, settings.vacuum_after_hours)
    is_sorted = table in SORTED_TABLES and sort_files(warehouse, table)
    if files_before > 1 and not is_sorted:
        with warehouse.commits(), warehouse.encodings(table):
            spark.sql(f"OPTIMIZE {name}")
    removed_files = removed_bytes = 0
    if _has_unneeded_files(_log(warehouse, table), settings.vacuum_after_hours):
        with warehouse.commits(), _vacuum_options(warehouse), _silent_console(spark):
            spark.sql(f"VACUUM {name}")
        removed_files, removed_bytes = _vacuumed(_log(warehouse, table))
    with warehouse.commits():
        log = _log(warehouse, table)
        create_checkpoint(log, warehouse.location(table))
        log.cleanup_metadata()
    files_after, bytes_after = _size(log)
    return TableMaintenance(
        table=table.name,
        files_before=files_before,
        files_after=files_after,
        bytes_before=bytes_before,
        bytes_after=bytes_after,
        removed_files=removed_files,
        removed_bytes=removed_bytes,
    )


def _keep_files(warehouse: Warehouse, table: TableDefinition, log: DeltaTable, hours: int) -> None:
    """Store in the table how long files of older versions are kept.

    VACUUM uses this property and ignores its argument. Writers of checkpoints use it too: after that time a checkpoint
    no longer lists removed files.
    """
    kept = log.metadata().configuration.get(_RETENTION, f"interval {_DELTAS_RETENTION_HOURS} hours")
    wanted = f"interval {int(hours)} hours"
    if kept != wanted:
        with warehouse.commits():
            warehouse.spark.sql(
                f"ALTER TABLE {warehouse.identifier(table)} SET TBLPROPERTIES ('{_RETENTION}' = '{wanted}')"
            )


def _has_unneeded_files(log: DeltaTable, hours: int) -> bool:
    """Whether VACUUM would remove a file. It starts some jobs and makes two commits also where there is none."""
    return bool(log.vacuum(int(hours), dry_run=True, enforce_retention_duration=False, full=True))


def _log(warehouse: Warehouse, table: TableDefinition) -> DeltaTable:
    location = warehouse.location(table)
    check_log(location)
    return open_delta(location)


def _size(log: DeltaTable) -> tuple[int, int]:
    """Count files and bytes."""
    sizes = pa.table(log.get_add_actions(flatten=True)).column("size_bytes")
    return len(sizes), pc.sum(sizes).as_py() or 0


@contextmanager
def _vacuum_options(warehouse: Warehouse) -> Iterator[None]:
    """Make Delta record in the table's history what VACUUM removed, and list folders with one task per core.

    By default, Delta lists even an empty folder with as many tasks as Spark allows for any source, 10,000.
    """
    session = warehouse.spark
    listing_tasks = str(session.conf.get(_LISTING_TASKS))
    session.conf.set(_VACUUM_LOGGING, "true")
    session.conf.set(_LISTING_TASKS, str(min(int(listing_tasks), session.sparkContext.defaultParallelism)))
    try:
        yield
    finally:
        session.conf.set(_LISTING_TASKS, listing_tasks)
        session.conf.unset(_VACUUM_LOGGING)


@contextmanager
def _silent_console(spark: SparkSession) -> Iterator[None]:
    """Discard the line that Delta prints about a VACUUM (`VacuumCommand.logVacuumEnd`); no option turns it off.

    The job reports the removed files of all tables itself. Scala's console belongs to one thread, and a Python thread
    has its own thread in the JVM.
    """
    jvm: Any = spark._jvm
    # The public method, `withOut`, needs a Scala function.
    console = getattr(jvm, "scala.Console$").__getattr__("MODULE$")
    shown = console.out()
    console.setOutDirect(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    try:
        yield
    finally:
        console.setOutDirect(shown)


def _vacuumed(log: DeltaTable) -> tuple[int, int]:
    """Count the files and bytes that the last VACUUM planned to remove."""
    started = next((entry for entry in log.history(4) if entry.get("operation") == "VACUUM START"), {})
    metrics = started.get("operationMetrics", {})
    return int(metrics.get("numFilesToDelete", 0)), int(metrics.get("sizeOfDataToDelete", 0))
