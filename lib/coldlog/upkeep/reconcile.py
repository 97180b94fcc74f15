"""Find segments whose announced events, listing and bytes disagree.

The table `segments` already has what the metadata topic announced, what the last scan listed and what the build read.
One pass over it finds the differences, and one merge updates the table `discrepancies`. Without a change there is no
commit. A partition without known events has no announcement to compare with. Only its incomplete copies, its lineage
and its transaction indexes are checked.

What a broker may be doing right now is not a fault. A started copy counts as in progress until a later copy of its
partition is announced, because a broker copies the segments of a partition one after another. A started deletion counts
as in progress too. Either counts as unfinished when the events continue for an hour without its end. Objects without an
event count as a copy in progress if they were written within an hour after the newest event that was read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.tables.definitions.discrepancies import DISCREPANCIES, DiscrepancyKind, Severity
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row, key_of
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep import discrepancies_by_columns as by_columns
from coldlog.upkeep.discrepancy_rules import INCARNATION, READ_COLUMNS, SEGMENT, PartitionFacts, discrepancies_of

_COMPARED = ("topic_id", "severity", "expected", "found", "advice")
_ROWS_HERE = 1_000
"""So many times `FEW_ROWS` segments are looked through here: 100,000 take 3 s, and a minute in Spark's tasks."""
_ROWS_AT_ONCE = 10_000
_STORED_COLUMNS = (*DISCREPANCIES.key, *_COMPARED, "first_seen_ms")
_UNSETTLED = {
    kind.value
    for kind in (
        DiscrepancyKind.ORPHAN,
        DiscrepancyKind.COPY_UNDERWAY,
        DiscrepancyKind.COPY_UNFINISHED,
        DiscrepancyKind.DELETION_UNDERWAY,
        DiscrepancyKind.DELETION_UNFINISHED,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSummary:
    """Counts of discrepancies by kind, and how many are new or were resolved since the last run."""

    counts: dict[str, int]
    new_count: int
    mended_count: int

    def count_of(self, severity: Severity) -> int:
        """Count the discrepancies of that severity."""
        return sum(self.counts.get(kind.value, 0) for kind in DiscrepancyKind if kind.severity is severity)


def reconcile(warehouse: Warehouse) -> ReconcileSummary:
    """Update `discrepancies` to the differences in `segments`."""
    segments = warehouse.small_table(SEGMENTS, READ_COLUMNS, times=_ROWS_HERE)
    stored = None if segments is None else warehouse.rows_if_small(DISCREPANCIES, _STORED_COLUMNS)
    newest_ms = None if warehouse.partitions is None else warehouse.greatest(SEGMENTS, "event_timestamp_ms")
    if segments is None or stored is None:
        summary = _update_with_spark(warehouse, _find_in_tasks(warehouse.read(SEGMENTS), newest_ms))
        return summary if warehouse.partitions is None else replace(summary, counts=_counts_of_all(warehouse))
    changes = _changes_here(_find_here(segments, newest_ms), stored)
    changed = [row for row in changes if row["change"] != "same"]
    warehouse.merge(DISCREPANCIES, changed, remove="is_mended")
    summary = _summary(Counter((str(row["kind"]), str(row["change"])) for row in changes))
    return summary if warehouse.partitions is None else replace(summary, counts=_counts_of_all(warehouse))


def _counts_of_all(warehouse: Warehouse) -> dict[str, int]:
    """Count the discrepancies of all partitions by kind."""
    return dict(Counter(str(row["kind"]) for row in warehouse.small_rows(DISCREPANCIES, ("kind",))))


def _update_with_spark(warehouse: Warehouse, wanted: DataFrame) -> ReconcileSummary:
    changes = _changes(wanted, warehouse.read(DISCREPANCIES)).persist()
    try:
        counted = {(row[0], row[1]): row[2] for row in changes.groupBy("kind", "change").count().collect()}
        changed_count = sum(count for (_, change), count in counted.items() if change != "same")
        if changed_count:
            changed = changes.where("change <> 'same'")
            warehouse.merge(DISCREPANCIES, changed, remove="is_mended", count=changed_count)
    finally:
        changes.unpersist()
    return _summary(counted)


def _summary(counted: Mapping[tuple[str, str], int]) -> ReconcileSummary:
    """Sum up how many rows have each kind and `change`."""
    counts: dict[str, int] = {}
    of_change = {"new": 0, "mended": 0, "changed": 0, "same": 0}
    for (kind, change), count in counted.items():
        of_change[change] += count
        if change != "mended":
            counts[kind] = counts.get(kind, 0) + count
    return ReconcileSummary(counts=counts, new_count=of_change["new"], mended_count=of_change["mended"])


def unsettled_partitions(warehouse: Warehouse) -> frozenset[tuple[str, int]]:
    """Return the partitions with discrepancies that the newest event of another partition can change: what may still be
    copied or deleted, also if the clocks of brokers differ."""
    rows = warehouse.small_rows(DISCREPANCIES, ("topic", "partition", "kind"))
    return frozenset((row["topic"], row["partition"]) for row in rows if row["kind"] in _UNSETTLED)


def _find_here(segments: pa.Table, newest_event_ms: int | None) -> list[Row]:
    """Return the rows of `discrepancies`, without their time. `newest_event_ms` is the time of the newest event of all
    partitions, if these are the segments of some."""
    of_partitions = by_columns.partition_facts(segments)
    newest_ms = by_columns.newest_event_ms(segments) if newest_event_ms is None else newest_event_ms
    segments = by_columns.maybe_named(segments)
    counts = pc.list_value_length(segments["objects"])
    segments = segments.drop_columns(["objects"]).append_column("object_count", counts)
    found = []
    for batch in segments.to_batches(max_chunksize=_ROWS_AT_ONCE):
        for row in batch.to_pylist():
            of_partition = of_partitions.get(tuple(row[name] for name in INCARNATION), PartitionFacts())
            found += discrepancies_of(row, of_partition, newest_ms)
    return found


def _find_in_tasks(segments: DataFrame, newest_event_ms: int | None) -> DataFrame:
    """Return what `_find_here` does."""
    announced = segments.where("state_source = 'events'")
    of_partition = announced.groupBy(*INCARNATION).agg(
        F.count("announced_start_offset").alias("placed_segment_count"),
        F.expr("max(event_timestamp_ms) FILTER (WHERE state LIKE 'COPY%')").alias("newest_copy_event_ms"),
        F.expr("min(start_offset) FILTER (WHERE announced_txn_index_empty)").alias("announces_empty_from_offset"),
    )
    if newest_event_ms is None:
        newest_event_ms = announced.agg(F.max("event_timestamp_ms")).collect()[0][0]
    # Spark takes long to hand lists to Python.
    counted = segments.select(*READ_COLUMNS).withColumn("object_count", F.size("objects")).drop("objects")
    joined = counted.join(F.broadcast(of_partition), list(INCARNATION), "left")
    columns = [*SEGMENT, "kind", "severity", "expected", "found", "advice"]
    ddl = ", ".join(f"{name} {DISCREPANCIES.column_types[name]}" for name in columns)
    schema = pa.schema([DISCREPANCIES.arrow_schema.field(name) for name in columns])

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = []
            for row in batch.to_pylist():
                facts = {each.name: row[each.name] for each in fields(PartitionFacts)}
                facts["placed_segment_count"] = facts["placed_segment_count"] or 0
                found += discrepancies_of(row, PartitionFacts(**facts), newest_event_ms)
            if found:
                yield pa.RecordBatch.from_pylist(found, schema=schema)

    return joined.mapInArrow(find, schema=ddl)


def _changes_here(wanted: list[Row], stored: list[Row]) -> list[Row]:
    """Return the rows of `_changes`."""
    before = {key_of(DISCREPANCIES, row): row for row in stored}
    now_ms = time.time_ns() // 1_000_000
    changes = []
    for row in wanted:
        known = before.pop(key_of(DISCREPANCIES, row), None)
        if known is None:
            change = "new"
        else:
            change = "same" if all(row[name] == known[name] for name in _COMPARED) else "changed"
        first_seen_ms = now_ms if known is None else known["first_seen_ms"]
        changes.append(row | {"first_seen_ms": first_seen_ms, "is_mended": False, "change": change})
    return changes + [row | {"is_mended": True, "change": "mended"} for row in before.values()]


def _changes(wanted: DataFrame, stored: DataFrame) -> DataFrame:
    """Return every row that is wanted or stored, with its `change`: new, changed, mended (resolved) or same."""
    names = (name for name in _STORED_COLUMNS if name not in DISCREPANCIES.key)
    before = stored.select(*DISCREPANCIES.key, *(F.col(name).alias(f"stored_{name}") for name in names))
    both = wanted.join(before, list(DISCREPANCIES.key), "full_outer")
    is_mended, is_same = F.col("severity").isNull(), F.lit(True)
    for name in _COMPARED:
        is_same = is_same & F.col(name).eqNullSafe(F.col(f"stored_{name}"))
    change = (
        F.when(is_mended, "mended").when(F.col("stored_severity").isNull(), "new").when(is_same, "same")
    ).otherwise("changed")
    now_ms = time.time_ns() // 1_000_000
    return both.select(
        *DISCREPANCIES.key,
        *(F.coalesce(name, f"stored_{name}").alias(name) for name in _COMPARED),
        F.coalesce("stored_first_seen_ms", F.lit(now_ms)).alias("first_seen_ms"),
        is_mended.alias("is_mended"),
        change.alias("change"),
    )
