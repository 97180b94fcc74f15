"""Plan which offsets each segment would serve if it were published now.

The plan applies `index.partition_plan` to all partitions at once, one group per topic-partition. It has one row per
segment whose served columns change or that must be counted again, and one row per partition. The build reads from it
which segments to count again from a log start offset. Materialize reads what to publish. If materialize follows the
build and nothing changed in between, both use the same plan.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.index.partition_plan import CutMaxima, IncarnationPlan, ServedSegment, plan_partition
from coldlog.index.segment_facts import SegmentFacts
from coldlog.index.unserved_ranges import UnservedRange
from coldlog.model.states import IndexDepth, IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.time_index import TIME_INDEX
from coldlog.tables.delta.warehouse import Warehouse

SERVED_COLUMNS = (
    "is_within_lineage",
    "served_from_offset",
    "served_to_offset",
    "served_build_number",
    "served_index_depth",
    "served_holes",
    "not_served_reason",
    "previous_running_max_timestamp_ms",
    "running_max_timestamp_ms",
    "broker_previous_running_max_timestamp_ms",
    "broker_running_max_timestamp_ms",
)
_PLANNED_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("topic_id", pa.string()),
        ("start_offset", pa.int64()),
        ("segment_id", pa.string()),
        *(SEGMENTS.arrow_schema.field(name) for name in SERVED_COLUMNS),
        ("is_changed", pa.bool_()),
        ("is_cut_at_end", pa.bool_()),
        ("must_count_from", pa.int64()),
        ("superseded_segment_count", pa.int64()),
        *(
            field.with_nullable(True)
            for field in PARTITION_METADATA.arrow_schema
            if field.name not in PARTITION_METADATA.key
        ),
    ]
)
_READ_COLUMNS = (
    "topic", "partition", "topic_id", "start_offset", "segment_id", "end_offset", "state", "state_source",
    "index_status", "build_number", "index_depth", "counted_from_offset", "counted_max_timestamp_ms",
    "counted_max_timestamp_offset", "metadata_max_timestamp_ms",
    "log_modified_ms", "size_bytes", "record_count", "txn_index_empty", "segment_leader_epochs", "was_copied",
    "announced_end_offset", "announced_max_timestamp_ms", "announced_leader_epochs", "event_timestamp_ms",
    "open_transaction_count", "open_from_offset", "superseded_build_numbers", "holes", *SERVED_COLUMNS,
)  # fmt: skip


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
    """The plan of a warehouse: made at its first use, kept on the executors until `forget` or the end of the `with`
    block."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._made: tuple[DataFrame, PlanTotals] | None = None

    def __enter__(self) -> ServingPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop the plan, because `segments` or `log_start_offsets` will change."""
        if self._made is not None:
            self._made[0].unpersist()
            self._made = None

    @property
    def totals(self) -> PlanTotals:
        return self._make()[1]

    @property
    def segments(self) -> DataFrame:
        """The plan's rows of segments."""
        return self._make()[0].where(F.col("segment_id").isNotNull())

    @property
    def partitions(self) -> DataFrame:
        """The plan's rows of partitions, in the columns of `partition_metadata`."""
        return self._make()[0].where(F.col("segment_id").isNull()).select(*PARTITION_METADATA.column_names)

    def _make(self) -> tuple[DataFrame, PlanTotals]:
        if self._made is None:
            planned = _plan(self._warehouse, {}).persist()
            totals = _totals(planned)
            if totals.cut_segment_count:
                maxima = _cut_maxima(self._warehouse, planned.where("is_cut_at_end"))
                planned.unpersist()
                planned = _plan(self._warehouse, maxima).persist()
                totals = _totals(planned)
            self._made = planned, totals
        return self._made


