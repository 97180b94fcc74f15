"""materialize: what may lookups see from now on?

Publishes, in this order: which offsets each segment serves and the running maxima of the timestamp over a partition's
segments (the columns of `segments` that lookups enter by), then a row a partition in `partition_metadata`. Only rows
that differ from what is stored are written; a second run writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.model.states import IndexDepth, IndexStatus
from coldlog.operations.serving_plan import current_incarnations, plan_serving
from coldlog.tables.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.offset_index import OFFSET_INDEX
from coldlog.tables.partition_metadata import PARTITION_METADATA
from coldlog.tables.segments import SEGMENTS
from coldlog.tables.time_index import TIME_INDEX
from coldlog.tables.warehouse import Warehouse

_SERVED_COLUMNS = (
    "served_from_offset",
    "served_to_offset",
    "not_served_reason",
    "previous_running_max_timestamp_ms",
    "running_max_timestamp_ms",
    "broker_previous_running_max_timestamp_ms",
    "broker_running_max_timestamp_ms",
)
_PARTITION = ("topic", "partition", "topic_id")


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
    served = _served_segments(warehouse).persist()
    try:
        _refuse_uncounted(served)
        changed_segments = _changed(served, warehouse.read(SEGMENTS), SEGMENTS.key, _SERVED_COLUMNS).persist()
        changed_segment_count = changed_segments.count()
        if changed_segment_count:
            warehouse.merge(SEGMENTS, changed_segments, update=_SERVED_COLUMNS)
        changed_segments.unpersist()
    finally:
        served.unpersist()
    changed_partition_count = _publish_partitions(warehouse)
    totals = (
        warehouse.read(PARTITION_METADATA)
        .agg(
            F.count("*"), F.coalesce(F.sum("served_segment_count"), F.lit(0)), F.coalesce(F.sum("gap_count"), F.lit(0))
        )
        .head()
    )
    partition_count, served_segment_count, gap_count = totals if totals else (0, 0, 0)
    return MaterializeSummary(
        changed_segment_count=changed_segment_count,
        changed_partition_count=changed_partition_count,
        partition_count=partition_count,
        served_segment_count=served_segment_count,
        gap_count=gap_count,
    )


def _served_segments(warehouse: Warehouse) -> DataFrame:
    """The segments' key, served columns as they should be, and what is needed to check them."""
    segments = warehouse.read(SEGMENTS).select(
        *SEGMENTS.key,
        "build_number",
        "index_depth",
        "counted_from_offset",
        "counted_max_timestamp_ms",
        "metadata_max_timestamp_ms",
    )
    planned = plan_serving(warehouse).join(segments, list(SEGMENTS.key), "inner")
    reached = F.when(F.col("is_cut_at_end"), F.col("cut_max_timestamp_ms")).otherwise(F.col("counted_max_timestamp_ms"))
    with_max = planned.join(_cut_maxima(warehouse, planned), list(SEGMENTS.key), "left").select(
        *planned.columns, F.when(F.col("planned_from_offset").isNotNull(), reached).alias("max_timestamp_ms")
    )
    promised = F.when(F.col("planned_from_offset").isNotNull(), F.col("metadata_max_timestamp_ms"))
    return with_max.select(
        *SEGMENTS.key,
        "counted_from_offset",
        F.col("planned_from_offset").alias("served_from_offset"),
        F.col("planned_to_offset").alias("served_to_offset"),
        F.col("planned_reason").alias("not_served_reason"),
        _running_max(F.col("max_timestamp_ms"), upto=-1).alias("previous_running_max_timestamp_ms"),
        _running_max(F.col("max_timestamp_ms"), upto=0).alias("running_max_timestamp_ms"),
        _running_max(promised, upto=-1).alias("broker_previous_running_max_timestamp_ms"),
        _running_max(promised, upto=0).alias("broker_running_max_timestamp_ms"),
    )


def _running_max(value: Column, *, upto: int) -> Column:
    """The maximum over a partition's served segments up to the row `upto` (0 itself, -1 the one before)."""
    in_order = Window.partitionBy(*_PARTITION).orderBy(
        F.col("planned_from_offset").asc_nulls_last(), F.col("start_offset"), F.col("segment_id")
    )
    running = F.max(value).over(in_order.rowsBetween(Window.unboundedPreceding, upto))
    return F.when(F.col("planned_from_offset").isNotNull(), running)


def _cut_maxima(warehouse: Warehouse, planned: DataFrame) -> DataFrame:
    """Key and `cut_max_timestamp_ms` of segments that another upload cuts short: the maximum up to the cut."""
    cut = planned.where("is_cut_at_end").select(*SEGMENTS.key, "build_number", "planned_to_offset", "index_depth")
    by_record = (
        cut.where(F.col("index_depth") == IndexDepth.RECORD.value)
        .join(warehouse.read(TIME_INDEX).drop("topic_id"), ["topic", "partition", "segment_id", "build_number"])
        .where(F.col("offset") <= F.col("planned_to_offset"))
        .select(*SEGMENTS.key, "timestamp_ms")
    )
    by_batch = (
        cut.where(F.col("index_depth") == IndexDepth.BATCH.value)
        .join(warehouse.read(OFFSET_INDEX).drop("topic_id"), ["topic", "partition", "segment_id", "build_number"])
        .where(F.col("last_offset") <= F.col("planned_to_offset"))
        .select(*SEGMENTS.key, F.col("running_max_timestamp_ms").alias("timestamp_ms"))
    )
    return (
        by_record.unionByName(by_batch).groupBy(*SEGMENTS.key).agg(F.max("timestamp_ms").alias("cut_max_timestamp_ms"))
    )


