"""Test that the SQL function agrees with a scan of the stairs, however it is called."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse

FOUND, LATER, UNKNOWN, INVALID = "FOUND", "LATER_THAN_ARCHIVE", "UNKNOWN_TOPIC_OR_PARTITION", "INVALID_TIMESTAMP"


@pytest.fixture(scope="module")
def sql(golden: Warehouse) -> SparkSession:
    attach_warehouse(golden.spark, golden.uri)
    return golden.spark


def test_function_with_constants_returns_an_answer_or_the_reason(sql: SparkSession) -> None:
    def ask(call: str) -> tuple[object, ...]:
        rows = sql.sql(f"SELECT * FROM offset_for_timestamp({call})").collect()
        assert len(rows) == 1
        return rows[0]["offset"], rows[0]["outcome"]

    assert ask("'orders', 0, 0") == (0, FOUND)
    assert ask("'orders', 0, 9223372036854775807") == (None, LATER)
    assert ask("'orders', 7, 0") == (None, UNKNOWN)
    assert ask("'no such', 0, 0") == (None, UNKNOWN)
    assert ask("'orders', 0, -2") == (None, INVALID)
    assert ask("'orders', 0, NULL") == (None, INVALID)


@pytest.mark.parametrize("function", ["offset_for_timestamp", "list_offsets"])
def test_a_time_is_a_number_of_milliseconds_and_nothing_that_spark_would_make_one(
    sql: SparkSession, function: str
) -> None:
    def ask(time: str) -> list[object]:
        return [row["offset"] for row in sql.sql(f"SELECT offset FROM {function}('orders', 0, {time})").collect()]

    time = "TIMESTAMP '2023-11-15 10:00:00 UTC'"
    for number in ("1700042400000", "1700042400000.9D", "1.7000424E12BD", f"unix_millis({time})"):
        assert ask(number) == [2592]
    assert ask("-0.5BD") == [0], "not LATEST"
    for other in (time, "DATE '2023-11-15'", "'2023-11-15'", "true"):
        with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
            ask(other)


def test_function_with_parameters_treats_names_as_data(sql: SparkSession) -> None:
    for topic in ("late.events", "x' OR '1'='1", "`; DROP TABLE segments", "ünï\n"):
        rows = sql.sql(
            "SELECT outcome FROM offset_for_timestamp(:topic, 0, :timestamp_ms)",
            args={"topic": topic, "timestamp_ms": 5},
        ).collect()
        assert [row["outcome"] for row in rows] == [FOUND if topic == "late.events" else UNKNOWN]


def test_function_under_lateral_returns_one_row_per_request_as_a_scan(golden: Warehouse, sql: SparkSession) -> None:
    stairs = golden.read(TIME_INDEX).join(
        golden.read(SEGMENTS).where("served_from_offset IS NOT NULL").select("segment_id", "build_number"),
        ["segment_id", "build_number"],
    )
    by_partition: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in stairs.select("topic", "partition", "offset", "timestamp_ms").toArrow().to_pylist():
        by_partition.setdefault((row["topic"], row["partition"]), []).append((row["offset"], row["timestamp_ms"]))
    asked = []
    for (topic, partition), known in sorted(by_partition.items()):
        times = sorted({timestamp_ms for _, timestamp_ms in known})
        for timestamp_ms in times[:: max(1, len(times) // 20)]:
            asked += [
                (topic, partition, each) for each in (timestamp_ms, timestamp_ms + 1, timestamp_ms) if 0 <= each < 2**63
            ]
    asked += [("no such", 0, 5), ("orders", -1, 5), ("orders", 0, -5)]
    requests = pa.table(
        {
            "number": pa.array(range(len(asked)), pa.int64()),
            "topic": [each[0] for each in asked],
            "partition": pa.array([each[1] for each in asked], pa.int32()),
            "timestamp_ms": pa.array([each[2] for each in asked], pa.int64()),
        }
    )
    sql.createDataFrame(requests).createOrReplaceTempView("function_requests")
    answers = sql.sql(
        "SELECT q.number, o.* FROM function_requests q, "
        "LATERAL offset_for_timestamp(q.topic, q.partition, q.timestamp_ms) o ORDER BY q.number"
    ).collect()
    assert [row["number"] for row in answers] == list(range(len(asked)))
    for (topic, partition, timestamp_ms), row in zip(asked, answers, strict=True):
        scanned = [offset for offset, time in by_partition.get((topic, partition), []) if time >= timestamp_ms]
        if timestamp_ms < 0:
            expected: tuple[object, str] = (None, INVALID)
        elif (topic, partition) not in by_partition:
            expected = (None, UNKNOWN)
        else:
            expected = (min(scanned), FOUND) if scanned else (None, LATER)
        assert (row["offset"], row["outcome"]) == expected, (topic, partition, timestamp_ms)
    assert len(asked) > 1000


def test_folder_that_is_not_a_warehouse_is_refused(golden: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a warehouse of coldlog"):
        attach_warehouse(golden.spark, str(tmp_path))
