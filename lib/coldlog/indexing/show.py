"""show: what does a person see of a warehouse when the pipeline is done?"""

from __future__ import annotations

from pyspark.sql import Row
from pyspark.sql import functions as F

from coldlog.runtime.console import human_bytes, human_timestamp
from coldlog.runtime.job import Job
from coldlog.tables.definitions.discrepancies import DISCREPANCIES, Severity
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.maintain import MaintenanceSummary

_SHOWN_ROWS = 40
_SHOWN_ERRORS = 10


def show_partitions(job: Job, warehouse: Warehouse) -> None:
    """A row a partition."""
    metadata = warehouse.read(PARTITION_METADATA).orderBy("topic", "partition", "topic_id")
    rows = metadata.limit(_SHOWN_ROWS + 1).collect()
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
        job.console.result(
            f"... and {metadata.count() - _SHOWN_ROWS} more; see {warehouse.location(PARTITION_METADATA)}"
        )


def show_quarantine(job: Job, warehouse: Warehouse) -> None:
    """A row a segment that could not be used."""
    quarantine = warehouse.read(QUARANTINE)
    rows = quarantine.orderBy(*QUARANTINE.key).limit(_SHOWN_ROWS + 1).collect()
    if rows:
        job.console.result()
        job.console.table(
            ["in quarantine", "position", "reason", "expected", "found"],
            [
                (row["object_name"], row["position"], row["reason"], row["expected"], row["found"])
                for row in rows[:_SHOWN_ROWS]
            ],
        )
    if len(rows) > _SHOWN_ROWS:
        job.console.result(f"... and {quarantine.count() - _SHOWN_ROWS} more; see {warehouse.location(QUARANTINE)}")


_PROBLEM_FACTS = ("topic", "partition", "start_offset", "segment_id", "expected", "found")


def _problem_cells(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("kind", *_PROBLEM_FACTS))


def show_errors(job: Job, warehouse: Warehouse) -> None:
    """The first segments that are not as they were announced and cannot be trusted."""
    errors = warehouse.read(DISCREPANCIES).where(F.col("severity") == Severity.ERROR.value)
    rows = errors.orderBy(*DISCREPANCIES.key).limit(_SHOWN_ERRORS + 1).collect()
    job.console.result()
    job.console.table(["not as announced", *_PROBLEM_FACTS], [_problem_cells(row) for row in rows[:_SHOWN_ERRORS]])
    if len(rows) > _SHOWN_ERRORS:
        job.console.result("... and more; see coldlog.archive_problems")


def show_problems(job: Job) -> dict[str, int]:
    """The worst of everything that is wrong; returns how many problems of each severity there are."""
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
    """A row a table that became smaller, or of which something was removed."""
    changed = [each for each in summary.tables if each.removed_files or each.files_after != each.files_before]
    if changed:
        job.console.result()
        job.console.table(
            ["table", "files", "became", "bytes", "became", "removed files", "saved"],
            [
                (
                    each.table,
                    each.files_before,
                    each.files_after,
                    human_bytes(each.bytes_before),
                    human_bytes(each.bytes_after),
                    each.removed_files,
                    human_bytes(each.removed_bytes),
                )
                for each in changed
            ],
        )


def show_lookups(job: Job, warehouse: Warehouse) -> None:
    """Three lookups into the partition with the most records: its beginning, its newest record, and later than that."""
    largest = (
        warehouse.read(PARTITION_METADATA)
        .where("is_current AND max_timestamp_ms >= 0")
        .orderBy(F.desc("record_count"), "topic", "partition")
        .head(1)
    )
    if not largest:
        return
    topic, partition, newest_ms = (largest[0][name] for name in ("topic", "partition", "max_timestamp_ms"))
    asked = (0, newest_ms, min(newest_ms + 1, 2**63 - 1))
    # One query, since each takes as long as three.
    call = (
        "SELECT asked.timestamp_ms, found.* FROM VALUES (0, :first), (1, :newest), (2, :later) "
        "AS asked(number, timestamp_ms), LATERAL offset_for_timestamp(:topic, :partition, asked.timestamp_ms) AS found "
        "ORDER BY asked.number"
    )
    times = dict(zip(("first", "newest", "later"), asked, strict=True))
    rows = job.spark.sql(call, args={"topic": topic, "partition": partition, **times}).collect()
    answers = [
        (
            f"offset_for_timestamp('{topic}', {partition}, {row['timestamp_ms']})",
            row["offset"],
            human_timestamp(row["offset_timestamp_ms"]),
            row["leader_epoch"],
            row["outcome"],
        )
        for row in rows
    ]
    job.console.result()
    job.console.table(["lookup", "offset", "timestamp", "leader epoch", "outcome"], answers)
