"""materialize: what may lookups see from now on?

Publishes, in this order: which offsets each segment serves and the running maxima of the timestamp over a partition's
segments (the columns of `segments` that lookups enter by), then which segments may hold aborted transactions
(`txn_segments`), then a row a partition in `partition_metadata`: its versions name what lookups could see at a time
(`as_of`). Only rows that differ from what is stored are written; a second run writes nothing. Index rows of builds that
answered until then go last.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.errors import UsageError
from coldlog.indexing.publish.serving_plan import SERVED_COLUMNS, ServingPlan
from coldlog.indexing.publish.txn_segments import publish_txn_segments
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.txn_segments import TXN_SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.superseded_builds import remove_superseded


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeSummary:
    """What one run changed, and what the partitions hold after it."""

    changed_segment_count: int
    changed_partition_count: int
    partition_count: int
    served_segment_count: int
    gap_count: int


def materialize_metadata(warehouse: Warehouse, plan: ServingPlan | None = None) -> MaterializeSummary:
    """Brings the served ranges and `partition_metadata` to what the indexed segments and log start offsets say: to
    `plan`, if one was made since they changed.

    A segment that must be counted anew from a log start offset first is a `UsageError`: build_indexes does that.
    """
    if plan is None:
        with ServingPlan(warehouse) as plan:
            return materialize_metadata(warehouse, plan)
    totals = plan.totals
    if totals.uncounted_segment_count:
        raise UsageError(
            f"{totals.uncounted_segment_count} segments hold a log start offset that their index was not counted from; "
            "run build_indexes first"
        )
    if totals.changed_segment_count:
        warehouse.merge(SEGMENTS, plan.segments.where("is_changed"), update=SERVED_COLUMNS)
    if totals.may_hold_aborts or not warehouse.is_known_empty(TXN_SEGMENTS):
        publish_txn_segments(warehouse)
    changed_partition_count = _publish_partitions(warehouse, plan)
    if totals.changed_segment_count and totals.superseded_segment_count:
        remove_superseded(warehouse)
    return MaterializeSummary(
        changed_segment_count=totals.changed_segment_count,
        changed_partition_count=changed_partition_count,
        partition_count=totals.partition_count,
        served_segment_count=totals.served_segment_count,
        gap_count=totals.gap_count,
    )


def _publish_partitions(warehouse: Warehouse, plan: ServingPlan) -> int:
    """How many rows changed."""
    if warehouse.is_known_empty(PARTITION_METADATA):
        if plan.totals.partition_count:
            warehouse.append(PARTITION_METADATA, plan.partitions)
        return plan.totals.partition_count
    changed = plan.partitions.subtract(warehouse.read(PARTITION_METADATA)).persist()
    changed_count = changed.count()
    if changed_count:
        warehouse.merge(PARTITION_METADATA, changed)
    changed.unpersist()
    return changed_count
