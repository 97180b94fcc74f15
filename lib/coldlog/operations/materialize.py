"""materialize: what may lookups see from now on?

Publishes, in this order: which offsets each segment serves and the running maxima of the timestamp over a partition's
segments (the columns of `segments` that lookups enter by), then which segments may hold aborted transactions
(`txn_segments`), then a row a partition in `partition_metadata`: its versions name what lookups could see at a time
(`as_of`). Only rows that differ from what is stored are written; a second run writes nothing. Index rows of builds that
answered until then go last.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.operations.serving_plan import SERVED_COLUMNS, partition_rows, plan_serving, segment_rows
from coldlog.operations.superseded_builds import remove_superseded
from coldlog.operations.txn_segments import publish_txn_segments
from coldlog.tables.partition_metadata import PARTITION_METADATA
from coldlog.tables.segments import SEGMENTS
from coldlog.tables.warehouse import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeSummary:
    """What one run changed, and what the partitions hold after it."""

    changed_segment_count: int
    changed_partition_count: int
    partition_count: int
    served_segment_count: int
    gap_count: int


def materialize_metadata(warehouse: Warehouse) -> MaterializeSummary:
    """Brings the served ranges and `partition_metadata` to what the indexed segments and log start offsets say.

    A segment that must be counted anew from a log start offset first is a `UsageError`: build_indexes does that.
    """
    plan = plan_serving(warehouse)
    try:
        changes = segment_rows(plan)
        uncounted_count, changed_segment_count = changes.agg(
            F.count("must_count_from"), F.count_if(F.col("is_changed"))
        ).collect()[0]
        if uncounted_count:
            raise UsageError(
                f"{uncounted_count} segments hold a log start offset that their index was not counted from; "
                "run build_indexes first"
            )
        if changed_segment_count:
            warehouse.merge(SEGMENTS, changes.where("is_changed"), update=SERVED_COLUMNS)
        publish_txn_segments(warehouse)
        summary = _publish_partitions(warehouse, partition_rows(plan), changed_segment_count)
        if changed_segment_count:
            remove_superseded(warehouse)
        return summary
    finally:
        plan.unpersist()


def _publish_partitions(warehouse: Warehouse, wanted: DataFrame, changed_segment_count: int) -> MaterializeSummary:
    changed = wanted.subtract(warehouse.read(PARTITION_METADATA)).persist()
    changed_count = changed.count()
    if changed_count:
        warehouse.merge(PARTITION_METADATA, changed)
    changed.unpersist()
    partition_count, served_count, gap_count = wanted.agg(
        F.count("*"), F.coalesce(F.sum("served_segment_count"), F.lit(0)), F.coalesce(F.sum("gap_count"), F.lit(0))
    ).collect()[0]
    return MaterializeSummary(
        changed_segment_count=changed_segment_count,
        changed_partition_count=changed_count,
        partition_count=partition_count,
        served_segment_count=served_count,
        gap_count=gap_count,
    )
