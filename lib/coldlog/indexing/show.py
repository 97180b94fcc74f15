"""Print the tables that a person sees at the end of a job: partitions, problems, maintenance, sample lookups."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from pyspark.sql import Row

from coldlog.lookups.list_offsets import ListOffsets, LookupOptions, open_lookup
from coldlog.lookups.questions import NOT_EXACT
from coldlog.lookups.served_index import list_warehouse_files
from coldlog.model.list_offsets import ErrorCode
from coldlog.runtime.console import human_bytes, human_timestamp
from coldlog.runtime.job import Job
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.discrepancies import DISCREPANCIES, Severity
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.delta.files.table_files import TableFiles, read_file_rows
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.maintain import MaintenanceSummary

_SHOWN_ROWS = 40
_SHOWN_ERRORS = 10
_OF_PARTITIONS = (
    "segment_count", "served_segment_count", "earliest_offset", "latest_tiered_offset", "max_timestamp_ms",
    "record_count", "size_bytes", "gap_count",
)  # fmt: skip
_OF_QUARANTINE = ("object_name", "position", "reason", "expected", "found")
_SIZE_OF_PARTITION = ("topic", "partition", "is_current", "record_count", "max_timestamp_ms")
_OUTCOMES = {ErrorCode.NONE: "FOUND", ErrorCode.LOCAL_REQUIRED: "LATER_THAN_ARCHIVE"}
"""As the SQL function calls them; other errors have the same names."""


def show_partitions(job: Job, warehouse: Warehouse) -> None:
    """Print one row per partition."""
    rows = _sorted_rows(warehouse, PARTITION_METADATA, _OF_PARTITIONS)
    job.console.result()
    job.console.table(
        ["topic", "partition", "segments", "served", "offsets", "newest record", "records", "log bytes", "gaps"],
        [
            (
                row["topic"],
                row["partition"],
                row["segment_count"],
                row["served_segment_count"],
                "" if row["earliest_offset"] is None else f"{row['earliest_offset']}..{row['latest_tiered_offset']}",
                human_timestamp(row["max_timestamp_ms"]),
                row["record_count"],
                human_bytes(row["size_bytes"]),
                row["gap_count"],
            )
            for row in rows[:_SHOWN_ROWS]
        ],
    )
    if len(rows) > _SHOWN_ROWS:
        job.console.result(f"... and {len(rows) - _SHOWN_ROWS} more; see {warehouse.location(PARTITION_METADATA)}")


def _sorted_rows(warehouse: Warehouse, table: TableDefinition, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read the table's rows in the order of its key."""
    rows: list[dict[str, Any]] = warehouse.small_rows(table, [*dict.fromkeys((*table.key, *columns))])
    return sorted(rows, key=lambda row: [row[name] for name in table.key])


def show_quarantine(job: Job, warehouse: Warehouse) -> None:
    """Print one row per segment in quarantine."""
    rows = _sorted_rows(warehouse, QUARANTINE, _OF_QUARANTINE)
    if rows:
        job.console.result()
        job.console.table(
            ["quarantined object", "position", "reason", "expected", "found"],
            [tuple(row[name] for name in _OF_QUARANTINE) for row in rows[:_SHOWN_ROWS]],
        )
    if len(rows) > _SHOWN_ROWS:
        job.console.result(f"... and {len(rows) - _SHOWN_ROWS} more; see {warehouse.location(QUARANTINE)}")


_PROBLEM_FACTS = ("topic", "partition", "start_offset", "segment_id", "expected", "found")


def _problem_cells(row: Row | dict[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("kind", *_PROBLEM_FACTS))


def show_errors(job: Job, warehouse: Warehouse) -> None:
    """Print the first discrepancies of severity error."""
    rows = _sorted_rows(warehouse, DISCREPANCIES, ("severity", *_PROBLEM_FACTS))
    rows = [row for row in rows if row["severity"] == Severity.ERROR.value]
    job.console.result()
    job.console.table(["discrepancy", *_PROBLEM_FACTS], [_problem_cells(row) for row in rows[:_SHOWN_ERRORS]])
    if len(rows) > _SHOWN_ERRORS:
        job.console.result("... and more; see coldlog.archive_problems")


def show_problems(job: Job) -> dict[str, int]:
    """Print the worst problems; return the number of problems of each severity."""
    problems = job.spark.table("coldlog.archive_problems")
    counts = {row["severity"]: row["count"] for row in problems.groupBy("severity").count().collect()}
    rows = problems.limit(_SHOWN_ROWS).collect() if counts else []
    if rows:
        job.console.table(
            ["severity", "problem", *_PROBLEM_FACTS, "advice"],
            [(row["severity"], *_problem_cells(row), row["advice"]) for row in rows],
        )
    if sum(counts.values()) > len(rows):
        job.console.result(f"... and {sum(counts.values()) - len(rows)} more; see coldlog.archive_problems")
    return counts


def show_maintenance(job: Job, summary: MaintenanceSummary) -> None:
    """Print one row per table that was compacted or from which files were removed."""
    changed = [table for table in summary.tables if table.removed_files or table.files_after != table.files_before]
    if changed:
        job.console.result()
        job.console.table(
            ["table", "files before", "after", "bytes before", "after", "removed files", "saved"],
            [
                (
                    table.table,
                    table.files_before,
                    table.files_after,
                    human_bytes(table.bytes_before),
                    human_bytes(table.bytes_after),
                    table.removed_files,
                    human_bytes(table.removed_bytes),
                )
                for table in changed
            ],
        )


def show_lookups(job: Job, warehouse: Warehouse) -> None:
    """Print three lookups in the partition with the most records: time 0, its newest record, and one ms later."""
    files = list_warehouse_files(warehouse.uri)
    largest = _largest_partition(files.partitions)
    if largest is None:
        return
    topic, partition, newest_ms = largest
    index, lookup = open_lookup(files, LookupOptions())
    with closing(index):
        timestamps_ms = (0, newest_ms, min(newest_ms + 1, 2**63 - 1))
        rows = [_lookup_cells(lookup, topic, partition, timestamp_ms) for timestamp_ms in timestamps_ms]
    job.console.result()
    job.console.table(["lookup", "offset", "timestamp", "leader epoch", "outcome"], rows)


def _largest_partition(partitions: TableFiles) -> tuple[str, int, int] | None:
    """Return topic, partition and largest timestamp of the partition with the most records."""
    rows: list[Any] = list(read_file_rows(partitions, _SIZE_OF_PARTITION))
    current = [row for row in rows if row["is_current"]]
    with_times = [row for row in current if row["max_timestamp_ms"] is not None and row["max_timestamp_ms"] >= 0]
    if not with_times:
        return None
    row = min(with_times, key=lambda row: (-row["record_count"], row["topic"], row["partition"]))
    return row["topic"], row["partition"], row["max_timestamp_ms"]


def _lookup_cells(lookup: ListOffsets, topic: str, partition: int, timestamp_ms: int) -> tuple[object, ...]:
    answers = lookup.answer_one(topic, partition, timestamp_ms)
    found, error = answers.found(0), ErrorCode(int(answers.errors[0]))
    outcome = _OUTCOMES.get(error, error.name)
    return (
        f"offset_for_timestamp('{topic}', {partition}, {timestamp_ms})",
        None if found is None else found.offset,
        human_timestamp(None if found is None else found.timestamp_ms),
        None if found is None else found.leader_epoch,
        outcome if answers.exactness[0] != NOT_EXACT else f"{outcome}, not exact",
    )
