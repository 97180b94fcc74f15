"""record_rows: what does the data source give, asked without Spark, and what must it give?"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyspark.sql.datasource as ds

from coldlog.records.source.arrow_rows import arrow_schema
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.options import read_options
from coldlog.records.source.planning import open_reader, plan_reading
from coldlog.records.source.read_tasks import ReadTask
from coldlog.tables.delta.warehouse import Warehouse
from worlds.kafka_sample import KAFKA_SAMPLE

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Reading:
    """One reading: its tasks, its rows, the bytes of logs that it read, and the filters that it left to Spark."""

    tasks: list[ReadTask]
    rows: pa.Table
    bytes_read: int
    left: list[ds.Filter] = field(default_factory=list)

    def offsets(self) -> list[int]:
        """In the order read."""
        offsets: list[int] = self.rows["offset"].to_pylist()
        return offsets


def read(warehouse: Warehouse | str, archive: object, *filters: ds.Filter, **options: object) -> Reading:
    """What tasks give that Spark would run; these names stand for options with dots."""
    dotted = {"kafka_isolation_level": "kafka.isolation.level", "archive_layout": "archive.layout"}
    given = {dotted.get(name, name.lower()): str(value) for name, value in options.items()}
    uri = warehouse if isinstance(warehouse, str) else warehouse.uri
    asked = read_options({"warehouse.uri": uri, "archive.uri": str(archive), **given})
    wanted, counted = RecordFilter(nulls_timestamps=asked.nulls_timestamps), list[int]()
    left = list(wanted.push(filters))
    tasks = plan_reading(asked, wanted)
    reader = open_reader(asked, counted.append)
    batches = [batch for task in tasks for batch in reader.iter_rows(task)]
    rows = pa.Table.from_batches(batches, schema=arrow_schema(asked.columns))
    return Reading(tasks=tasks, rows=rows, bytes_read=sum(counted), left=left)


def moment(timestamp_ms: int, *, microseconds: int = 0) -> datetime:
    """As Spark hands timestamps over."""
    return EPOCH + timedelta(milliseconds=timestamp_ms, microseconds=microseconds)


def consumed(topic: str, partition: int) -> Iterator[Row]:
    """Every archived record that a consumer got of the broker: truth/records."""
    path = KAFKA_SAMPLE / "truth" / "records" / f"{topic}-{partition}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from (row for row in map(json.loads, lines) if row["arch"])


def true_batches(topic: str, partition: int) -> list[Row]:
    """Every batch of the finished segments, as Kafka's own class read it."""
    path = KAFKA_SAMPLE / "truth" / "batches" / f"{topic}-{partition}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def as_truth(rows: Sequence[Row], truths: Sequence[Row]) -> list[Row]:
    """Rows in the form of truth/records, without what the truth says of brokers; both in the same order."""
    return [
        {
            "o": row["offset"],
            "ts": (row["timestamp"] - EPOCH) // timedelta(milliseconds=1),
            "tt": "LogAppendTime" if row["timestampType"] else "CreateTime",
            "k": _content(row["key"], is_text=not isinstance(truth["k"], dict)),
            "v": _content(row["value"], is_text=False),
            "h": None
            if row["headers"] is None
            else [[each["key"], _content(each["value"], is_text=True)] for each in row["headers"]],
        }
        for row, truth in zip(rows, truths, strict=True)
    ]


def of_truth(truths: Sequence[Row]) -> list[Row]:
    """The same of the truth; a record without headers has NULL."""
    return [{name: truth.get(name) for name in ("o", "ts", "tt", "k", "v", "h")} for truth in truths]


def _content(content: bytes | None, *, is_text: bool) -> object:
    if content is None:
        return None
    if is_text:
        return base64.b64encode(content).decode()
    return {"len": len(content), "crc32": zlib.crc32(content)}
