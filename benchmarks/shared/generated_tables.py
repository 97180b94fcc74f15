"""generated_tables: tables of an archive of many partitions, as the pipeline would have left them.

Ten million stairs in ten thousand partitions would be a hundred thousand small objects; what a lookup reads of them are
rows, and those are written here as the pipeline writes them: by the tables' definitions, in key order. Every record is
a stair, some milliseconds later than the one before; so the right answer to any question is known.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.shared.generated_logs import CACHE
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.model.states import IndexDepth, IndexStatus, RemoteLogSegmentState
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.data_files import LEAST_ROW_GROUP_ROWS
from coldlog.tables.delta.warehouse import Warehouse

FIRST_MS = 1_700_000_000_000
STEP_MS = 40
_BUILD = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesShape:
    """How many partitions, segments a partition, batches a segment, stairs a batch; topics have 100 partitions."""

    partition_count: int
    segments: int
    batches: int
    stairs: int

    @property
    def name(self) -> str:
        return f"tables-{self.partition_count}-{self.segments}-{self.batches}-{self.stairs}"

    @property
    def records(self) -> int:
        """Of a partition."""
        return self.segments * self.batches * self.stairs

    @property
    def stair_count(self) -> int:
        return self.partition_count * self.records


def topic_and_partition(number: int) -> tuple[str, int]:
    """The place of the partition with this number."""
    return f"bulk-{number // 100:04d}", number % 100


def offset_at_or_after(timestamp_ms: int, shape: TablesShape) -> int | None:
    """The right answer, for every partition."""
    offset = max(0, -((FIRST_MS - timestamp_ms) // STEP_MS))
    return offset if offset < shape.records else None


def location_of(shape: TablesShape) -> Path:
    """Where the warehouse is, or will be."""
    return CACHE / "warehouses" / shape.name


def get_tables(spark: SparkSession, shape: TablesShape) -> Warehouse:
    """The warehouse; made at the first call."""
    location = location_of(shape)
    warehouse = Warehouse(spark=spark, uri=str(location))
    warehouse.create_missing()
    done = Path(location, "complete")
    if not done.exists():
        for table, rows in _rows(spark, shape):
            _append(warehouse, _as_built(table, shape), rows)
        done.touch()
    return warehouse


def _as_built(table: TableDefinition, shape: TablesShape) -> TableDefinition:
    """The table with the row groups that a build writes: if segments are small, one ends after some 8,192 rows."""
    is_small = shape.batches * shape.stairs < LEAST_ROW_GROUP_ROWS
    return replace(table, row_group_rows=LEAST_ROW_GROUP_ROWS) if is_small else table


def _rows(spark: SparkSession, shape: TablesShape) -> list[tuple[TableDefinition, DataFrame]]:
    per_segment = shape.batches * shape.stairs
    place = {
        "topic": F.format_string("bulk-%04d", F.expr("CAST(p DIV 100 AS INT)")),
        "partition": (F.col("p") % 100).cast("int"),
        "topic_id": F.format_string("topic-%017d", F.expr("CAST(p DIV 100 AS INT)")),
    }
    lineage = F.array(F.struct(F.lit(0).alias("leader_epoch"), F.lit(0).cast("bigint").alias("start_offset")))
    count = {name: F.lit(0).cast("bigint") for name in PARTITION_METADATA.column_names if name.endswith("_count")}

    def timestamp(offset: Column) -> Column:
        return F.lit(FIRST_MS) + offset * STEP_MS

    def before(number: Column, offset: Column) -> Column:
        return F.when(number > 0, timestamp(offset - 1))

    def numbered(*levels: tuple[str, int]) -> DataFrame:
        rows = spark.range(shape.partition_count).withColumnRenamed("id", "p")
        for name, size in levels:
            rows = rows.withColumn(name, F.explode(F.sequence(F.lit(0).cast("bigint"), F.lit(size - 1).cast("bigint"))))
        return rows

    segment_id = F.format_string("%010d-%011d", F.col("p"), F.col("s"))
    built = {"segment_id": segment_id, "build_number": F.lit(_BUILD).cast("bigint")}
    partitions = numbered().select(
        *_named(
            PARTITION_METADATA,
            place
            | count
            | {
                "is_current": F.lit(True),
                "log_start_offset": F.lit(0).cast("bigint"),
                "earliest_offset": F.lit(0).cast("bigint"),
                "latest_tiered_offset": F.lit(shape.records - 1).cast("bigint"),
                "max_timestamp_ms": timestamp(F.lit(shape.records - 1).cast("bigint")),
                "max_timestamp_offset": F.lit(shape.records - 1).cast("bigint"),
                "finished_max_timestamp_ms": timestamp(F.lit(shape.records - 1).cast("bigint")),
                "txn_index_empty": F.lit(True),
                "size_bytes": F.lit(0).cast("bigint"),
                "leader_epoch_lineage": lineage,
                "unserved_ranges": F.array(),
                "stable_offset": F.lit(shape.records).cast("bigint"),
            },
        )
    )
    first = F.col("s") * per_segment
    last = first + per_segment - 1
    segments = numbered(("s", shape.segments)).select(
        *_named(
            SEGMENTS,
            place
            | built
            | {
                "start_offset": first,
                "end_offset": last,
                "segment_leader_epochs": lineage,
                "state": F.lit(RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name),
                "state_source": F.lit("events"),
                "is_listed": F.lit(True),
                "index_status": F.lit(IndexStatus.INDEXED.value),
                "index_depth": F.lit(IndexDepth.RECORD.value),
                "size_bytes": F.lit(shape.batches * 16_384).cast("bigint"),
                "max_timestamp_ms": timestamp(last),
                "max_timestamp_offset": last,
                "metadata_max_timestamp_ms": timestamp(last),
                "counted_from_offset": first,
                "counted_max_timestamp_ms": timestamp(last),
                "counted_max_timestamp_offset": last,
                "record_count": F.lit(per_segment).cast("bigint"),
                "txn_index_empty": F.lit(True),
                "leader_epoch_checkpoint": lineage,
                "open_transaction_count": F.lit(0).cast("bigint"),
                "served_from_offset": first,
                "served_to_offset": last,
                "served_build_number": F.lit(_BUILD).cast("bigint"),
                "served_index_depth": F.lit(IndexDepth.RECORD.value),
                "is_within_lineage": F.lit(True),
                "previous_running_max_timestamp_ms": before(F.col("s"), first),
                "running_max_timestamp_ms": timestamp(last),
                "broker_previous_running_max_timestamp_ms": before(F.col("s"), first),
                "broker_running_max_timestamp_ms": timestamp(last),
            },
        )
    )
    base = first + F.col("b") * shape.stairs
    end = base + shape.stairs - 1
    batches = numbered(("s", shape.segments), ("b", shape.batches)).select(
        *_named(
            OFFSET_INDEX,
            place
            | built
            | {
                "base_offset": base,
                "last_offset": end,
                "position": F.col("b") * 16_384,
                "size_bytes": F.lit(16_384),
                "leader_epoch": F.lit(0),
                "max_timestamp_ms": timestamp(end),
                "previous_running_max_timestamp_ms": before(F.col("b"), base),
                "running_max_timestamp_ms": timestamp(end),
                "record_count": F.lit(shape.stairs),
                "codec": F.lit("none"),
                "timestamp_type": F.lit("CreateTime"),
                "is_transactional": F.lit(False),
                "is_control": F.lit(False),
                "producer_id": F.lit(-1).cast("bigint"),
                "producer_epoch": F.lit(-1).cast("smallint"),
                "base_sequence": F.lit(-1),
            },
        )
    )
    offset = base + F.col("t")
    stairs = numbered(("s", shape.segments), ("b", shape.batches), ("t", shape.stairs)).select(
        *_named(
            TIME_INDEX,
            place
            | built
            | {
                "batch_base_offset": base,
                "offset": offset,
                "timestamp_ms": timestamp(offset),
                "previous_timestamp_ms": before(F.col("b") + F.col("t"), offset),
                "leader_epoch": F.lit(0),
            },
        )
    )
    return [(PARTITION_METADATA, partitions), (SEGMENTS, segments), (OFFSET_INDEX, batches), (TIME_INDEX, stairs)]


def _named(table: TableDefinition, values: dict[str, Column]) -> list[Column]:
    """The table's columns; those without a value are NULL, or empty where they may not be."""
    chosen: list[Column] = []
    for column in table.columns:
        value = values.get(column.name)
        if value is None:
            value = F.array() if column.required and column.type.startswith("ARRAY") else F.lit(None)
        chosen.append(value.cast(column.type).alias(column.name))
    return chosen


