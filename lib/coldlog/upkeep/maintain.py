"""maintain: are the tables as small and as fast to read as they can be?

Four things, none of which changes an answer:

- Index rows of segments that are gone, and were gone `deleted_after_hours` ago already, are dropped. What was known
  that long ago is asked of the table's own past; where that is not kept, nothing is dropped. The segment's own row
  stays, as one that is not indexed: if it comes back, it is indexed again. The newest build keeps its rows, so that
  build numbers never come twice.
- OPTIMIZE puts small files together, in the order of the clustering.
- VACUUM removes files that no version of the last `vacuum_after_hours` needs. A week is the least: jobs that run, and
  questions about the past (`warehouse.as_of`), read old files.
- A checkpoint, so that a reader opens a table by one file instead of many commits, and Delta's own clean-up of its log.
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
from coldlog.tables.delta.table_storage import delta_storage_options
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.superseded_builds import last_build_number, remove_superseded

_HOUR_MS = 3_600_000
_VACUUM_LOGGING = "spark.databricks.delta.vacuum.logging.enabled"
_RETENTION, _DELTAS_RETENTION_HOURS = "delta.deletedFileRetentionDuration", 168
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """What maintenance made of a table: its files and bytes before and after, and what was removed from the store."""

    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    removed_files: int
    removed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSummary:
    """`dropped_segments` lost their index rows."""

    dropped_segments: int
    tables: tuple[TableMaintenance, ...]


def maintain_tables(
    warehouse: Warehouse, settings: MaintenanceSettings, *, now_ms: int | None = None
) -> MaintenanceSummary:
    """Drops, compacts, vacuums and checkpoints, table by table; cut anywhere, the next run goes on.

    A `UsageError` where what was gone long enough ago could not be asked, because VACUUM has removed it.
    """
    if settings.deleted_after_hours > settings.vacuum_after_hours:
        raise UsageError(
            f"maintenance.deleted_after_hours={settings.deleted_after_hours} reaches back behind what "
            f"maintenance.vacuum_after_hours={settings.vacuum_after_hours} keeps; make it no larger"
        )
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    dropped = drop_deleted(warehouse, now - settings.deleted_after_hours * _HOUR_MS)
    tables = tuple(maintain_table(warehouse, table, settings) for table in ALL_TABLES)
    return MaintenanceSummary(dropped_segments=dropped, tables=tables)


def drop_deleted(warehouse: Warehouse, before_ms: int) -> int:
    """Drops the index rows of segments that were gone at that time; returns how many segments these are."""
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
        # A run that was cut between mark and removal left rows to remove.
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
        warehouse.merge(SEGMENTS, marks, update=("superseded_build_numbers", "build_number", "index_depth"))
    remove_superseded(warehouse)
    return count


def _read_past(warehouse: Warehouse, moment_ms: int) -> Warehouse | None:
    """The warehouse as it was then; None where it was not there yet, or is no longer known."""
    past = Warehouse(spark=warehouse.spark, uri=warehouse.uri, as_of=str(moment_ms))
    try:
        return past if past.version(SEGMENTS) is not None else None
    except UsageError:
        return None


def maintain_table(warehouse: Warehouse, table: TableDefinition, settings: MaintenanceSettings) -> TableMaintenance:
    """Compacts, vacuums and checkpoints one table."""
    spark, name = warehouse.spark, warehouse.identifier(table)
    log = _log(warehouse, table)
    files_before, bytes_before = _size(log)
    _keep_files(warehouse, table, log, settings.vacuum_after_hours)
    if files_before > 1:
        with warehouse.commits():
            spark.sql(f"OPTIMIZE {name}")
    with warehouse.commits(), _vacuum_options(warehouse), _silent_console(spark):
        spark.sql(f"VACUUM {name}")
    log = _log(warehouse, table)
    removed_files, removed_bytes = _vacuumed(log)
    log.create_checkpoint()
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
    """Says in the table itself how long files of older versions stay: VACUUM goes by that, whatever it is told, and so
    does who writes checkpoints, which forget by then which files these are."""
    kept = log.metadata().configuration.get(_RETENTION, f"interval {_DELTAS_RETENTION_HOURS} hours")
    wanted = f"interval {int(hours)} hours"
    if kept != wanted:
        with warehouse.commits():
            warehouse.spark.sql(
                f"ALTER TABLE {warehouse.identifier(table)} SET TBLPROPERTIES ('{_RETENTION}' = '{wanted}')"
            )


def _log(warehouse: Warehouse, table: TableDefinition) -> DeltaTable:
    location = warehouse.location(table)
    return DeltaTable(location, storage_options=delta_storage_options(location))


def _size(log: DeltaTable) -> tuple[int, int]:
    """Files and bytes."""
    sizes = pa.table(log.get_add_actions(flatten=True)).column("size_bytes")
    return len(sizes), pc.sum(sizes).as_py() or 0


@contextmanager
def _vacuum_options(warehouse: Warehouse) -> Iterator[None]:
    """Delta notes in a table's history what a VACUUM removed, where that is wanted; and it lists a folder, be it empty,
    in as many tasks as Spark may for any source, 10,000 by default: a table's few folders need a task a core."""
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
    """Delta prints what a VACUUM removed (`VacuumCommand.logVacuumEnd`), and nothing keeps it from that; stdout is the
    job's, which shows it of all tables. Scala's console is a thread's own, and a thread here has one of the JVM's."""
    jvm: Any = spark._jvm
    # `withOut`, the public way, takes a function of Scala's.
    console = getattr(jvm, "scala.Console$").__getattr__("MODULE$")
    shown = console.out()
    console.setOutDirect(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    try:
        yield
    finally:
        console.setOutDirect(shown)


def _vacuumed(log: DeltaTable) -> tuple[int, int]:
    """Files and bytes that the last VACUUM set out to remove."""
    started = next((each for each in log.history(4) if each.get("operation") == "VACUUM START"), {})
    metrics = started.get("operationMetrics", {})
    return int(metrics.get("numFilesToDelete", 0)), int(metrics.get("sizeOfDataToDelete", 0))
