"""Read the raw records of the metadata topic.

A source returns raw records of each partition from a given offset on: partition and offset in the topic, timestamp,
key, value. Damage is a row with its facts instead of a value, the last row of its partition. If the topic's log begins
after the given offset, retention has removed wanted records: a row with the reason `NO_LONGER_THERE` has the last
offset of these. Two sources need only Spark:

`LogSegmentsSource`   the topic's log segments, in a broker's data directory or a copy of it
`TableSource`         a Delta table with the columns partition, offset, timestamp, key and value, as Spark's Kafka
                      source writes it. Key and value are BINARY. Timestamp and key may be missing. A record that was
                      written twice counts once. The table does not show where the topic's log began

`live_topic` reads the topic of a running cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from itertools import chain, islice, repeat
from typing import Protocol

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.archive.metadata_log import MetadataPartition, list_metadata_partitions
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.errors import ArchiveError, ColdlogError, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.digests import digest_of
from coldlog.tables.delta import warehouse_reads
from coldlog.tables.delta.files.table_files import commit_ms
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder, plain_location
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.table_storage import open_delta

RAW_SCHEMA = pa.schema(
    [
        ("metadata_partition", pa.int32()),
        ("metadata_offset", pa.int64()),
        ("record_timestamp_ms", pa.int64()),
        ("record_key", pa.binary()),
        ("value", pa.binary()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("object_name", pa.string()),
        ("position", pa.int64()),
        ("expected", pa.string()),
        ("found", pa.string()),
    ]
)
RAW_DDL = (
    "metadata_partition INT, metadata_offset BIGINT, record_timestamp_ms BIGINT, record_key BINARY, value BINARY, "
    "reason STRING, message STRING, object_name STRING, position BIGINT, expected STRING, found STRING"
)
NO_ANSWER, REFUSED = "no_answer", "refused"
"""Reasons of rows that are not damage: a source did not answer, or refused access, while it was read."""
NO_LONGER_THERE = "no_longer_there"
"""Reason of a row that stands for the records up to its offset, which were wanted but are no longer in the topic."""
_ROWS_A_BATCH = 10_000
_FEW_EVENTS = 5
"""So many times `FEW_ROWS` records are read in this process: tasks take longer to start."""
_KEPT_BY_CATALOGS = ("catalogManaged", "catalogOwned", "coordinatedCommits")
"""How the names of some table features begin. The newest commits of such a table may not be in its log yet."""


class EventSource(Protocol):
    """Records of the metadata topic."""

    @property
    def uri(self) -> str:
        """The place that it reads; for messages."""

    def read(self, spark: SparkSession, from_offsets: Mapping[int, int]) -> DataFrame | pa.Table:
        """Return rows of `RAW_SCHEMA`: every record at or after its partition's offset (0 if none is given).

        Few records are an Arrow table, which was read in this process.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegmentsSource:
    """The directories `<topic>-<partition>` below a store's root."""

    store: ObjectStore
    topic: str
    limits: DecodeLimits
    _listed: list[list[MetadataPartition]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def uri(self) -> str:
        return self.store.uri

    def digest(self) -> str:
        """A digest of names, sizes and modification times of the topic's files, as the last `read` listed them."""
        listed = self._listed[0] if self._listed else list_metadata_partitions(self.store, self.topic)
        files = [[each.partition, [astuple(file.info) for file in each.files]] for each in listed]
        return digest_of(files)

    def read(self, spark: SparkSession, from_offsets: Mapping[int, int]) -> DataFrame | pa.Table:
        """Read here if the records are few, else with one task per partition of the topic."""
        partitions = list_metadata_partitions(self.store, self.topic)
        self._listed[:] = [partitions]
        if not partitions:
            raise UsageError(
                f"metadata.uri {self.uri} holds no directory {self.topic}-<partition>; give the directory that holds "
                "them, or correct metadata.topic"
            )
        starts = [from_offsets.get(each.partition, 0) for each in partitions]
        most = _FEW_EVENTS * warehouse_reads.FEW_ROWS
        rows = chain.from_iterable(map(_partition_rows, repeat(self), partitions, starts))
        few = list(islice(rows, most + 1))
        if len(few) <= most:
            return pa.Table.from_pylist(few, schema=RAW_SCHEMA)

        def read_partitions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from _in_batches(_partition_rows(self, partitions[index], starts[index]))

        return spark.range(0, len(partitions), 1, len(partitions)).mapInArrow(read_partitions, schema=RAW_DDL)


def _partition_rows(
    source: LogSegmentsSource, partition: MetadataPartition, from_offset: int
) -> Iterator[dict[str, object]]:
    # Imported here, because compiled functions take longer to import than a run that finds nothing new.
    from coldlog.archive.metadata_log_reader import iter_metadata_records

    log_start_offset = partition.files[0].base_offset if partition.files else from_offset
    if log_start_offset > from_offset:
        yield lost_before(partition.partition, log_start_offset)
    try:
        for record in iter_metadata_records(source.store, partition, from_offset, source.limits):
            yield {
                "metadata_partition": partition.partition,
                "metadata_offset": record.offset,
                "record_timestamp_ms": record.timestamp_ms,
                "record_key": record.key,
                "value": record.value,
            }
    except ArchiveError as wrong:
        yield {
            "metadata_partition": partition.partition,
            **wrong.facts,
        }


def lost_before(partition: int, log_start_offset: int) -> dict[str, object]:
    """Make the row of a metadata partition whose log begins after the wanted offset."""
    return {
        "metadata_partition": partition,
        "metadata_offset": log_start_offset - 1,
        "reason": NO_LONGER_THERE,
    }


def _in_batches(rows: Iterator[dict[str, object]]) -> Iterator[pa.RecordBatch]:
    waiting: list[dict[str, object]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == _ROWS_A_BATCH:
            yield pa.RecordBatch.from_pylist(waiting, schema=RAW_SCHEMA)
            waiting = []
    yield pa.RecordBatch.from_pylist(waiting, schema=RAW_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A Delta table of the topic's records."""

    uri: str
    _read_state: list[str | None] = field(default_factory=list, init=False, repr=False, compare=False)

    def digest(self) -> str | None:
        """Id, version and time of the table when the last `read` began; None if only Spark can tell them."""
        return self._read_state[0] if self._read_state else self._state()

    def read(self, spark: SparkSession, from_offsets: Mapping[int, int]) -> DataFrame:
        """Delta's file statistics skip rows below the wanted offsets."""
        self._read_state[:] = [self._state()]
        try:
            table = spark.read.format("delta").load(self.uri)
        except AnalysisException as missing:
            raise UsageError(f"metadata.uri {self.uri} is not a Delta table ({missing.getCondition()})") from missing
        missing_columns = sorted({"partition", "offset", "value"} - set(table.columns))
        if missing_columns:
            raise UsageError(
                f"the table {self.uri} has no column {', '.join(missing_columns)}; it needs partition, offset, value"
            )
        partition, offset = F.expr("try_cast(partition AS INT)"), F.expr("try_cast(offset AS BIGINT)")
        wanted = F.lit(True)
        if from_offsets:
            start = F.create_map(*(F.lit(number) for pair in from_offsets.items() for number in pair))
            # Rows without an offset are read too, so that they are refused later.
            wanted = (offset >= F.coalesce(F.try_element_at(start, partition), F.lit(0))) | offset.isNull()
        rows = table.where(wanted).select(
            partition.alias("metadata_partition"),
            offset.alias("metadata_offset"),
            self._timestamp_ms(table).alias("record_timestamp_ms"),
            self._bytes(table, "key").alias("record_key"),
            self._bytes(table, "value").alias("value"),
        )
        rows = rows.dropDuplicates(["metadata_partition", "metadata_offset", "value"])
        absent = [name for name in RAW_SCHEMA.names if name not in rows.columns]
        types = dict(column.strip().split(" ") for column in RAW_DDL.split(","))
        return rows.withColumns({name: F.lit(None).cast(types[name]) for name in absent})

    def _state(self) -> str | None:
        location = plain_location(self.uri)
        if bucket_and_prefix(location) is None and local_folder(location) is None:
            return None
        try:
            check_log(location)
            table = open_delta(location)
            protocol, version = table.protocol(), table.version()
            features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
            if any(feature.startswith(_KEPT_BY_CATALOGS) for feature in features):
                return None
            # The time tells a table apart that was put back to an earlier version and has gone on from there.
            return digest_of([table.metadata().id, version, commit_ms(location, version)])
        except (ColdlogError, DeltaError, OSError):
            return None

    def _bytes(self, table: DataFrame, name: str) -> Column:
        if name not in table.columns:
            return F.lit(None).cast("binary")
        found = table.schema[name].dataType.simpleString()
        if found != "binary":
            raise UsageError(f"column {name} of the table {self.uri} is {found}; it must be BINARY, the record's bytes")
        return F.col(name)

    def _timestamp_ms(self, table: DataFrame) -> Column:
        """Convert a timestamp or milliseconds; the value is only for people."""
        if "timestamp" not in table.columns:
            return F.lit(None).cast("bigint")
        if table.schema["timestamp"].dataType.simpleString() in ("timestamp", "timestamp_ntz"):
            return F.unix_millis(F.col("timestamp").cast("timestamp"))
        return F.expr("try_cast(timestamp AS BIGINT)")