def _append(warehouse: Warehouse, table: TableDefinition, rows: DataFrame) -> None:
    """In key order, some millions of rows a file."""
    in_order = rows.repartitionByRange(8, "topic", "partition").sortWithinPartitions(*table.key)
    warehouse.append(table, in_order)


def time_single_lookups(location: Path, shape: TablesShape, count: int) -> dict[str, float]:
    """Ask for random partitions and times, twice `count`, and check each answer.

    Returns milliseconds: the median and the 99th percentile of the second half, and the first of all.
    """
    randomness, milliseconds = random.Random(11), list[float]()
    with OffsetReader(str(location)) as reader:
        for _ in range(2 * count):
            topic, partition = topic_and_partition(randomness.randrange(shape.partition_count))
            timestamp_ms = FIRST_MS + randomness.randrange((shape.records - 1) * STEP_MS)
            started = time.perf_counter()
            found = reader.offset_for_timestamp(topic, partition, timestamp_ms)
            milliseconds.append((time.perf_counter() - started) * 1000)
            if found is None or found.offset != offset_at_or_after(timestamp_ms, shape):
                raise RuntimeError(f"a wrong answer: {found}")
    warm = sorted(milliseconds[count:])
    return {
        "median": warm[len(warm) // 2],
        "99th percentile": warm[len(warm) * 99 // 100],
        "first of all": milliseconds[0],
    }
