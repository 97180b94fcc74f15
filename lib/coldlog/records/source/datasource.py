"""datasource: how does Spark read archived records?

    from coldlog.records.source.datasource import register_source
    register_source(spark, {"warehouse.uri": "/data/coldlog", "archive.uri": "/mnt/tiered"})
    spark.read.format("coldlog").option("subscribe", "orders").load()

A Python data source of Spark: options reach it as texts, a process beside the driver plans the tasks from the tables,
and each task yields Arrow batches. coldlog's own sessions have it registered. Filters are pushed down, which Spark does
only with `spark.sql.python.filterPushdown.enabled`: registering sets it. docs/how-to/read-records.md is for users.

Spark 4.2 keeps what it planned for pushed filters with the DataFrame that `load` gave, and takes it for every other
scan of that DataFrame too. The rule of lib/java gives each scan its own; where it is not there, nothing is pushed down.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from py4j.java_gateway import JavaClass
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from coldlog.errors import UsageError
from coldlog.records.source.columns import spark_schema
from coldlog.records.source.options import SourceOptions, read_columns, read_options
from coldlog.runtime.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from coldlog.records.source.streaming import Position

SHORT_NAME = "coldlog"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_SHARED_GROUPS = ("warehouse.", "archive.", "s3.", "index.max_")


def register_source(
    spark: SparkSession, defaults: Mapping[str, str] | None = None, *, bytes_read: Accumulator[int] | None = None
) -> None:
    """Makes `spark.read.format("coldlog")` known to the session; registering again replaces.

    `defaults` are options of every reading that does not say otherwise. `bytes_read` adds up what tasks read of logs;
    as with every accumulator of Spark, a task that ran twice counts twice.
    """
    spark.conf.set(_PUSHDOWN, "true")
    reader = ColdlogReader if _separates_scans(spark) else UnfilteredReader
    spark.dataSource.register(_source_class(dict(defaults or {}), bytes_read, reader))


def _separates_scans(spark: SparkSession) -> bool:
    """Whether each scan has its own filters from now on."""
    gateway = spark._jvm
    assert gateway is not None
    rule = gateway.coldlog.SeparateScans
    if not isinstance(rule, JavaClass):
        warnings.warn(
            "records are read without pushing filters down: the jar of coldlog (.jars/coldlog-log-store.jar of its "
            "checkout) is not in the session; name it in spark.jars before the session is made",
            stacklevel=3,
        )
        return False
    rule.install(spark._jsparkSession.extensions())
    return True


def source_defaults(settings: Settings) -> dict[str, str]:
    """The options by which every reading finds the warehouse and the archive of the settings."""
    told = {key: value for key, value in settings.items() if key.startswith(_SHARED_GROUPS) and value is not None}
    return {key: str(value) for key, value in told.items()}


def _source_class(
    defaults: Mapping[str, str], bytes_read: Accumulator[int] | None, reader_class: type[UnfilteredReader]
) -> type[DataSource]:
    class ColdlogDataSource(DataSource):
        """Made for one session, so that it travels with that session's defaults."""

        @classmethod
        def name(cls) -> str:
            return SHORT_NAME

        def schema(self) -> StructType:
            return spark_schema(read_columns(self._options()))

        def reader(self, schema: StructType) -> UnfilteredReader:
            options = read_options(self._options())
            _require_schema(schema, options)
            return reader_class(options, bytes_read)

        def streamReader(self, schema: StructType) -> ColdlogStreamReader:  # noqa: N802  # Spark's name
            options = read_options(self._options(), is_stream=True)
            _require_schema(schema, options)
            return ColdlogStreamReader(options, bytes_read)

        def _options(self) -> dict[str, str]:
            return {**defaults, **{name.lower(): value for name, value in self.options.items()}}

    return ColdlogDataSource


def _require_schema(schema: StructType, options: SourceOptions) -> None:
    fixed = spark_schema(options.columns).simpleString()
    if schema.simpleString() != fixed:
        raise UsageError(f"archived records have a fixed schema, {fixed}; the option columns leaves some out")


class UnfilteredReader(DataSourceReader):
    """One reading: `partitions` runs beside the driver, `read` in tasks."""

    def __init__(self, options: SourceOptions, bytes_read: Accumulator[int] | None) -> None:
        from coldlog.records.source.filters import RecordFilter

        self._options = options
        self._bytes_read = bytes_read
        self._filter = RecordFilter()

    def partitions(self) -> list[InputPartition]:
        """A partition of Spark a task, in order of topics, partitions and offsets."""
        from coldlog.records.source.planning import plan_reading
        from coldlog.records.source.read_tasks import TaskPartition

        return [TaskPartition(task) for task in plan_reading(self._options, self._filter)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        yield from _rows(self._options, partition, self._bytes_read)


class ColdlogReader(UnfilteredReader):
    """The same, of what filters leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Takes filters on topic, partition, offset and timestamp."""
        return self._filter.push(filters)


class ColdlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: `read` runs in tasks, all else beside the driver."""

    def __init__(self, options: SourceOptions, bytes_read: Accumulator[int] | None) -> None:
        self._options = options
        self._bytes_read = bytes_read
        self._target: Position | None = None

    def initialOffset(self) -> Position:  # noqa: N802  # Spark's names, here and below
        """Where a stream without a checkpoint begins."""
        from coldlog.records.source.streaming import initial_position

        return initial_position(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger`, or everything."""
        most = self._options.most_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """How far the next micro-batch may read."""
        from coldlog.records.source.streaming import latest_position

        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return latest_position(self._options, start, most_offsets=most, target=self._target)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is uploaded from now on is for the next run."""
        from coldlog.records.source.streaming import latest_position

        self._target = latest_position(self._options, {})

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """A partition of Spark a task, in order of topics, partitions and offsets."""
        from coldlog.records.source.read_tasks import TaskPartition
        from coldlog.records.source.streaming import plan_micro_batch

        return [TaskPartition(task) for task in plan_micro_batch(self._options, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        yield from _rows(self._options, partition, self._bytes_read)


def _rows(
    options: SourceOptions, partition: InputPartition, bytes_read: Accumulator[int] | None
) -> Iterator[pa.RecordBatch]:
    from coldlog.records.source.planning import open_reader
    from coldlog.records.source.read_tasks import ReadTask

    def count(size_bytes: int) -> None:
        if bytes_read is not None:
            bytes_read.add(size_bytes)

    if isinstance(partition.value, ReadTask):
        yield from open_reader(options, count).iter_rows(partition.value)
