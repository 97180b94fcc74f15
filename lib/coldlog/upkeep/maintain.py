"""Compact the tables and remove files and index rows that are no longer needed.

Maintenance does four things, and none of them changes an answer:

- It drops index rows of segments that are gone and were already gone `deleted_after_hours` ago. An old version of the
  table shows which these are; if that version is not kept, nothing is dropped. The segment's row in `segments` stays,
  as not indexed: if the segment comes back, it is indexed again. The newest build keeps its rows, so that a build
  number is never used twice.
- It joins small files in the order of the clustering (`sorted_files`). Large tables are left to OPTIMIZE.
- A checkpoint lets a reader open a table from one file instead of many commits.
- It removes files and entries of the log that no version of the last `vacuum_after_hours` needs (`unneeded_files`). The
  minimum is a week, because running jobs and reads of the past (`warehouse.as_of`) use old files. A table with a
  `delta.logRetentionDuration` of its own keeps the entries for that time.

Spark starts only for tables with many rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.model.states import IndexStatus
from coldlog.runtime.settings import MaintenanceSettings
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import NoTableError, commit_ms, list_table_files, read_file_rows
from coldlog.tables.delta.log_check import check_log, create_checkpoint
from coldlog.tables.delta.publish_manifest import publish_manifest
from coldlog.tables.delta.row_edits import Key, Row, key_of
from coldlog.tables.delta.table_storage import open_newest
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.sorted_files import SORTED_TABLES, join_files, sort_files
from coldlog.upkeep.superseded_builds import remove_superseded
from coldlog.upkeep.unneeded_files import remove_old_entries, remove_unneeded

_HOUR_MS = 3_600_000
_FILES_KEPT, _LOG_KEPT = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_DELTAS_HOURS = 168
"""How long Delta keeps removed files if the table does not say it."""
_DROP_COLUMNS = (
    *SEGMENTS.key, "index_status", "build_number", "served_from_offset", "superseded_build_numbers",
)  # fmt: skip


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
    tables = tuple(maintain_table(warehouse, table, settings, now_ms=now) for table in ALL_TABLES)
    publish_manifest(warehouse)
    return MaintenanceSummary(dropped_segments=dropped, tables=tables)


def drop_deleted(warehouse: Warehouse, before_ms: int) -> int:
    """Drop the index rows of segments that were gone at that time; return the number of these segments."""
    rows = warehouse.rows_if_small(SEGMENTS, _DROP_COLUMNS)
    count = _mark_in_tasks(warehouse, before_ms) if rows is None else _mark_here(warehouse, rows, before_ms)
    # A run that was killed after it marked builds left rows that must be removed, too.
    remove_superseded(warehouse)
    return count


def _mark_here(warehouse: Warehouse, rows: list[Row], before_ms: int) -> int:
    """Mark the builds of the segments that were gone at that time as superseded, in this process."""
    newest = max((row["build_number"] for row in rows if row["build_number"] is not None), default=0)
    gone = [
        row
        for row in rows
        if row["index_status"] == IndexStatus.GONE.value
        and row["build_number"] is not None
        and row["build_number"] < newest
        and row["served_from_offset"] is None
    ]
    then = _gone_at(warehouse, before_ms) if gone else set()
    marks: list[Row] = [
        {name: row[name] for name in SEGMENTS.key}
        | {
            "superseded_build_numbers": sorted({*(row["superseded_build_numbers"] or ()), row["build_number"]}),
            "build_number": None,
            "index_depth": None,
        }
        for row in gone
        if key_of(SEGMENTS, row) in then
    ]
    warehouse.merge(SEGMENTS, marks, update=("superseded_build_numbers", "build_number", "index_depth"))
    return len(marks)


def _gone_at(warehouse: Warehouse, moment_ms: int) -> set[Key]:
    """The keys of the segments that were gone at that moment; none if that version of the table is not kept."""
    try:
        files = list_table_files(warehouse.data_location(SEGMENTS), SEGMENTS, [], as_of_ms=moment_ms)
    except NoTableError:
        return set()
    committed_ms = commit_ms(files.location, files.version)
    if committed_ms is None or committed_ms > moment_ms:
        return set()
    rows = read_file_rows(files, (*SEGMENTS.key, "index_status"))
    return {key_of(SEGMENTS, row) for row in rows if row["index_status"] == IndexStatus.GONE.value}


def _mark_in_tasks(warehouse: Warehouse, before_ms: int) -> int:
    """As `_mark_here`, of many segments."""
    is_gone = F.col("index_status") == IndexStatus.GONE.value
    newest = warehouse.greatest(SEGMENTS, "build_number") or 0
    gone = warehouse.read(SEGMENTS).where(
        is_gone
        & F.col("build_number").isNotNull()
        & (F.col("build_number") < newest)
        & F.col("served_from_offset").isNull()
    )
    past = _read_past(warehouse, before_ms) if gone.head(1) else None
    if past is None:
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
    return count


def _read_past(warehouse: Warehouse, moment_ms: int) -> Warehouse | None:
    """Open the warehouse as of that moment; None if it did not exist or its versions are no longer kept."""
    past = Warehouse(spark=warehouse.spark, uri=warehouse.uri, as_of=str(moment_ms))
    try:
        return past if past.version(SEGMENTS) is not None else None
    except UsageError:
        return None


def maintain_table(
    warehouse: Warehouse, table: TableDefinition, settings: MaintenanceSettings, *, now_ms: int | None = None
) -> TableMaintenance:
    """Compact one table, write its checkpoint, and remove what is no longer needed."""
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    location, hours = warehouse.data_location(table), int(settings.vacuum_after_hours)
    log = _log(warehouse, table)
    files_before, bytes_before = _size(log)
    _keep_files(warehouse, table, log, hours)
    is_joined = (sort_files if table in SORTED_TABLES else join_files)(warehouse, table)
    if files_before > 1 and not is_joined:
        with warehouse.commits(), warehouse.encodings(table):
            warehouse.spark.sql(f"OPTIMIZE {warehouse.identifier(table)}")
    with warehouse.commits():
        log = _log(warehouse, table)
        create_checkpoint(log, warehouse.location(table))
        if _LOG_KEPT in log.metadata().configuration:  # a user's wish
            log.cleanup_metadata()
        else:
            remove_old_entries(location, now - hours * _HOUR_MS)
        removed_files, removed_bytes = remove_unneeded(location, now - hours * _HOUR_MS)
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

    Writers of checkpoints use this property: after that time a checkpoint no longer lists removed files.
    """
    kept = log.metadata().configuration.get(_FILES_KEPT, f"interval {_DELTAS_HOURS} hours")
    wanted = f"interval {hours} hours"
    if kept != wanted:
        with warehouse.commits():
            warehouse.spark.sql(
                f"ALTER TABLE {warehouse.identifier(table)} SET TBLPROPERTIES ('{_FILES_KEPT}' = '{wanted}')"
            )


def _log(warehouse: Warehouse, table: TableDefinition) -> DeltaTable:
    location = warehouse.location(table)
    check_log(location)
    return open_newest(location)


def _size(log: DeltaTable) -> tuple[int, int]:
    """Count files and bytes."""
    sizes = pa.table(log.get_add_actions(flatten=True)).column("size_bytes")
    return len(sizes), pc.sum(sizes).as_py() or 0
