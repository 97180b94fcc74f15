"""Plan which offsets each segment would serve if it were published now.

The plan applies `planned_rows` to all partitions. It has one row per segment whose served columns change or that must
be counted again, and one row per partition. The build reads from it which segments to count again from a log start
offset. Materialize reads what to publish. If materialize follows the build and nothing changed in between, both use the
same plan.

A small table of segments is planned in this process, because Spark's tasks take seconds to start. A larger one is
planned in tasks, one group per topic-partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from coldlog.index.partition_plan import CutMaxima
from coldlog.indexing.publish.cut_maxima_here import cut_maxima_here
from coldlog.indexing.publish.planned_rows import (
    PLANNED_SCHEMA,
    READ_COLUMNS,
    SERVED_COLUMNS,
    TXN_COLUMNS,
    plan_all_partitions,
    plan_rows,
)
from coldlog.model.states import IndexDepth, IndexStatus, RemoteLogSegmentState
from coldlog.runtime.spark.arrow_frames import frame_of, unmeasured_batches
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse

_UNCOUNTED = (*SEGMENTS.key, "must_count_from")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTotals:
    """The totals of a plan over all partitions."""

    changed_segment_count: int
    cut_segment_count: int
    uncounted_segment_count: int
    partition_count: int
    served_segment_count: int
    gap_count: int
    superseded_segment_count: int
    may_hold_aborts: bool
    """A served segment has a transaction index that is not known to be empty."""


class ServingPlan:
    """The plan of a warehouse: made at its first use, kept until `forget` or the end of the `with` block."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._made: tuple[_PlannedHere | _PlannedInTasks, PlanTotals] | None = None

    def __enter__(self) -> ServingPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop the plan, because `segments` or `log_start_offsets` will change."""
        if self._made is not None:
            self._made[0].forget()
            self._made = None

    @property
    def totals(self) -> PlanTotals:
        return self._make()[1]

    def changed_segments(self) -> DataFrame | list[Row]:
        """Key and served columns of the segments for which these change."""
        return self._make()[0].segments("is_changed", (*SEGMENTS.key, *SERVED_COLUMNS))

    def uncounted_segments(self) -> DataFrame | list[Row]:
        """Key of the segments that must be counted again, and `must_count_from`."""
        return self._make()[0].segments("must_count_from", _UNCOUNTED)

    def uncounted_frame(self) -> DataFrame:
        """As `uncounted_segments`, for Spark."""
        return _frame(self._warehouse, self.uncounted_segments(), _UNCOUNTED)

    def partitions(self) -> DataFrame | list[Row]:
        """The rows of `partition_metadata`."""
        return self._make()[0].partitions()

    def txn_segments(self) -> DataFrame | list[Row]:
        """The rows of `txn_segments`."""
        return self._make()[0].txn_segments()

    def _make(self) -> tuple[_PlannedHere | _PlannedInTasks, PlanTotals]:
        if self._made is None:
            planned = _plan(self._warehouse, {})
            totals = planned.totals()
            if totals.cut_segment_count:
                columns = ("topic", "partition", "segment_id", "served_to_offset")
                cut = planned.segments("is_cut_at_end", columns)
                maxima: CutMaxima | None = None if isinstance(cut, DataFrame) else cut_maxima_here(self._warehouse, cut)
                if maxima is None:
                    maxima = _cut_maxima(self._warehouse, _frame(self._warehouse, cut, columns))
                planned.forget()
                planned = _plan(self._warehouse, maxima)
                totals = planned.totals()
            self._made = planned, totals
        return self._made


def _frame(warehouse: Warehouse, rows: DataFrame | list[Row], columns: Sequence[str]) -> DataFrame:
    if isinstance(rows, DataFrame):
        return rows
    schema = pa.schema([PLANNED_SCHEMA.field(name) for name in columns])
    return frame_of(warehouse.spark, pa.Table.from_pylist(rows, schema=schema))


class _PlannedHere:
    """A plan in the memory of this process."""

    def __init__(self, planned: pa.Table) -> None:
        rows = planned.to_pylist()
        self._segments = [row for row in rows if row["segment_id"] is not None]
        self._partitions = [row for row in rows if row["segment_id"] is None]

    def totals(self) -> PlanTotals:
        segments, partitions = self._segments, self._partitions
        return PlanTotals(
            changed_segment_count=sum(row["is_changed"] for row in segments),
            cut_segment_count=sum(row["is_cut_at_end"] for row in segments),
            uncounted_segment_count=sum(row["must_count_from"] is not None for row in segments),
            partition_count=len(partitions),
            served_segment_count=sum(row["served_segment_count"] for row in partitions),
            gap_count=sum(row["gap_count"] for row in partitions),
            superseded_segment_count=sum(row["superseded_segment_count"] for row in partitions),
            may_hold_aborts=any(row["txn_index_empty"] is False for row in partitions),
        )

    def segments(self, where: str, columns: Sequence[str]) -> list[Row]:
        """Columns of the segments in which the column `where` is neither NULL nor false."""
        chosen = (row for row in self._segments if row[where] is not None and row[where] is not False)
        return [{name: row[name] for name in columns} for row in chosen]

    def partitions(self) -> list[Row]:
        return [{name: row[name] for name in PARTITION_METADATA.column_names} for row in self._partitions]

    def txn_segments(self) -> list[Row]:
        return [
            {"topic": row["topic"], "partition": row["partition"], "topic_id": row["topic_id"], **each}
            for row in self._partitions
            for each in row["txn_segments"]
        ]

    def forget(self) -> None:
        """Nothing is held elsewhere."""


class _PlannedInTasks:
    """A plan that executors hold."""

    def __init__(self, planned: DataFrame) -> None:
        self._planned = planned.persist()

    def totals(self) -> PlanTotals:
        is_partition = F.col("segment_id").isNull()
        counts = self._planned.agg(
            F.count_if("is_changed").alias("changed_segment_count"),
            F.count_if("is_cut_at_end").alias("cut_segment_count"),
            F.count("must_count_from").alias("uncounted_segment_count"),
            F.count_if(is_partition).alias("partition_count"),
            *(
                F.coalesce(F.sum(name), F.lit(0)).alias(name)
                for name in ("served_segment_count", "gap_count", "superseded_segment_count")
            ),
            F.coalesce(F.bool_or(is_partition & ~F.col("txn_index_empty")), F.lit(False)).alias("may_hold_aborts"),
        )
        with unmeasured_batches(self._planned.sparkSession):
            return PlanTotals(**counts.collect()[0].asDict())

    def segments(self, where: str, columns: Sequence[str]) -> DataFrame:
        """Columns of the segments in which the column `where` is neither NULL nor false."""
        is_chosen = F.col(where).isNotNull() & (F.col(where).cast("string") != "false")
        return self._planned.where(F.col("segment_id").isNotNull() & is_chosen).select(*columns)

    def partitions(self) -> DataFrame:
        return self._planned.where(F.col("segment_id").isNull()).select(*PARTITION_METADATA.column_names)

    def txn_segments(self) -> DataFrame:
        listed = self._planned.where(F.col("segment_id").isNull())
        return listed.select("topic", "partition", "topic_id", F.inline("txn_segments"))

    def forget(self) -> None:
        self._planned.unpersist()


def _plan(warehouse: Warehouse, cut_maxima: CutMaxima) -> _PlannedHere | _PlannedInTasks:
    segments = warehouse.small_table(SEGMENTS, (*READ_COLUMNS, "leader_epoch_checkpoint"))
    if segments is None:
        return _PlannedInTasks(_plan_in_tasks(warehouse, cut_maxima))
    known = warehouse.small_rows(LOG_START_OFFSETS, LOG_START_OFFSETS.column_names)
    log_starts = {(row["topic"], row["partition"]): row["log_start_offset"] for row in known}
    return _PlannedHere(plan_all_partitions(segments, log_starts, cut_maxima))


def _plan_in_tasks(warehouse: Warehouse, cut_maxima: CutMaxima) -> DataFrame:
    # Read a fixed version: Spark recomputes cached rows of a table's newest version after every merge into it.
    stored = warehouse.read(SEGMENTS, warehouse.newest_version(SEGMENTS))
    segments = stored.repartition("topic", "partition")
    incarnation = Window.partitionBy("topic", "partition", "topic_id")
    segments = segments.select(
        *READ_COLUMNS,
        F.when(_rank() == F.max(_rank()).over(incarnation), F.col("leader_epoch_checkpoint")).alias("checkpoint"),
        F.col("leader_epoch_checkpoint").isNotNull().alias("has_checkpoint"),
    )
    log_starts = F.broadcast(warehouse.read(LOG_START_OFFSETS))
    types = SEGMENTS.column_types | PARTITION_METADATA.column_types
    types |= {"is_changed": "BOOLEAN", "is_cut_at_end": "BOOLEAN", "must_count_from": "BIGINT"}
    types["superseded_segment_count"] = "BIGINT"
    of_txn_segments = ", ".join(f"{name}: {TXN_SEGMENTS.column_types[name]}" for name in TXN_COLUMNS)
    types["txn_segments"] = f"ARRAY<STRUCT<{of_txn_segments}>>"
    ddl = ", ".join(f"{name} {types[name]}" for name in PLANNED_SCHEMA.names)

    def plan_group(rows: pa.Table) -> pa.Table:
        return plan_rows(rows, cut_maxima)

    return (
        segments.join(log_starts, ["topic", "partition"], "left")
        .groupBy("topic", "partition")
        .applyInArrow(plan_group, schema=ddl)
    )


def _rank() -> Column:
    """Rank copied segments by leader epoch and end: the segment of the highest rank has the newest checkpoint.

    The log of a damaged segment was not read. Its checkpoint counts, too, if it ends with the announced leader epoch.
    """
    status, end_offset = F.col("index_status"), F.col("end_offset")
    is_finished = F.col("state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
    checkpointed, announced = _last_epoch("leader_epoch_checkpoint"), _last_epoch("announced_leader_epochs")
    is_damaged = (status == IndexStatus.QUARANTINED.value) & (F.coalesce(announced, checkpointed) == checkpointed)
    last_epoch = F.when(is_damaged, checkpointed).otherwise(_last_epoch("segment_leader_epochs"))
    last_offset = F.when(is_damaged, F.coalesce("announced_end_offset", "start_offset")).otherwise(end_offset)
    is_known = ((status == IndexStatus.INDEXED.value) | is_damaged) & is_finished & checkpointed.isNotNull()
    return F.when(is_known, F.struct(last_epoch, last_offset, F.col("segment_id")))


def _last_epoch(column: str) -> Column:
    return F.try_element_at(column, F.lit(-1))["leader_epoch"]


def _cut_maxima(warehouse: Warehouse, cut: DataFrame) -> CutMaxima:
    """Find the largest timestamp up to the cut, from the stairs, or from the batches if records were not decoded.

    At sidecar depth it is that of the interval with the cut, which may be too large: a lookup without a match in the
    segment goes on with the next one.
    """
    built = warehouse.read(SEGMENTS).select("segment_id", "build_number", "index_depth")
    served = F.broadcast(cut.select("topic", "partition", "segment_id", "served_to_offset").join(built, ["segment_id"]))
    on = ["topic", "partition", "segment_id", "build_number"]
    by_record = (
        served.where(F.col("index_depth") == IndexDepth.RECORD.value)
        .join(warehouse.read(TIME_INDEX), on)
        .where(F.col("offset") <= F.col("served_to_offset"))
        .select("segment_id", "timestamp_ms", "offset")
    )
    by_batch = (
        served.where(F.col("index_depth") == IndexDepth.BATCH.value)
        .join(warehouse.read(OFFSET_INDEX), on)
        .where((F.col("last_offset") <= F.col("served_to_offset")) & F.col("running_max_timestamp_ms").isNotNull())
        .select(
            "segment_id",
            F.col("running_max_timestamp_ms").alias("timestamp_ms"),
            F.lit(None).cast("bigint").alias("offset"),
        )
    )
    by_interval = (
        served.where(F.col("index_depth") == IndexDepth.SIDECAR.value)
        .join(warehouse.read(INTERVAL_INDEX), on)
        .where((F.col("after_offset") < F.col("served_to_offset")) & F.col("running_max_timestamp_ms").isNotNull())
        .select(
            "segment_id",
            F.col("running_max_timestamp_ms").alias("timestamp_ms"),
            F.lit(None).cast("bigint").alias("offset"),
        )
    )
    found = by_record.unionByName(by_batch).unionByName(by_interval)
    rows = found.groupBy("segment_id").agg(F.max("timestamp_ms"), F.max("offset")).collect()
    return {row[0]: (row[1], row[2]) for row in rows}
