"""Put archived records into the order of a replay, with Spark.

The order is by the running maximum of each partition's timestamps (`coldlog.replay.order` explains why). Spark tasks
read ranges of offsets of one partition, in two passes:

    survey   reads only timestamps. Per task: the record count, the largest timestamp, and some places as samples. The
             driver computes where each task's running maximum begins, and bounds of buckets of about equal size.
    order    reads everything. A record goes to the bucket of its place, and each bucket is sorted, spilling to disk.

The sorted records are kept on the disks of the executors, counted, and numbered without gaps from the counts. Only
samples and counts are sent to the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import Broadcast, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.records.source.arrow_rows import arrow_schema
from coldlog.records.source.columns import COLUMN_TYPES, TIMESTAMP_MS, columns_ddl
from coldlog.records.source.options import SourceOptions, TopicPartition
from coldlog.records.source.planning import open_reader
from coldlog.records.source.read_tasks import ReadTask
from coldlog.replay.buckets import Place, Sample, bucket_numbers, choose_bounds
from coldlog.replay.order import running_maximum
from coldlog.replay.runs.replay_state import TaskState
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.runtime.spark.spark_versions import installed_series

RECORD_COLUMNS = tuple(name for name in COLUMN_TYPES if name != TIMESTAMP_MS)
OUTPUT_COLUMNS = ("task", "sequence", *RECORD_COLUMNS)
ORDER = ("task", "reached_ms", "topic", "partition", "offset")
_BUCKET_BYTES = 32 << 20
"""Bytes of logs, maybe compressed: one core sorts a bucket."""
_MOST_BUCKETS = 4096
_SAMPLES_A_BATCH = 4
_ROW_MASK = (1 << 33) - 1
"""monotonically_increasing_id has the partition in the bits above."""
_SURVEY_SCHEMA = pa.schema(
    [
        ("task_number", pa.int32()),
        ("record_count", pa.int64()),
        ("negative_count", pa.int64()),
        ("reached_ms", pa.int64()),
        ("sample_reached_ms", pa.list_(pa.int64())),
        ("sample_offsets", pa.list_(pa.int64())),
        ("sample_counts", pa.list_(pa.int64())),
    ]
)
_SURVEY_DDL = (
    "task_number INT, record_count BIGINT, negative_count BIGINT, reached_ms BIGINT, "
    "sample_reached_ms ARRAY<BIGINT>, sample_offsets ARRAY<BIGINT>, sample_counts ARRAY<BIGINT>"
)
_KEYED_SCHEMA = pa.schema(
    [("task", pa.int32()), ("reached_ms", pa.int64()), ("bucket", pa.int32()), *arrow_schema(RECORD_COLUMNS)]
)
_KEYED_DDL = f"task INT, reached_ms BIGINT, bucket INT, {columns_ddl(RECORD_COLUMNS)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedReading:
    """What is to be replayed: read tasks by topic, partition and offset; the replay's task of each partition; and the
    largest timestamp before a partition's first record (None: there is none)."""

    options: SourceOptions
    tasks: Sequence[ReadTask]
    task_of: Mapping[TopicPartition, int]
    reached_ms: Mapping[TopicPartition, int | None]
    drops_negative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The result of the first pass: where each read task's running maximum begins, the bounds of the buckets, and for
    each partition the largest timestamp up to its last record."""

    record_count: int
    negative_count: int
    carried_ms: Sequence[int | None]
    bounds: Sequence[Place]
    reached_ms: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """Counts of one task of the replay: records, how many are late against earlier runs, and by at most how much."""

    record_count: int = 0
    late_count: int = 0
    greatest_lateness_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """`records` has the columns `OUTPUT_COLUMNS`. They are in order: partition by partition, and within each row by
    row. `counts` is by task of the replay."""

    records: DataFrame
    counts: Mapping[int, TaskCounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The rows of one task in one bucket."""

    bucket: int
    task: int
    record_count: int
    late_count: int
    greatest_lateness_ms: int


def survey(spark: SparkSession, reading: OrderedReading) -> Survey:
    """Do the first pass."""
    shipped = spark.sparkContext.broadcast((reading.options, list(reading.tasks), reading.drops_negative))

    def look(batches):  # type: ignore[no-untyped-def]  # pyspark pickles it; its signature is Spark's
        options, tasks, drops_negative = shipped.value
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _survey_of(options, tasks[number], number, drops_negative=drops_negative)

    count = len(reading.tasks)
    found = spark.range(0, count, 1, max(1, count)).mapInArrow(look, schema=_SURVEY_DDL).toArrow().to_pylist()
    shipped.unpersist()
    found.sort(key=lambda row: row["task_number"])
    return _added_up(reading, found, _bucket_count(spark, reading))