def _refuse_uncounted(served: DataFrame) -> None:
    uncounted = served.where(
        F.col("served_from_offset").isNotNull() & (F.col("served_from_offset") != F.col("counted_from_offset"))
    ).count()
    if uncounted:
        raise UsageError(
            f"{uncounted} segments hold a log start offset that their index was not counted from; "
            "run build_indexes first"
        )


def _changed(wanted: DataFrame, stored: DataFrame, key: tuple[str, ...], columns: tuple[str, ...]) -> DataFrame:
    """Rows of `wanted` (key and columns) that differ from those of `stored`, or are not there."""
    before = stored.select(
        *key, *(F.col(name).alias(f"stored_{name}") for name in columns), F.lit(True).alias("is_stored")
    )
    differs = ~F.coalesce(F.col("is_stored"), F.lit(False))
    for name in columns:
        differs = differs | ~F.col(name).eqNullSafe(F.col(f"stored_{name}"))
    return wanted.join(before, list(key), "left").where(differs).select(*key, *columns)


def _publish_partitions(warehouse: Warehouse) -> int:
    wanted = _partitions(warehouse).persist()
    try:
        stored = warehouse.read(PARTITION_METADATA)
        columns = tuple(name for name in PARTITION_METADATA.column_names if name not in PARTITION_METADATA.key)
        changed = _changed(wanted, stored, PARTITION_METADATA.key, columns).persist()
        changed_count = changed.count()
        if changed_count:
            warehouse.merge(PARTITION_METADATA, changed)
        changed.unpersist()
    finally:
        wanted.unpersist()
    return changed_count


def _partitions(warehouse: Warehouse) -> DataFrame:
    segments = warehouse.read(SEGMENTS)
    log_starts = warehouse.read(LOG_START_OFFSETS)
    current = current_incarnations(segments)
    is_served = F.col("served_from_offset").isNotNull()
    in_order = Window.partitionBy(*_PARTITION).orderBy(F.col("served_from_offset").asc_nulls_last())
    follows = F.lag("served_to_offset").over(in_order)
    is_gap = is_served & follows.isNotNull() & (F.col("served_from_offset") != follows + 1)
    has_status = lambda status: F.count_if(F.col("index_status") == status.value)  # noqa: E731
    per_partition = (
        segments.withColumn("is_gap", is_gap)
        .groupBy(*_PARTITION)
        .agg(
            F.min("served_from_offset").alias("earliest_offset"),
            F.max("served_to_offset").alias("latest_tiered_offset"),
            F.max("running_max_timestamp_ms").alias("max_timestamp_ms"),
            F.count("*").alias("segment_count"),
            F.count_if(is_served).alias("served_segment_count"),
            F.count_if(~is_served).alias("unserved_segment_count"),
            has_status(IndexStatus.PENDING).alias("pending_segment_count"),
            has_status(IndexStatus.QUARANTINED).alias("quarantined_segment_count"),
            F.count_if(is_served & ~F.col("txn_index_empty")).alias("txn_index_segment_count"),
            F.bool_and(F.when(is_served, F.col("txn_index_empty"))).alias("txn_index_empty"),
            F.coalesce(F.sum(F.when(is_served, F.col("size_bytes"))), F.lit(0)).alias("size_bytes"),
            F.coalesce(F.sum(F.when(is_served, F.col("record_count"))), F.lit(0)).alias("record_count"),
            F.count_if(F.col("is_gap")).alias("gap_count"),
        )
    )
    return (
        per_partition.join(current, list(_PARTITION), "inner")
        .join(log_starts, ["topic", "partition"], "left")
        .join(_max_timestamp_offsets(segments), list(_PARTITION), "left")
        .withColumn("log_start_offset", F.when(F.col("is_current"), F.col("log_start_offset")))
        .select(*PARTITION_METADATA.column_names)
    )


def _max_timestamp_offsets(segments: DataFrame) -> DataFrame:
    """The lowest offset with the partition's largest timestamp; NULL where the segment was cut short or not decoded."""
    raises = F.col("running_max_timestamp_ms") > F.coalesce(
        F.col("previous_running_max_timestamp_ms"), F.lit(-(2**63)).cast("bigint")
    )
    is_whole = F.col("served_to_offset") == F.col("end_offset")
    return (
        segments.where(
            F.col("served_from_offset").isNotNull() & (raises | F.col("previous_running_max_timestamp_ms").isNull())
        )
        .groupBy(*_PARTITION)
        .agg(
            F.max_by(F.when(is_whole, F.col("counted_max_timestamp_offset")), F.col("running_max_timestamp_ms")).alias(
                "max_timestamp_offset"
            )
        )
    )
