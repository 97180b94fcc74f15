"""Publish which offsets of which builds lookups answer from.

It publishes in this order:

1. The offsets that each segment serves, and the running maxima of the timestamp over a partition's segments. These are
   the columns of `segments` where a lookup starts.
2. The segments that may hold aborted transactions (`txn_segments`).
3. One row per partition in `partition_metadata`. Its versions are the moments that `as_of` can name.
4. Index rows of builds that answered until now are removed.
5. The manifest, to which readers hold the tables (`tables/delta/manifest.py`).

Only changed rows are written; a second run writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from coldlog.errors import UsageError
from coldlog.indexing.publish.planned_rows import SERVED_COLUMNS
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.indexing.publish.txn_segments import publish_txn_segments
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.publish_manifest import publish_manifest
from coldlog.tables.delta.row_edits import changed_rows
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.superseded_builds import remove_superseded


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeSummary:
    """What one run changed, and what the partitions hold afterwards."""

    changed_segment_count: int
    changed_partition_count: int
    partition_count: int
    served_segment_count: int
    gap_count: int


def materialize_metadata(warehouse: Warehouse, plan: ServingPlan | None = None) -> MaterializeSummary:
    """Update the served ranges and `partition_metadata` to the indexed segments and log start offsets.

    `plan` is used if it was made after these last changed. If a segment must first be counted again from a log start
    offset, which build_indexes does, `UsageError` is raised.
    """
    if plan is None:
        with ServingPlan(warehouse) as plan:
            return materialize_metadata(warehouse, plan)
    totals = plan.totals
    if totals.uncounted_segment_count:
        raise UsageError(
            f"{totals.uncounted_segment_count} segments must be counted again from a log start offset inside them; run "
            "build_indexes first"
        )
    if totals.changed_segment_count:
        warehouse.merge(SEGMENTS, plan.changed_segments(), update=SERVED_COLUMNS, count=totals.changed_segment_count)
    if totals.may_hold_aborts or not warehouse.is_known_empty(TXN_SEGMENTS):
        publish_txn_segments(warehouse, plan.txn_segments())
    changed_partition_count = _publish_partitions(warehouse, plan)
    if totals.changed_segment_count and totals.superseded_segment_count:
        remove_superseded(warehouse)
    publish_manifest(warehouse)
    partition_count, served, gaps = totals.partition_count, totals.served_segment_count, totals.gap_count
    if warehouse.partitions is not None:
        partition_count, served, gaps = _totals_of_all(warehouse)
    return MaterializeSummary(
        changed_segment_count=totals.changed_segment_count,
        changed_partition_count=changed_partition_count,
        partition_count=partition_count,
        served_segment_count=served,
        gap_count=gaps,
    )


def _totals_of_all(warehouse: Warehouse) -> tuple[int, int, int]:
    """Count partitions, served segments and gaps in `partition_metadata`."""
    rows = warehouse.small_rows(PARTITION_METADATA, ("served_segment_count", "gap_count"))
    served, gaps = (sum(row[name] for row in rows) for name in ("served_segment_count", "gap_count"))
    return len(rows), served, gaps


def _publish_partitions(warehouse: Warehouse, plan: ServingPlan) -> int:
    """Publish the rows of partitions; return the number of changed rows."""
    wanted = plan.partitions()
    if warehouse.is_known_empty(PARTITION_METADATA):
        if plan.totals.partition_count:
            warehouse.append(PARTITION_METADATA, wanted, count=plan.totals.partition_count)
        return plan.totals.partition_count
    if not isinstance(wanted, DataFrame):
        stored = warehouse.rows_if_small(PARTITION_METADATA, PARTITION_METADATA.column_names)
        if stored is not None:
            changes = changed_rows(PARTITION_METADATA, stored, wanted)
            warehouse.merge(PARTITION_METADATA, changes)
            return len(changes)
        wanted = warehouse.local(PARTITION_METADATA, wanted)
    changed = wanted.subtract(warehouse.read(PARTITION_METADATA)).persist()
    changed_count = changed.count()
    if changed_count:
        warehouse.merge(PARTITION_METADATA, changed, count=changed_count)
    changed.unpersist()
    return changed_count
