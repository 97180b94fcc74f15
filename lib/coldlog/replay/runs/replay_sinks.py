"""replay_sinks: where does a replay go, and what becomes of a run that is written twice?

Delta table    appended to; a run's number is kept in the commit, and Delta takes each once
JSON lines     a folder a run, put in place of what is there: a run that is done again gives the same files
topic          sent in order, with the timestamps that records have; a run that was killed is sent again, as a
               producer of Kafka would: at least once
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
        """Of a later run it needs to have the one before: a table that was deleted does not begin in the midst."""
        if run.is_first and DeltaTable.isDeltaTable(self.spark, spark_uri(self.uri)):
            raise UsageError(
                f"{self.uri} is a table already, which no run of this replay has written; name another place"
            )
        if not run.is_first and self._last_run(run) < run.number - 1:
            raise UsageError(
                f"{self.uri} does not have what this replay wrote before: run {run.number - 1} is not in it; put the "
                "table back, or begin another replay, with another name"
            )

    def written(self, run: SinkRun) -> DataFrame | None:
        return None if self._last_run(run) < run.number else self.spark.read.format("delta").load(spark_uri(self.uri))

    def _last_run(self, run: SinkRun) -> int:
        """Of the same replay, that the table has; 0: none."""
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
    """A folder at `uri`, with a folder `run=000001` a run: text files whose names are in order, as their lines are."""

    spark: SparkSession
    uri: str

    @property
    def name(self) -> str:
        return f"JSON lines {spark_uri(self.uri)}"

    def require_ready(self, run: SinkRun) -> None:
        """What is left of a first run that was killed is no obstacle: its folder is all there is."""
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
            raise UsageError(f"{self.uri} is not empty, and no run of this replay has written it; name another place")

    def written(self, run: SinkRun) -> DataFrame | None:
        return None

    def write(self, run: SinkRun, records: DataFrame) -> None:
        lines = records.mapInArrow(_iter_lines, schema="value STRING")
        lines.write.mode("overwrite").text(f"{spark_uri(self.uri)}/{self._folder(run)}")

    def _folder(self, run: SinkRun) -> str:
        return f"run={run.number:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """A topic of a running cluster. A record goes to the partition that it had; `to_partition` is one for all."""

    cluster: Cluster
    topic: str
    to_partition: int | None = None

    @property
    def name(self) -> str:
        return f"topic {self.topic} at {self.cluster.bootstrap_servers}"

    def require_ready(self, run: SinkRun) -> None:
        """What is in the topic is nobody's concern."""
        found = describe_topics(self.cluster, [self.topic]).get(self.topic)
        if found is None:
            raise UsageError(f"there is no topic {self.topic} at {self.cluster.bootstrap_servers}; make it first")
        missing = (run.partitions if self.to_partition is None else {self.to_partition}) - set(found.partitions)
        if missing:
            raise UsageError(
                f"topic {self.topic} has {len(found.partitions)} partitions, and no partition {min(missing)}; make it "
                "with as many as the archived topics have, or name one partition for all records"
            )
        if run.negative_count:
            raise UsageError(
                f"{run.negative_count:,} records have negative timestamps, which no broker takes; drop them "
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
                    headers=[(each["key"], _bytes(each["value"])) for each in row["headers"] or ()],
                    timestamp_ms=row["timestamp"],
                )

    def _require_sendable(self, records: DataFrame) -> None:
        """A record that kafka-python refuses would end every run in its midst, and each would send the same again."""
        is_empty = F.col("key").isNull() & F.col("value").isNull()
        is_odd = is_empty | F.exists("headers", lambda each: each["value"].isNull())
        first = records.where(is_odd).orderBy("task", "sequence").select("topic", "partition", "offset").head()
        if first is not None:
            raise UsageError(
                f"the record of {first['topic']}-{first['partition']} at offset {first['offset']} cannot be sent to "
                f"topic {self.topic} (it has neither key nor value, or a header without a value, which kafka-python "
                "refuses), and nothing was sent; replay into a table, or other records, under another name"
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
    named = [(each["key"], each["value"]) for each in row["headers"] or ()]  # type: ignore[attr-defined]
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
