"""serving_plan: which offsets would each indexed segment answer for, if lookups were told now?

Brings `index.served_ranges` to all partitions at once: one row a segment, with `planned_from_offset` and
`planned_to_offset` (NULL with a `planned_reason` where it answers for nothing). The build asks for it to know which
segments must be counted anew from a log start offset; materialize asks for it to publish it.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from coldlog.index.served_ranges import Candidate, NotServedReason, ServedRange, plan_served_ranges
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.segments import SEGMENTS
from coldlog.tables.warehouse import Warehouse

PLAN_DDL = (
    "topic STRING, partition INT, topic_id STRING, start_offset BIGINT, segment_id STRING, "
    "planned_from_offset BIGINT, planned_to_offset BIGINT, is_cut_at_end BOOLEAN, planned_reason STRING"
)


def plan_serving(warehouse: Warehouse) -> DataFrame:
    """One row a segment that is there, in the columns of `PLAN_DDL`."""
    segments = warehouse.read(SEGMENTS)
    log_starts = warehouse.read(LOG_START_OFFSETS)
    current = current_incarnations(segments).where("is_current").drop("is_current")
    starts = log_starts.join(current, ["topic", "partition"], "inner")
    usable = (
        segments.where(
            (F.col("index_status") == IndexStatus.INDEXED.value)
            & (F.col("state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name)
        )
        .join(starts, ["topic", "partition", "topic_id"], "left")
        .select(
            "topic",
            "partition",
            "topic_id",
            "start_offset",
            "segment_id",
            "end_offset",
            "log_start_offset",
            F.col("segment_leader_epochs")[0]["leader_epoch"].alias("first_leader_epoch"),
            F.element_at("segment_leader_epochs", -1)["leader_epoch"].alias("last_leader_epoch"),
        )
    )
    planned = usable.groupBy("topic", "partition", "topic_id").applyInArrow(_plan_partition, schema=PLAN_DDL)
    return planned.unionByName(_unusable(segments))


def current_incarnations(segments: DataFrame) -> DataFrame:
    """(topic, partition, topic_id, is_current): of a topic made more than once, the one written to last is current."""
    written = segments.groupBy("topic", "partition", "topic_id").agg(F.max("log_modified_ms").alias("written_ms"))
    newest_first = Window.partitionBy("topic", "partition").orderBy(
        F.col("written_ms").desc_nulls_last(), F.col("topic_id").desc()
    )
    return written.select(
        "topic", "partition", "topic_id", (F.row_number().over(newest_first) == 1).alias("is_current")
    )


def _unusable(segments: DataFrame) -> DataFrame:
    return segments.where(
        (F.col("index_status") != IndexStatus.INDEXED.value)
        | (F.col("state") != RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name)
    ).select(
        "topic",
        "partition",
        "topic_id",
        "start_offset",
        "segment_id",
        F.lit(None).cast("bigint").alias("planned_from_offset"),
        F.lit(None).cast("bigint").alias("planned_to_offset"),
        F.lit(False).alias("is_cut_at_end"),
        F.lit(NotServedReason.NOT_INDEXED.value).alias("planned_reason"),
    )


def _plan_partition(partition_segments: pa.Table) -> pa.Table:
    rows = partition_segments.to_pylist()
    candidates = [
        Candidate(
            segment_id=row["segment_id"],
            start_offset=row["start_offset"],
            end_offset=row["end_offset"],
            first_leader_epoch=row["first_leader_epoch"],
            last_leader_epoch=row["last_leader_epoch"],
        )
        for row in rows
    ]
    ranges = plan_served_ranges(candidates, rows[0]["log_start_offset"])
    return pa.Table.from_pylist([_plan_row(rows[0], served) for served in ranges], schema=_PLAN_SCHEMA)


def _plan_row(partition: dict[str, object], served: ServedRange) -> dict[str, object]:
    is_served = served.reason is None
    return {
        "topic": partition["topic"],
        "partition": partition["partition"],
        "topic_id": partition["topic_id"],
        "start_offset": served.segment.start_offset,
        "segment_id": served.segment.segment_id,
        "planned_from_offset": served.from_offset if is_served else None,
        "planned_to_offset": served.to_offset if is_served else None,
        "is_cut_at_end": served.is_cut_at_end,
        "planned_reason": None if served.reason is None else served.reason.value,
    }


_PLAN_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("topic_id", pa.string()),
        ("start_offset", pa.int64()),
        ("segment_id", pa.string()),
        ("planned_from_offset", pa.int64()),
        ("planned_to_offset", pa.int64()),
        ("is_cut_at_end", pa.bool_()),
        ("planned_reason", pa.string()),
    ]
)