def _totals(planned: DataFrame) -> PlanTotals:
    is_partition = F.col("segment_id").isNull()
    counts = planned.agg(
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
    return PlanTotals(**counts.collect()[0].asDict())


def _plan(warehouse: Warehouse, cut_maxima: CutMaxima) -> DataFrame:
    # Read a fixed version: Spark recomputes cached rows of a table's newest version after every merge into it.
    stored = warehouse.read(SEGMENTS, warehouse.newest_version(SEGMENTS))
    segments = stored.repartition("topic", "partition")
    incarnation = Window.partitionBy("topic", "partition", "topic_id")
    segments = segments.select(
        *_READ_COLUMNS,
        F.when(_rank() == F.max(_rank()).over(incarnation), F.col("leader_epoch_checkpoint")).alias("checkpoint"),
        F.col("leader_epoch_checkpoint").isNotNull().alias("has_checkpoint"),
    )
    log_starts = F.broadcast(warehouse.read(LOG_START_OFFSETS))
    types = SEGMENTS.column_types | PARTITION_METADATA.column_types
    types |= {"is_changed": "BOOLEAN", "is_cut_at_end": "BOOLEAN", "must_count_from": "BIGINT"}
    types["superseded_segment_count"] = "BIGINT"
    ddl = ", ".join(f"{name} {types[name]}" for name in _PLANNED_SCHEMA.names)

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


def plan_rows(rows: pa.Table, cut_maxima: CutMaxima) -> pa.Table:
    """Plan one topic-partition from its rows of `segments` with the column log_start_offset added."""
    by_id = {row["segment_id"]: row for row in rows.to_pylist()}
    first_row = next(iter(by_id.values()))
    checkpoints = {row["topic_id"]: _epoch_starts(row["checkpoint"]) for row in by_id.values() if row["checkpoint"]}
    plans = plan_partition(map(_facts, by_id.values()), first_row["log_start_offset"], checkpoints, cut_maxima)
    where = {"topic": first_row["topic"], "partition": first_row["partition"]}
    planned = []
    for plan in plans:
        for served in plan.segments:
            row = _segment_row(served, by_id[served.segment.segment_id])
            if row["is_changed"] or row["is_cut_at_end"] or row["must_count_from"] is not None:
                planned.append(where | row)
        planned.append(where | _partition_row(plan, by_id))
    return pa.Table.from_pylist(planned, schema=_PLANNED_SCHEMA)


def _facts(row: dict[str, object]) -> SegmentFacts:
    is_finished = _is_finished(row)
    is_usable = is_finished and row["index_status"] == IndexStatus.INDEXED.value
    listed = {name: row[name] for name in ("topic_id", "segment_id", "start_offset")}
    is_deleted = bool(row["was_copied"]) and str(row["state"]).startswith("DELETE_SEGMENT")
    if not is_usable and not is_deleted:
        return SegmentFacts(
            is_usable=False,
            is_finished=is_finished,
            is_unread=_is_unread(row),
            hides_log_start=row["index_status"] == IndexStatus.QUARANTINED.value and not row["has_checkpoint"],
            written_ms=_written_ms(row),
            end_offset=-1 if row["announced_end_offset"] is None else _count(row["announced_end_offset"]),
            metadata_max_timestamp_ms=_first_known(row["announced_max_timestamp_ms"]),
            **listed,  # type: ignore[arg-type]  # a row of `segments`
        )
    counted = {name: row[name] for name in ("counted_from_offset", "counted_max_timestamp_ms")} if is_usable else {}
    return SegmentFacts(
        is_usable=is_usable,
        is_finished=is_finished,
        is_deleted=is_deleted,
        written_ms=_written_ms(row),
        end_offset=max(_count(row["end_offset"]), _count(row["announced_end_offset"])),
        leader_epochs=_epoch_starts(row["announced_leader_epochs"] or row["segment_leader_epochs"]),
        counted_max_timestamp_offset=row["counted_max_timestamp_offset"] if is_usable else None,  # type: ignore[arg-type]
        metadata_max_timestamp_ms=_first_known(row["announced_max_timestamp_ms"], row["metadata_max_timestamp_ms"]),
        hides_log_start=is_usable and not row["has_checkpoint"],
        holes=_holes(row["holes"]) if is_usable else (),
        **listed,  # type: ignore[arg-type]  # a row of `segments`
        **counted,  # type: ignore[arg-type]
    )


def _is_finished(row: dict[str, object]) -> bool:
    """Whether the segment was copied and not deleted. An orphan is whole, but no event announced it."""
    is_copied = row["state"] == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
    return is_copied and row["index_status"] != IndexStatus.ORPHAN.value


def _is_unread(row: dict[str, object]) -> bool:
    """Whether the archive should have the segment, and its records are not indexed. A listed segment with missing files
    may still be uploaded, or damaged: nothing tells which."""
    is_listed_in_part = row["index_status"] == IndexStatus.INCOMPLETE.value and row["state_source"] == "listing"
    return _is_finished(row) or is_listed_in_part


def _written_ms(row: dict[str, object]) -> int | None:
    return _first_known(row["event_timestamp_ms"], row["log_modified_ms"])


def _first_known(*values: object) -> int | None:
    return next((value for value in values if isinstance(value, int)), None)


def _epoch_starts(entries: object) -> tuple[EpochStart, ...]:
    return tuple((entry["leader_epoch"], entry["start_offset"]) for entry in entries or ())  # type: ignore[attr-defined]


def _holes(holes: object) -> tuple[UnservedRange, ...]:
    """Return the holes that lost offsets."""
    names = [each.name for each in fields(UnservedRange)]
    ranges = [UnservedRange(**{name: hole[name] for name in names}) for hole in holes or ()]  # type: ignore[attr-defined]
    return tuple(each for each in ranges if each.to_offset is None or each.to_offset >= each.from_offset)


def _segment_row(served: ServedSegment, stored: dict[str, object]) -> dict[str, object]:
    wanted: dict[str, object] = {
        "is_within_lineage": served.is_within_lineage,
        "served_from_offset": served.from_offset,
        "served_to_offset": served.to_offset,
        "served_build_number": None if served.from_offset is None else stored["build_number"],
        "served_index_depth": None if served.from_offset is None else stored["index_depth"],
        "served_holes": None if served.from_offset is None else stored["holes"],
        "not_served_reason": None if served.reason is None else served.reason.value,
        "previous_running_max_timestamp_ms": served.previous_running_max_timestamp_ms,
        "running_max_timestamp_ms": served.running_max_timestamp_ms,
        "broker_previous_running_max_timestamp_ms": served.broker_previous_running_max_timestamp_ms,
        "broker_running_max_timestamp_ms": served.broker_running_max_timestamp_ms,
    }
    return {
        "topic_id": served.segment.topic_id,
        "start_offset": served.segment.start_offset,
        "segment_id": served.segment.segment_id,
        **wanted,
        "is_changed": any(stored[name] != wanted[name] for name in SERVED_COLUMNS),
        "is_cut_at_end": served.is_cut_at_end,
        "must_count_from": served.must_count_from if served.reason is None else None,
    }


def _partition_row(plan: IncarnationPlan, by_id: dict[str, dict[str, object]]) -> dict[str, object]:
    stored = [by_id[each.segment.segment_id] for each in plan.segments]
    served = [by_id[each.segment.segment_id] for each in plan.segments if each.reason is None]
    status = [row["index_status"] for row in stored]
    return {
        "topic_id": plan.topic_id,
        "is_current": plan.is_current,
        "log_start_offset": None if plan.log_start is None else plan.log_start.offset,
        "log_start_source": None if plan.log_start is None else plan.log_start.source.value,
        "leader_epoch_lineage": [
            {"leader_epoch": epoch, "start_offset": offset} for epoch, offset in plan.lineage.entries
        ],
        "earliest_offset": plan.earliest_offset,
        "latest_tiered_offset": plan.latest_tiered_offset,
        "max_timestamp_ms": plan.max_timestamp_ms,
        "max_timestamp_offset": plan.max_timestamp_offset,
        "finished_max_timestamp_ms": plan.finished_max_timestamp_ms,
        "segment_count": len(stored),
        "served_segment_count": len(served),
        "unserved_segment_count": len(stored) - len(served),
        "pending_segment_count": status.count(IndexStatus.PENDING.value),
        "quarantined_segment_count": status.count(IndexStatus.QUARANTINED.value),
        "txn_index_segment_count": sum(row["txn_index_empty"] is False for row in served),
        "txn_index_empty": all(row["txn_index_empty"] for row in served) if served else None,
        "size_bytes": sum(_count(row["size_bytes"]) for row in served),
        "record_count": sum(_count(row["record_count"]) for row in served),
        "gap_count": plan.gap_count,
        "unserved_ranges": [asdict(each) for each in plan.unserved_ranges],
        "superseded_segment_count": sum(row["superseded_build_numbers"] is not None for row in stored),
        **_stable_offset(plan, by_id),
    }


def _stable_offset(plan: IncarnationPlan, by_id: dict[str, dict[str, object]]) -> dict[str, object]:
    """The transactions that the last served segment leaves open; a reader of committed records stops at the oldest."""
    if plan.latest_tiered_offset is None:
        return {"stable_offset": None, "open_transaction_count": None}
    newest = max((each for each in plan.segments if each.reason is None), key=lambda each: each.to_offset or 0)
    row = by_id[newest.segment.segment_id]
    open_from = _first_known(row["open_from_offset"])
    end = plan.latest_tiered_offset + 1
    return {
        "stable_offset": end if open_from is None else min(end, open_from),
        "open_transaction_count": row["open_transaction_count"],
    }


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


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
