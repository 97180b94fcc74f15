"""Publish which segments may hold aborted transactions, and for which offsets each is the next one.

The rows are computed from the served segments with windows over their order. Within a leader epoch, the walk is that of
Kafka's RemoteLogMetadataCache.nextSegmentWithTxnIndex: from the segment that holds an offset to the segment that holds
the offset after it, until a segment has an index or none follows. Over the whole partition, the walk continues with the
next epochs, as Kafka's caller does. Only partitions with such a segment are computed.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.txn_segments import TXN_SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse

_PARTITION = ("topic", "partition", "topic_id")


def publish_txn_segments(warehouse: Warehouse, concerned: DataFrame | None = None) -> int:
    """Update `txn_segments` to the served segments; return the number of changed rows.

    `concerned`: see `wanted_txn_segments`.
    """
    changes = _changes(wanted_txn_segments(warehouse.read(SEGMENTS), concerned), warehouse.read(TXN_SEGMENTS)).persist()
    try:
        count = changes.count()
        if count:
            warehouse.merge(TXN_SEGMENTS, changes, remove="is_no_more", count=count)
    finally:
        changes.unpersist()
    return count


def _changes(wanted: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the rows to write, and with `is_no_more` those to remove."""
    key = list(TXN_SEGMENTS.key)
    others = [name for name in TXN_SEGMENTS.column_names if name not in key]
    before = stored.select(
        *key, F.lit(True).alias("is_stored"), *(F.col(name).alias(f"stored_{name}") for name in others)
    )
    both = wanted.withColumn("is_wanted", F.lit(True)).join(before, key, "full_outer")
    is_same = F.col("is_wanted") & F.col("is_stored")
    for name in others:
        is_same = is_same & F.col(name).eqNullSafe(F.col(f"stored_{name}"))
    kept = (F.coalesce(name, f"stored_{name}").alias(name) for name in others)
    return both.where(is_same.isNull() | ~is_same).select(*key, *kept, F.col("is_wanted").isNull().alias("is_no_more"))


def wanted_txn_segments(segments: DataFrame, concerned: DataFrame | None = None) -> DataFrame:
    """Compute the rows of `txn_segments` from rows of `segments`.

    `concerned` are the partitions with a served segment that may hold aborts, if they are known.
    """
    served = segments.where(F.col("served_from_offset").isNotNull())
    may_hold = ~F.coalesce("txn_index_empty", F.lit(False))
    if concerned is None:
        concerned = served.where(may_hold).select(*_PARTITION).distinct()
    parts = _epoch_parts(served.withColumn("may_hold", may_hold).join(concerned, list(_PARTITION), "left_semi"))
    in_epoch = Window.partitionBy(*_PARTITION, "leader_epoch").orderBy("from_offset")
    in_log = Window.partitionBy(*_PARTITION).orderBy("from_offset")
    return (
        parts.withColumn("epoch_from_offset", _next_from(in_epoch, ends_at_gaps=True))
        .withColumn("log_from_offset", _next_from(in_log, ends_at_gaps=False))
        .where("may_hold")
        .withColumn("is_certain", F.coalesce(~F.col("txn_index_empty"), F.lit(False)))
        .select(*TXN_SEGMENTS.column_names)
    )


def _epoch_parts(served: DataFrame) -> DataFrame:
    """Return one row per leader epoch of each served segment, with the offsets of that epoch that it serves."""
    epochs = F.coalesce("announced_leader_epochs", "segment_leader_epochs")
    following = F.try_element_at(epochs, F.col("at") + F.lit(2))["start_offset"]
    exploded = served.select("*", F.posexplode(epochs).alias("at", "epoch"))
    first = F.when(F.col("at") == 0, F.col("served_from_offset")).otherwise(F.col("epoch.start_offset"))
    return exploded.select(
        *_PARTITION, "segment_id", "start_offset", "txn_index_empty", "may_hold",
        F.greatest("end_offset", "announced_end_offset").alias("end_offset"),
        F.col("epoch.leader_epoch").alias("leader_epoch"),
        F.greatest(first, "served_from_offset").alias("from_offset"),
        F.least(F.coalesce(following - 1, "served_to_offset"), "served_to_offset").alias("to_offset"),
    ).where("from_offset <= to_offset")  # fmt: skip


def _next_from(window: WindowSpec, *, ends_at_gaps: bool) -> Column:
    """Return the first offset from which the walk along `window` meets no other segment that may hold aborts.

    A run begins after such a segment, and also after missing offsets if the walk ends at gaps.
    """
    previous_to = F.lag("to_offset").over(window)
    begins = previous_to.isNull() | F.lag("may_hold").over(window)
    if ends_at_gaps:
        begins = begins | (previous_to + 1 != F.col("from_offset"))
    # After another segment, the search covers the whole log, gaps too. Nothing is known before the first segment.
    start = F.col("from_offset") if ends_at_gaps else F.coalesce(previous_to + 1, "from_offset")
    so_far = window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return F.last(F.when(begins, start), ignorenulls=True).over(so_far)
