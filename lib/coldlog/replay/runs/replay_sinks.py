"""Write the records of a replay; a run may be written twice.

Delta table    records are appended; the commit has the run's number, and Delta takes each number once
JSON lines     one folder per run, which replaces an existing one: a repeated run gives the same files
topic          records are sent in order, with their own timestamps; a run that was killed is sent again, so a record is
               sent at least once, as by a producer of Kafka
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import deltalake
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.brokers.kafka_client import Cluster, describe_topics
from coldlog.brokers.record_producer import producing_records
from coldlog.errors import UsageError
from coldlog.records.record_lines import content, headers
from coldlog.replay.runs.replay import SinkRun
from coldlog.runtime.setting_uris import require_same_place
from coldlog.tables.delta.locations import spark_uri
from coldlog.tables.delta.table_storage import delta_storage_options


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSink:
    """A Delta table at `uri`."""

    spark: SparkSession
    uri: str

    @property
    def name(self) -> str:
        return f"table {spark_uri(self.uri)}"

    def require_ready(self, run: SinkRun) -> None:
        """Check the table. For a later run it must have the run before, so that a table has no gap. It may have
        this run already, if another job repeats it at the same time."""
        require_same_place(self.uri)
        last_run = self._last_run(run)
        if run.is_first and not last_run and DeltaTable.isDeltaTable(self.spark, spark_uri(self.uri)):
            raise UsageError(f"{self.uri} is a table already, and this replay did not write it; choose another output")
        if not run.is_first and last_run < run.number - 1:
            raise UsageError(
                f"{self.uri} does not have run {run.number - 1}, which this replay wrote before. Restore the table, or "
                "begin another replay with another name"
            )

    def written(self, run: SinkRun) -> DataFrame | None:
        return None if self._last_run(run) < run.number else self.spark.read.format("delta").load(spark_uri(self.uri))

    def _last_run(self, run: SinkRun) -> int:
        """Return the last run of this replay that the table has; 0 if there is none."""
        place = spark_uri(self.uri)
        if not DeltaTable.isDeltaTable(self.spark, place):
            return 0
        table = deltalake.DeltaTable(place, storage_options=delta_storage_options(place))
        return table.transaction_version(_application(run)) or 0

    def write(self, run: SinkRun, records: DataFrame) -> None:
        writer = records.write.format("delta").mode("append")
        if run.replay_id:
            writer = writer.option("txnAppId", _application(run)).option("txnVersion", str(run.number))
        writer.save(spark_uri(self.uri))


def _application(run: SinkRun) -> str:
    return f"coldlog.replay.{run.replay_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesSink:
    """A folder at `uri` with a folder `run=000001` per run. It has text files; names and lines are in order."""

    spark: SparkSession
    uri: str

    @property
    def name(self) -> str:
        return f"JSON lines {spark_uri(self.uri)}"

    def require_ready(self, run: SinkRun) -> None:
        """Check that the folder is empty for a first run. The folder of the same run, which was killed, may exist."""
        if not run.is_first:
            return
        try:
            held = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(spark_uri(self.uri))
            paths = [row["path"] for row in held.select("path").limit(1_000).collect()]
        except AnalysisException as missing:
            if missing.getCondition() != "PATH_NOT_FOUND":
                raise
            paths = []
        if [path for path in paths if f"/{self._folder(run)}/" not in path or not run.is_repeated]:
            raise UsageError(f"{self.uri} is not empty, and this replay did not write it; choose another output")

    def written(self, run: SinkRun) -> DataFrame | None:
        return None

    def write(self, run: SinkRun, records: DataFrame) -> None:
        lines = records.mapInArrow(_iter_lines, schema="value STRING")
        lines.write.mode("overwrite").text(f"{spark_uri(self.uri)}/{self._folder(run)}")

    def _folder(self, run: SinkRun) -> str:
        return f"run={run.number:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """A topic of a running cluster. A record keeps its partition number, or all go to `to_partition`."""

    cluster: Cluster
    topic: str
    to_partition: int | None = None

    @property
    def name(self) -> str:
        return f"topic {self.topic} at {self.cluster.bootstrap_servers}"

    def require_ready(self, run: SinkRun) -> None:
        """Check the topic. It need not be empty."""
        found = describe_topics(self.cluster, [self.topic]).get(self.topic)
        if found is None:
            raise UsageError(f"topic {self.topic} does not exist at {self.cluster.bootstrap_servers}; create it first")
        missing = (run.partitions if self.to_partition is None else {self.to_partition}) - set(found.partitions)
        if missing:
            raise UsageError(
                f"topic {self.topic} has {len(found.partitions)} partitions and no partition {min(missing)}. Create it "
                "with as many partitions as the archived topics have, or give --output-partition"
            )
        if run.negative_count:
            raise UsageError(
                f"{run.negative_count:,} records have negative timestamps, which no broker accepts; drop them "
                "(--negative-timestamps drop), or replay into a table"
            )

    def written(self, run: SinkRun) -> DataFrame | None:
        return None

    def write(self, run: SinkRun, records: DataFrame) -> None:
        self._require_sendable(records)
        with producing_records(self.cluster, self.topic) as producer:
            for row in records.withColumn("timestamp", F.unix_millis("timestamp")).toLocalIterator():
                producer.send(
                    about=f"{row['topic']}-{row['partition']} at offset {row['offset']}",
                    partition=row["partition"] if self.to_partition is None else self.to_partition,
                    key=_bytes(row["key"]),
                    value=_bytes(row["value"]),
                    headers=[(header["key"], _bytes(header["value"])) for header in row["headers"] or ()],
                    timestamp_ms=row["timestamp"],
                )

    def _require_sendable(self, records: DataFrame) -> None:
        """Refuse before sending: a record that kafka-python refuses would end every run in the middle, and each run
        would send the same records again."""
        is_empty = F.col("key").isNull() & F.col("value").isNull()
        is_odd = is_empty | F.exists("headers", lambda header: header["value"].isNull())
        first = records.where(is_odd).orderBy("task", "sequence").select("topic", "partition", "offset").head()
        if first is not None:
            raise UsageError(
                f"the record of {first['topic']}-{first['partition']} at offset {first['offset']} cannot be sent to "
                f"topic {self.topic}, because it has neither key nor value, or a header without a value, which "
                "kafka-python refuses. Nothing was sent; replay into a table, or other records under another name"
            )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _iter_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lines = [json.dumps(_line(row), ensure_ascii=False) for row in _rows(batch)]
        yield pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], names=["value"])


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, object]]:
    at = batch.schema.get_field_index("timestamp")
    milliseconds = pa.array(batch.column(at).cast(pa.timestamp("us")).view(pa.int64()).to_numpy() // 1000)
    yield from batch.set_column(at, "timestamp_ms", milliseconds).to_pylist()


def _line(row: dict[str, object]) -> dict[str, object]:
    named = [(header["key"], header["value"]) for header in row["headers"] or ()]  # type: ignore[attr-defined]
    return {
        "task": row["task"],
        "sequence": row["sequence"],
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp_ms": row["timestamp_ms"],
        "timestamp_type": "LogAppendTime" if row["timestampType"] else "CreateTime",
        "key": content(row["key"]),  # type: ignore[arg-type]  # a column of bytes
        "value": content(row["value"]),  # type: ignore[arg-type]
        "headers": headers(named),
    }
