"""Read archived records as a Spark data source.

    from coldlog.records.source.datasource import register_source
    register_source(spark, {"warehouse.uri": "/data/coldlog", "archive.uri": "/mnt/tiered"})
    spark.read.format("coldlog").option("subscribe", "orders").load()

This is a Python data source of Spark: options arrive as text, a process next to the driver plans the tasks from the
tables, and each task yields Arrow batches. Sessions made by coldlog have it registered. Registering also sets
`spark.sql.python.filterPushdown.enabled`, without which Spark pushes no filters down.
docs/how-to/read-records.md is for users.

Spark keeps the plan for pushed filters with the DataFrame that `load` returned, and uses it for every other scan of
that DataFrame too. The rule in lib/java gives each scan its own filters. Without the rule, no filter is pushed down.
What an older Spark cannot do is in `coldlog.runtime.spark.spark_versions`. There `maxOffsetsPerTrigger` is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from py4j.java_gateway import JavaClass
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from coldlog.errors import UsageError
from coldlog.records.source.columns import columns_ddl
from coldlog.records.source.options import SourceOptions, read_columns, read_options
from coldlog.runtime.spark.spark_versions import SparkSeries, installed_series

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter  # since Spark 4.1

    from coldlog.records.source.stream_positions import Position

SHORT_NAME = "coldlog"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register_source(
    spark: SparkSession, defaults: Mapping[str, str] | None = None, *, bytes_read: Accumulator[int] | None = None
) -> None:
    """Register `spark.read.format("coldlog")` in the session; registering again replaces it.

    `defaults` are the options that a reading does not set itself. `bytes_read` sums up the bytes of logs that tasks
    read; as with every accumulator of Spark, a task that ran twice counts twice.
    """
    series = installed_series()
    spark.conf.set(_PUSHDOWN, "true")
    reader = ColdlogReader if series.pushes_filters and _separates_scans(spark) else UnfilteredReader
    spark.dataSource.register(_source_class(dict(defaults or {}), bytes_read, reader, series))


def _separates_scans(spark: SparkSession) -> bool:
    """Install the rule that gives each scan its own filters. Return False if its jar is missing."""
    gateway = spark._jvm
    assert gateway is not None
    rule = gateway.coldlog.SeparateScans
    if not isinstance(rule, JavaClass):
        warnings.warn(
            "filters are not pushed down when records are read: the jar of coldlog is not in the session. Name "
            ".jars/coldlog-log-store.jar of its checkout in spark.jars before the session is created",
            stacklevel=3,
        )
        return False
    rule.install(spark._jsparkSession.extensions())
    return True


def _source_class(
    defaults: Mapping[str, str],
    bytes_read: Accumulator[int] | None,
    reader_class: type[UnfilteredReader],
    series: SparkSeries,
) -> type[DataSource]:
    stream_reader_class = _stream_reader_class(series)

    class ColdlogDataSource(DataSource):
        """A class made for one session, so that it is pickled with that session's defaults."""

        @classmethod
        def name(cls) -> str:
            return SHORT_NAME

        def schema(self) -> str:
            return columns_ddl(read_columns(self._options()))

        def reader(self, schema: StructType) -> UnfilteredReader:
            options = read_options(self._options())
            _require_schema(schema, options)
            return reader_class(options, bytes_read)

        def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # Spark's name
            options = read_options(self._options(), is_stream=True)
            _require_schema(schema, options)
            if options.most_offsets is not None and not series.limits_streams:
                raise UsageError(
                    "maxOffsetsPerTrigger needs Spark 4.2: leave it out, then a batch reads all that is new"
                )
            return stream_reader_class(options, bytes_read)

        def _options(self) -> dict[str, str]:
            return {**defaults, **{name.lower(): value for name, value in self.options.items()}}

    return ColdlogDataSource


def _stream_reader_class(series: SparkSeries) -> type[StreamReader]:
    if not series.limits_streams:
        return UnlimitedStreamReader
    from coldlog.records.source.limited_streams import LimitedStreamReader

    return LimitedStreamReader


def _require_schema(schema: StructType, options: SourceOptions) -> None:
    fixed = columns_ddl(options.columns)
    if ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema) != fixed:
        raise UsageError(f"archived records have the fixed schema {fixed}; use the option columns to select columns")


class UnfilteredReader(DataSourceReader):
    """One reading: `partitions` runs next to the driver, `read` in tasks."""

    def __init__(self, options: SourceOptions, bytes_read: Accumulator[int] | None) -> None:
        from coldlog.records.source.filters import RecordFilter

        self._options = options
        self._bytes_read = bytes_read
        self._filter = RecordFilter(nulls_timestamps=options.nulls_timestamps)

    def partitions(self) -> list[InputPartition]:
        """Return one Spark partition per task, in order of topics, partitions and offsets."""
        from coldlog.records.source.planning import plan_reading
        from coldlog.records.source.read_tasks import TaskPartition

        return [TaskPartition(task) for task in plan_reading(self._options, self._filter)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        yield from _rows(self._options, partition, self._bytes_read)


class ColdlogReader(UnfilteredReader):
    """A reading with pushed filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Accept filters on topic, partition, offset and time; return those that Spark must still apply."""
        return self._filter.push(filters)


class StreamReader(DataSourceStreamReader):
    """A stream: `read` runs in tasks, everything else next to the driver."""

    def __init__(self, options: SourceOptions, bytes_read: Accumulator[int] | None) -> None:
        self._options = options
        self._bytes_read = bytes_read

    def initialOffset(self) -> Position:  # noqa: N802  # Spark's name
        """Return where a stream without a checkpoint begins."""
        from coldlog.records.source.streaming import initial_position

        return initial_position(self._options)

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """Return one Spark partition per task, in order of topics, partitions and offsets."""
        from coldlog.records.source.read_tasks import TaskPartition
        from coldlog.records.source.streaming import plan_micro_batch

        return [TaskPartition(task) for task in plan_micro_batch(self._options, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        yield from _rows(self._options, partition, self._bytes_read)


class UnlimitedStreamReader(StreamReader):
    """A stream whose micro-batches read all that is new.

    Spark does not say where the stream is, so the reader remembers the end of the last micro-batch. After a restart it
    knows no end: a position behind the checkpoint's is refused when Spark names both.
    """

    def __init__(self, options: SourceOptions, bytes_read: Accumulator[int] | None) -> None:
        super().__init__(options, bytes_read)
        self._reached: Position = {}

    def latestOffset(self) -> Position:  # type: ignore[override]  # noqa: N802  # Spark's name, and parameters since 4.2
        """Return how far the next micro-batch may read."""
        from coldlog.records.source.streaming import latest_position

        return latest_position(self._options, self._reached)

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """Return one Spark partition per task, in order of topics, partitions and offsets."""
        from coldlog.records.source.streaming import require_progress

        require_progress(start, end)
        self._reached = end
        return super().partitions(start, end)


def _rows(
    options: SourceOptions, partition: InputPartition | None, bytes_read: Accumulator[int] | None
) -> Iterator[pa.RecordBatch]:
    from coldlog.records.source.planning import open_reader
    from coldlog.records.source.read_tasks import ReadTask

    def count(size_bytes: int) -> None:
        if bytes_read is not None:
            bytes_read.add(size_bytes)

    # Spark up to 4.1 gives no partition to the only task of a reading without any.
    if partition is not None and isinstance(partition.value, ReadTask):
        yield from open_reader(options, count).iter_rows(partition.value)
