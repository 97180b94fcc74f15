"""requests: which partitions and timestamps are asked for?

Requests come from the command line, from a CSV or JSON lines file, or from a Delta table; whatever the source, they
become one Arrow table of `REQUEST_SCHEMA`, numbered in the order asked. More columns are allowed and ignored. A row
that cannot be read is a `UsageError` that names the file and the line.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from coldlog.errors import UsageError

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("request_index", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
    ]
)
_ASKED = ("topic", "partition", "timestamp_ms")
_INTEGER = re.compile(r"-?[0-9]+")
_LIMITS = {"partition": 2**31, "timestamp_ms": 2**63}


def timestamp_from_text(text: str) -> int:
    """Epoch milliseconds from epoch milliseconds or an ISO 8601 time; without a zone it is UTC."""
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as unreadable:
        raise UsageError(
            f"not a timestamp: {text!r}; give epoch milliseconds (1767607200000) or ISO 8601 (2026-01-05T10:00:00Z)"
        ) from unreadable
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since_epoch = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1000 + since_epoch.microseconds // 1000


def requests_from_rows(rows: list[tuple[str, int, int]]) -> pa.Table:
    """Requests from (topic, partition, timestamp_ms)."""
    topics, partitions, timestamps = zip(*rows, strict=True) if rows else ((), (), ())
    return _numbered(pa.array(topics, pa.string()), pa.array(partitions, pa.int32()), pa.array(timestamps, pa.int64()))


def read_requests(path: str, spark: SparkSession) -> pa.Table:
    """Requests from a `.csv` file, a `.json` or `.jsonl` file of one object a line, or a folder that is a Delta
    table."""
    suffix = Path(path).suffix.lower()
    if Path(path).is_dir() or suffix not in (".csv", ".json", ".jsonl"):
        return _from_delta(path, spark)
    if not Path(path).is_file():
        raise UsageError(f"no such file of requests: {path}")
    return _from_csv(path) if suffix == ".csv" else _from_rows(path, _json_rows(path))


def _from_csv(path: str) -> pa.Table:
    types = {"topic": pa.string(), "partition": pa.int32(), "timestamp_ms": pa.int64()}
    options = pa_csv.ConvertOptions(column_types=types, include_columns=list(_ASKED))
    parse = pa_csv.ParseOptions(newlines_in_values=False)
    try:
        table = pa_csv.read_csv(path, convert_options=options, parse_options=parse)
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return _from_rows(path, _csv_rows(path))
    has_no_name = pc.any(pc.equal(table.column("topic"), "")).as_py()
    if has_no_name or any(table.column(name).null_count for name in _ASKED):
        return _from_rows(path, _csv_rows(path))
    return _numbered(*(table.column(name) for name in _ASKED))


def _csv_rows(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    with open(path, newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in _ASKED if name not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(
                f"{path}: the first line must name the columns topic,partition,timestamp_ms; {missing} lack"
            )
        for row in reader:
            yield reader.line_num, dict(row)


def _json_rows(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as unreadable:
                raise UsageError(
                    f"{path}, line {number}: not JSON: {unreadable}; give one object a line"
                ) from unreadable
            if not isinstance(row, dict):
                raise UsageError(f"{path}, line {number}: a JSON object is expected, found {type(row).__name__}")
            yield number, row


def _from_rows(path: str, rows: Iterator[tuple[int, dict[str, object]]]) -> pa.Table:
    return requests_from_rows([_checked(path, number, row) for number, row in rows])


def _checked(path: str, number: int, row: dict[str, object]) -> tuple[str, int, int]:
    topic = row.get("topic")
    if not isinstance(topic, str) or not topic:
        raise UsageError(f"{path}, line {number}: topic: a name is expected, found {topic!r}")
    return topic, _integer(path, number, row, "partition"), _integer(path, number, row, "timestamp_ms")


def _integer(path: str, number: int, row: dict[str, object], name: str) -> int:
    value = row.get(name)
    text = str(value).strip()
    if isinstance(value, bool) or not _INTEGER.fullmatch(text) or not -_LIMITS[name] <= int(text) < _LIMITS[name]:
        raise UsageError(
            f"{path}, line {number}: {name}: an integer below {_LIMITS[name]} is expected, found {value!r}"
        )
    return int(text)


def _from_delta(path: str, spark: SparkSession) -> pa.Table:
    location = path.removeprefix("delta:")
    try:
        rows = spark.read.format("delta").load(location)
    except AnalysisException as unreadable:
        raise UsageError(
            f"no requests at {path}: a .csv or .jsonl file or a Delta table is expected ({unreadable.getCondition()})"
        ) from unreadable
    missing = [name for name in _ASKED if name not in rows.columns]
    if missing:
        raise UsageError(f"{path}: the table of requests lacks the columns {missing}")
    table = rows.selectExpr(
        "topic", "CAST(partition AS INT) AS partition", "CAST(timestamp_ms AS BIGINT) AS timestamp_ms"
    )
    arrow = table.toArrow()
    if any(arrow.column(name).null_count for name in _ASKED):
        raise UsageError(f"{path}: topic, partition and timestamp_ms of a request may not be null")
    return _numbered(*(arrow.column(name) for name in _ASKED))


def _numbered(topic: pa.Array, partition: pa.Array, timestamp_ms: pa.Array) -> pa.Table:
    return pa.table([pa.array(range(len(topic)), pa.int64()), topic, partition, timestamp_ms], schema=REQUEST_SCHEMA)