def _bucket_count(spark: SparkSession, reading: OrderedReading) -> int:
    size_bytes = sum(task.size_bytes for task in reading.tasks)
    return max(spark.sparkContext.defaultParallelism, min(_MOST_BUCKETS, -(-size_bytes // _BUCKET_BYTES)))


def _added_up(reading: OrderedReading, found: Sequence[Mapping[str, object]], bucket_count: int) -> Survey:
    reached: dict[TopicPartition, int | None] = dict(reading.reached_ms)
    carried: list[int | None] = []
    samples: list[Sample] = []
    for task, row in zip(reading.tasks, found, strict=True):
        place = task.topic, task.partition
        before_ms = reached.get(place)
        carried.append(before_ms)
        for at_ms, offset, count in zip(
            row["sample_reached_ms"],  # type: ignore[call-overload]  # Arrow lists
            row["sample_offsets"],
            row["sample_counts"],
            strict=True,
        ):
            reached_ms = at_ms if before_ms is None else max(before_ms, at_ms)
            samples.append(Sample(Place(reading.task_of[place], reached_ms, *place, offset), count))
        task_ms = row["reached_ms"]
        if isinstance(task_ms, int):
            reached[place] = task_ms if before_ms is None else max(before_ms, task_ms)
    return Survey(
        record_count=_sum_of(found, "record_count"),
        negative_count=_sum_of(found, "negative_count"),
        carried_ms=carried,
        bounds=choose_bounds(samples, bucket_count),
        reached_ms=reached,
    )


def _sum_of(rows: Sequence[Mapping[str, object]], name: str) -> int:
    return sum(int(row[name]) for row in rows)  # type: ignore[call-overload]  # numbers of Arrow


@contextmanager
def ordered(
    spark: SparkSession, reading: OrderedReading, surveyed: Survey, before: Mapping[int, TaskState]
) -> Iterator[Ordered]:
    """Yield the records in order, numbered after those `before`. They are kept on disks until the block ends."""
    shipped = _ship(spark, reading, surveyed)
    in_order = (
        in_partitions(_keyed(spark, shipped, len(reading.tasks)), len(surveyed.bounds) + 1)
        .sortWithinPartitions(*ORDER)
        .drop("bucket")
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        runs = _count_runs(spark, in_order, before)
        counts: dict[int, TaskCounts] = {}
        shifts: list[tuple[int, int, int]] = []
        rows_in_bucket: Counter[int] = Counter()
        for run in runs:
            so_far = counts.get(run.task, TaskCounts())
            next_sequence = before[run.task].next_sequence + so_far.record_count
            shifts.append((run.bucket, run.task, next_sequence - rows_in_bucket[run.bucket]))
            rows_in_bucket[run.bucket] += run.record_count
            counts[run.task] = TaskCounts(
                record_count=so_far.record_count + run.record_count,
                late_count=so_far.late_count + run.late_count,
                greatest_lateness_ms=max(so_far.greatest_lateness_ms, run.greatest_lateness_ms),
            )
        yield Ordered(records=_numbered(spark, in_order, shifts), counts=counts)
    finally:
        in_order.unpersist()
        shipped.unpersist()


def _ship(spark: SparkSession, reading: OrderedReading, surveyed: Survey) -> Broadcast[tuple[Any, ...]]:
    """Broadcast what every Spark task needs."""
    whole = replace(reading.options, columns=RECORD_COLUMNS)
    return spark.sparkContext.broadcast(
        (whole, list(reading.tasks), surveyed.bounds, surveyed.carried_ms, reading.task_of, reading.drops_negative)
    )


def _keyed(spark: SparkSession, shipped: Broadcast[tuple[Any, ...]], count: int) -> DataFrame:
    """Return every record with its place in the order and its bucket."""

    def read(batches):  # type: ignore[no-untyped-def]
        options, tasks, bounds, carried_ms, task_of, drops_negative = shipped.value
        for batch in batches:
            for number in batch.column(0).to_pylist():
                task = tasks[number]
                to = task_of[task.topic, task.partition]
                yield from _iter_keyed(options, task, to, bounds, carried_ms[number], drops_negative=drops_negative)

    return spark.range(0, count, 1, max(1, count)).mapInArrow(read, schema=_KEYED_DDL)


def in_partitions(keyed: DataFrame, count: int) -> DataFrame:
    """Bring each record into the partition of Spark that its bucket names.

    Spark 4.0 chooses the partition by the hash of a column. There each bucket gets a key whose hash chooses it.
    """
    if installed_series().partitions_by_id:
        return keyed.repartitionById(count, F.col("bucket"))
    keys: dict[int, int] = {}
    first, step = 0, 8 * count
    while len(keys) < count:
        chosen = f"transform(sequence({first}, {first + step - 1}), key -> pmod(hash(key), {count})) AS chosen"
        (row,) = keyed.sparkSession.sql(f"SELECT {chosen}").collect()
        keys = {**dict(zip(row.chosen, range(first, first + step), strict=True)), **keys}
        first += step
    key = F.get(F.lit([keys[bucket] for bucket in range(count)]), F.col("bucket"))
    return keyed.repartition(count, key.cast("int"))


def _count_runs(spark: SparkSession, in_order: DataFrame, before: Mapping[int, TaskState]) -> list[_Run]:
    latest = [(task, state.latest_ms) for task, state in before.items()]
    known = _local(spark, latest, {"task": pa.int32(), "latest_ms": pa.int64()})
    lateness = F.greatest(F.coalesce(F.col("latest_ms") - F.col("reached_ms"), F.lit(0)), F.lit(0))
    rows = in_order.withColumn("bucket", F.spark_partition_id()).join(F.broadcast(known), "task")
    found = (
        rows.select("bucket", "task", lateness.alias("lateness_ms"))
        .groupBy("bucket", "task")
        .agg(
            F.count(F.lit(1)).alias("record_count"),
            F.count_if(F.col("lateness_ms") > 0).alias("late_count"),
            F.max("lateness_ms").alias("greatest_lateness_ms"),
        )
    )
    runs = [_Run(**row) for row in found.toArrow().to_pylist()]
    return sorted(runs, key=lambda run: (run.bucket, run.task))


def _numbered(spark: SparkSession, in_order: DataFrame, shifts: Sequence[tuple[int, int, int]]) -> DataFrame:
    """Add `sequence`: a row's number in its bucket, plus the shift of its bucket and task."""
    at_row = F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_MASK))
    rows = in_order.withColumn("at_row", at_row).withColumn("at_bucket", F.spark_partition_id())
    begins = _local(spark, shifts, {"at_bucket": pa.int32(), "task": pa.int32(), "shift": pa.int64()})
    joined = rows.join(F.broadcast(begins), ["at_bucket", "task"])
    return joined.select("task", (F.col("at_row") + F.col("shift")).alias("sequence"), *RECORD_COLUMNS)


def _local(
    spark: SparkSession, rows: Sequence[tuple[int | None, ...]], columns: Mapping[str, pa.DataType]
) -> DataFrame:
    """Return a frame of some rows that the driver has; a list of Python would take Spark a job of its own."""
    schema = pa.schema(list(columns.items()))
    return frame_of(spark, pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema))


def _survey_of(options: SourceOptions, task: ReadTask, number: int, *, drops_negative: bool) -> pa.RecordBatch:
    """Return the survey's row of one read task."""
    record_count, negative_count, reached_ms = 0, 0, None
    samples: list[tuple[int, int, int]] = []
    for rows in open_reader(replace(options, columns=("offset", "timestamp")), _not_counted).iter_rows(task):
        timestamps_ms, negatives = _milliseconds(rows)
        negative_count += int(np.count_nonzero(negatives))
        offsets = rows.column("offset").to_numpy()
        if drops_negative:
            timestamps_ms, offsets = timestamps_ms[~negatives], offsets[~negatives]
        if not len(offsets):
            continue
        record_count += len(offsets)
        maxima = running_maximum(timestamps_ms, reached_ms)
        reached_ms = int(maxima[-1])
        ends = np.unique(np.linspace(0, len(offsets), min(_SAMPLES_A_BATCH, len(offsets)) + 1).astype(np.int64)[1:])
        counts = np.diff(ends, prepend=0)
        samples += zip(maxima[ends - 1].tolist(), offsets[ends - 1].tolist(), counts.tolist(), strict=True)
    row = {
        "task_number": number,
        "record_count": record_count,
        "negative_count": negative_count,
        "reached_ms": reached_ms,
        "sample_reached_ms": [sample[0] for sample in samples],
        "sample_offsets": [sample[1] for sample in samples],
        "sample_counts": [sample[2] for sample in samples],
    }
    return pa.RecordBatch.from_pylist([row], schema=_SURVEY_SCHEMA)


def _iter_keyed(
    options: SourceOptions,
    task: ReadTask,
    replay_task: int,
    bounds: Sequence[Place],
    reached_ms: int | None,
    *,
    drops_negative: bool,
) -> Iterator[pa.RecordBatch]:
    for read in open_reader(options, _not_counted).iter_rows(task):
        timestamps_ms, negatives = _milliseconds(read)
        is_all = not (drops_negative and negatives.any())
        rows = read if is_all else read.filter(pa.array(~negatives))
        timestamps_ms = timestamps_ms if is_all else timestamps_ms[~negatives]
        if not rows.num_rows:
            continue
        maxima = running_maximum(timestamps_ms, reached_ms)
        reached_ms = int(maxima[-1])
        offsets = rows.column("offset").to_numpy()
        buckets = bucket_numbers(bounds, replay_task, task.topic, task.partition, maxima, offsets)
        keys = [pa.repeat(pa.scalar(replay_task, pa.int32()), rows.num_rows), pa.array(maxima), pa.array(buckets)]
        yield pa.RecordBatch.from_arrays([*keys, *rows.columns], schema=_KEYED_SCHEMA)


def _milliseconds(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return each record's timestamp, and whether it is negative."""
    timestamps_ms: npt.NDArray[np.int64] = rows.column("timestamp").view(pa.int64()).to_numpy() // 1000
    return timestamps_ms, timestamps_ms < 0


def _not_counted(_: int) -> None:
    """Ignore the bytes of logs: a replay does not report them."""
