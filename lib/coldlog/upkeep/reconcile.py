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
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.tables.definitions.discrepancies import DISCREPANCIES, DiscrepancyKind, Severity
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row, key_of
from coldlog.tables.delta.warehouse import Warehouse

_PARTITION = ("topic", "partition", "topic_id")
_COMPARED = ("topic_id", "severity", "expected", "found", "advice")
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
_PATIENCE_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSummary:
    """Counts of discrepancies by kind, and how many are new or were resolved since the last run."""

    counts: dict[str, int]
    new_count: int
    mended_count: int

    def count_of(self, severity: Severity) -> int:
        """Count the discrepancies of that severity."""
        return sum(self.counts.get(kind.value, 0) for kind in DiscrepancyKind if kind.severity is severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A kind of discrepancy, in SQL over a row of `_facts`: its condition, and what was expected and found."""

    kind: DiscrepancyKind
    when: str
    expected: str
    found: str

    @property
    def discrepancy(self) -> str:
        """The discrepancy as a struct; NULL if there is none. As one text, because each call of Spark's functions takes
        time."""
        # Not an escaped quote: a setting of Spark says how quotes are escaped.
        advice = self.kind.advice.replace("'", "', chr(39), '")
        return f"""CASE WHEN {self.when} THEN named_struct(
          'kind', '{self.kind.value}', 'severity', '{self.kind.severity.value}',
          'expected', {self.expected}, 'found', {self.found}, 'advice', concat('{advice}')) END"""


_FACTS = {
    "is_announced": "state_source = 'events'",
    # Values that the build read count only while the objects are the ones that it read.
    "is_read": "is_listed AND index_status = 'indexed'",
    "is_waited_for": f"newest_event_ms - event_timestamp_ms <= {_PATIENCE_MS}",
    "is_passed_by": "event_timestamp_ms < newest_copy_event_ms",
    "is_just_written": f"log_modified_ms > newest_event_ms AND log_modified_ms <= newest_event_ms + {_PATIENCE_MS}",
    "unannounced_epochs": """array_except(
      filter(segment_leader_epochs.leader_epoch, epoch -> epoch >= 0), announced_leader_epochs.leader_epoch)""",
    "objects_found": "if(is_listed, concat(size(objects), if(size(objects) = 1, ' object', ' objects')), 'no object')",
}
_FINISHED = "is_announced AND state = 'COPY_SEGMENT_FINISHED'"
_COPYING = "is_announced AND state = 'COPY_SEGMENT_STARTED'"
_COPY_GOES_ON = "is_waited_for AND NOT is_passed_by"
_DELETING = "is_announced AND state = 'DELETE_SEGMENT_STARTED'"
_ORPHANED = "is_listed AND index_status = 'orphan'"

_RULES = (
    _Rule(
        kind=DiscrepancyKind.SEGMENT_MISSING,
        when=f"{_FINISHED} AND NOT is_listed",
        expected="concat('a log of ', announced_size_bytes, ' bytes with its files')",
        found="objects_found",
    ),
    _Rule(
        kind=DiscrepancyKind.FILES_MISSING,
        when=f"{_FINISHED} AND is_listed AND size(missing_kinds) > 0",
        expected="'every required file'",
        found="concat('no ', array_join(missing_kinds, ', '), if(is_read, '; the log is served without', ''))",
    ),
    _Rule(
        kind=DiscrepancyKind.SIZE_DIFFERS,
        when=f"{_FINISHED} AND is_listed AND size_bytes <> announced_size_bytes",
        expected="concat(announced_size_bytes, ' bytes')",
        found="concat(size_bytes, ' bytes')",
    ),
    _Rule(
        kind=DiscrepancyKind.START_OFFSET_DIFFERS,
        when=f"{_FINISHED} AND is_listed AND start_offset <> announced_start_offset",
        expected="concat('offset ', announced_start_offset)",
        found="concat('offset ', start_offset)",
    ),
    _Rule(
        # The announced end is the offset before the next segment and can be after the last batch, but not before it. A
        # build that knew the events has quarantined such a segment; this segment was read before its events.
        kind=DiscrepancyKind.END_OFFSET_DIFFERS,
        when="is_read AND end_offset > announced_end_offset",
        expected="concat('at most offset ', announced_end_offset)",
        found="concat('offset ', end_offset)",
    ),
    _Rule(
        # A segment without timestamps is announced with the modification time of its file on the broker.
        kind=DiscrepancyKind.MAX_TIMESTAMP_DIFFERS,
        # A hole may have had the largest timestamp.
        when="""is_read AND holes IS NULL AND max_timestamp_ms >= 0
          AND metadata_max_timestamp_ms <> announced_max_timestamp_ms""",
        expected="concat(announced_max_timestamp_ms, ' ms')",
        found="concat(metadata_max_timestamp_ms, ' ms')",
    ),
    _Rule(
        kind=DiscrepancyKind.LEADER_EPOCHS_DIFFER,
        when="is_read AND size(unannounced_epochs) > 0",
        expected="concat('leader epochs ', array_join(announced_leader_epochs.leader_epoch, ', '))",
        found="concat('leader epochs ', array_join(unannounced_epochs, ', '))",
    ),
    _Rule(
        kind=DiscrepancyKind.TXN_INDEX_DENIED,
        when="is_read AND announced_txn_index_empty AND NOT txn_index_empty",
        expected="'no aborted transaction'",
        found="concat(abort_marker_count, ' abort markers and a transaction index')",
    ),
    _Rule(
        # There is no entry if the transaction wrote nothing to this partition, or if the index was lost.
        kind=DiscrepancyKind.TXN_INDEX_IN_DOUBT,
        when="is_read AND abort_marker_count > 0 AND txn_index_empty IS NULL",
        expected="""concat('entries for ', abort_marker_count, ' abort markers',
          if(announced_txn_index_empty, '; announced as empty', ''))""",
        found="'no entry'",
    ),
    _Rule(
        # Brokers never write false. So a missing value means something only after this partition's first true.
        kind=DiscrepancyKind.TXN_INDEX_PROMISED,
        when="""is_read AND abort_marker_count = 0 AND txn_index_empty
          AND (NOT announced_txn_index_empty
               OR announced_txn_index_empty IS NULL AND announced_start_offset > announces_empty_from_offset)""",
        expected="'aborted transactions'",
        found="'no abort marker'",
    ),
    _Rule(
        kind=DiscrepancyKind.LOG_DAMAGED,
        when="is_read AND size(holes) > 0",
        expected="'sound batches'",
        found="""concat('offsets ', array_join(
          transform(holes, h -> concat(h.from_offset, ' to ', coalesce(string(h.to_offset), 'an unknown end'))), ', '),
          ' lost; ', array_join(damaged_files, '; '))""",
    ),
    _Rule(
        kind=DiscrepancyKind.SIDE_FILE_DAMAGED,
        when="is_read AND size(damaged_files) > size(missing_kinds) AND holes IS NULL",
        expected="'files that agree with the log'",
        found="array_join(damaged_files, '; ')",
    ),
    _Rule(
        kind=DiscrepancyKind.OUTSIDE_LINEAGE,
        when="NOT is_within_lineage AND not_served_reason IS DISTINCT FROM 'below_log_start'",
        expected="'leader epochs of the newest checkpoint'",
        found="""concat('leader epochs ', array_join(
          transform(segment_leader_epochs, e -> concat(e.leader_epoch, ' from offset ', e.start_offset)), ', '))""",
    ),
    _Rule(
        # Such a segment is served: its copy was announced as finished, or it is complete and its events are lost.
        kind=DiscrepancyKind.ANNOUNCEMENT_LOST,
        when=f"""is_listed AND (({_FINISHED}) AND announced_start_offset IS NULL
          OR NOT is_announced AND index_status NOT IN ('orphan', 'incomplete') AND placed_segment_count > 0)""",
        expected="'COPY_SEGMENT_STARTED with its offsets'",
        found="concat(if(is_announced, state, 'no event'), ', ', objects_found)",
    ),
    _Rule(
        kind=DiscrepancyKind.ORPHAN,
        when=f"{_ORPHANED} AND is_just_written IS NOT TRUE",
        expected="'an event that announces it'",
        found="objects_found",
    ),
    _Rule(
        kind=DiscrepancyKind.COPY_UNDERWAY,
        when=f"{_ORPHANED} AND is_just_written OR {_COPYING} AND {_COPY_GOES_ON}",
        expected="'COPY_SEGMENT_FINISHED'",
        found="concat(if(is_announced, state, 'no event'), ', ', objects_found)",
    ),
    _Rule(
        kind=DiscrepancyKind.COPY_UNFINISHED,
        when=f"{_COPYING} AND NOT ({_COPY_GOES_ON})",
        expected="'COPY_SEGMENT_FINISHED'",
        found="concat(state, ', ', objects_found)",
    ),
    _Rule(
        kind=DiscrepancyKind.COPY_INCOMPLETE,
        when="NOT is_announced AND is_listed AND index_status = 'incomplete'",
        expected="'every required file'",
        found="concat('no ', array_join(missing_kinds, ', '))",
    ),
    _Rule(
        kind=DiscrepancyKind.DELETION_UNDERWAY,
        when=f"{_DELETING} AND is_waited_for",
        expected="'DELETE_SEGMENT_FINISHED'",
        found="concat(state, ', ', objects_found)",
    ),
    _Rule(
        kind=DiscrepancyKind.DELETION_UNFINISHED,
        when=f"{_DELETING} AND NOT is_waited_for",
        expected="'DELETE_SEGMENT_FINISHED'",
        found="concat(state, ', ', objects_found)",
    ),
    _Rule(
        kind=DiscrepancyKind.DELETED_BUT_LISTED,
        when="is_announced AND state = 'DELETE_SEGMENT_FINISHED' AND is_listed",
        expected="'no object'",
        found="objects_found",
    ),
)


def reconcile(warehouse: Warehouse) -> ReconcileSummary:
    """Update `discrepancies` to the differences in `segments`."""
    segments = warehouse.small_table(SEGMENTS)
    stored = None if segments is None else warehouse.rows_if_small(DISCREPANCIES, _STORED_COLUMNS)
    newest_ms = None if warehouse.partitions is None else warehouse.greatest(SEGMENTS, "event_timestamp_ms")
    if segments is None or stored is None:
        summary = _update_with_spark(warehouse, find_discrepancies(warehouse.read(SEGMENTS), newest_ms))
        return summary if warehouse.partitions is None else replace(summary, counts=_counts_of_all(warehouse))
    wanted = find_discrepancies(warehouse.local(SEGMENTS, segments), newest_ms).toArrow().to_pylist()
    changes = _changes_here(wanted, stored)
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


def find_discrepancies(segments: DataFrame, newest_event_ms: int | None = None) -> DataFrame:
    """Compute the rows of `discrepancies`, without their time, from the rows of `segments`.

    `newest_event_ms` is the time of the newest event of all partitions, if these are the segments of some.
    """
    found = f"inline(array_compact(array({', '.join(rule.discrepancy for rule in _RULES)})))"
    return _facts(segments, newest_event_ms).selectExpr(*_PARTITION, "start_offset", "segment_id", found)


def _facts(segments: DataFrame, newest_event_ms: int | None) -> DataFrame:
    """Add to `segments` the totals of its partition and of all events, and the columns of `_FACTS`."""
    announced = segments.where("state_source = 'events'")
    of_partition = announced.groupBy(*_PARTITION).agg(
        F.count("announced_start_offset").alias("placed_segment_count"),
        F.expr("max(event_timestamp_ms) FILTER (WHERE state LIKE 'COPY%')").alias("newest_copy_event_ms"),
        F.expr("min(start_offset) FILTER (WHERE announced_txn_index_empty)").alias("announces_empty_from_offset"),
    )
    joined = segments.join(F.broadcast(of_partition), list(_PARTITION), "left")
    if newest_event_ms is None:
        of_all = announced.agg(F.max("event_timestamp_ms").alias("newest_event_ms"))
        joined = joined.crossJoin(F.broadcast(of_all))
    else:
        joined = joined.withColumn("newest_event_ms", F.lit(newest_event_ms).cast("bigint"))
    return joined.selectExpr("*", *(f"{fact} AS {name}" for name, fact in _FACTS.items()))


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
