"""Test that the data source over a real broker's archive gives what its consumers got."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pyspark.sql.datasource as ds
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coldlog.errors import ArchiveError, UsageError
from coldlog.model.states import IsolationLevel
from coldlog.records.source.datasource import register_source
from coldlog.runtime.spark.spark_versions import SparkSeries
from coldlog.tables.damage_reports import read_damage_reports
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from contents.record_rows import as_truth, consumed, moment, of_truth, read, true_batches
from worlds.golden_warehouse import golden_partitions, golden_queries

PARTITIONS = [
    (str(each["topic"]), int(str(each["partition"])))
    for each in golden_partitions()
    if int(str(each["archive_end"])) >= int(str(each["log_start"]))
]
BEYOND_SPARK = ("edge-times", 2)
"""Timestamps up to 2^63-1 ms."""
HOUR_MS = 3_600_000
YEAR_9999_MS = 253_370_764_800_000
"""Later times are no datetime of Python."""


@pytest.fixture(scope="module")
def stops(golden: Warehouse) -> dict[tuple[str, int], int]:
    """Return where readers of committed records stop, for partitions that end in an open transaction."""
    rows = golden.read(PARTITION_METADATA).where("is_current AND stable_offset <= latest_tiered_offset").collect()
    return {(row["topic"], row["partition"]): row["stable_offset"] for row in rows}


@pytest.mark.parametrize("isolation_level", list(IsolationLevel))
@pytest.mark.parametrize("depth", ["golden", "golden_sidecar"])
def test_every_record_equals_the_one_that_a_consumer_got(
    request: pytest.FixtureRequest,
    golden_archive: Path,
    stops: dict[tuple[str, int], int],
    depth: str,
    isolation_level: IsolationLevel,
) -> None:
    golden: Warehouse = request.getfixturevalue(depth)
    compared, stopped = 0, set()
    for topic, partition in PARTITIONS:
        if (topic, partition) == BEYOND_SPARK:
            continue
        assign = f'{{"{topic}":[{partition}]}}'
        found = read(
            golden, golden_archive, assign=assign, includeHeaders=True, kafka_isolation_level=isolation_level.value
        )
        rows = found.rows.to_pylist()
        assert {(row["topic"], row["partition"]) for row in rows} <= {(topic, partition)}
        truths = list(consumed(topic, partition))
        if isolation_level is IsolationLevel.READ_COMMITTED:
            truths = [each for each in truths if each["rc"]]
            if len(rows) < len(truths):
                stopped.add((topic, partition))
                truths = [each for each in truths if each["o"] < stops[topic, partition]]
        assert as_truth(rows, truths) == of_truth(truths), (topic, partition)
        compared += len(rows)
    assert compared > 65_000
    # If a transaction is open at the archive's end, the broker knew its end and read further.
    assert stopped == ({*stops} if isolation_level is IsolationLevel.READ_COMMITTED else set())
    assert len(stops) == 3


def _smallest(truths: list[dict[str, Any]], batch: dict[str, Any]) -> int:
    """Return the smallest timestamp of a batch's records; for a marker, which no consumer sees, the batch's."""
    of_records = [int(each["ts"]) for each in truths if batch["base"] <= each["o"] <= batch["last"]]
    return min(of_records, default=int(batch["max_ts"]))


@pytest.mark.pushdown
def test_ranges_of_offsets_and_times_give_exactly_their_records_at_sidecar_depth(
    golden_sidecar: Warehouse, golden_archive: Path
) -> None:
    """Tasks of one interval each, so that a batch in two intervals could be read twice."""
    chance = random.Random(9)
    for topic, partition in PARTITIONS:
        if (topic, partition) == BEYOND_SPARK:
            continue
        truths = list(consumed(topic, partition))
        low, high = sorted(each["o"] for each in chance.choices(truths, k=2))
        time = chance.choice(truths)["ts"]
        conditions = (
            ds.GreaterThanOrEqual(("offset",), low),
            ds.LessThanOrEqual(("offset",), high),
            ds.GreaterThanOrEqual(("timestamp",), moment(time)),
        )
        found = read(
            golden_sidecar, golden_archive, *conditions, assign=f'{{"{topic}":[{partition}]}}', minPartitions=1_000
        )
        expected = [each["o"] for each in truths if low <= each["o"] <= high and each["ts"] >= time]
        assert found.offsets() == expected, (topic, partition, low, high, time)
        assert found.left == []


def test_a_damaged_base_offset_is_an_error_at_sidecar_depth(
    golden_sidecar_uri: str, golden_archive: Path, tmp_path: Path
) -> None:
    """The build read no log, and no checksum covers a base offset."""
    warehouse = tmp_path / "warehouse"
    shutil.copytree(golden_sidecar_uri, warehouse)
    archive = tmp_path / "archive"
    shutil.copytree(golden_archive, archive, copy_function=os.link)
    log = min(archive.rglob("orders-0-*/*.log"))
    content = bytearray(log.read_bytes())
    content[true_batches("orders", 0)[0]["size"] + 7] ^= 1
    log.unlink()
    log.write_bytes(content)
    for options in ({}, {"minPartitions": 1_000}):
        with pytest.raises(ArchiveError, match="batch"):
            read(str(warehouse), archive, assign='{"orders":[0]}', **options)
    assert [(row["topic"], row["start_offset"]) for row in read_damage_reports(str(warehouse))] == [("orders", 0)]


@pytest.mark.pushdown
def test_time_range_gives_exactly_its_records_and_reads_only_batches_that_may_have_one(
    golden: Warehouse, golden_archive: Path
) -> None:
    chance, pruned = random.Random(8), 0
    for topic, partition in PARTITIONS:
        truths = list(consumed(topic, partition))
        times = sorted(each["ts"] for each in truths if each["ts"] < YEAR_9999_MS)
        for width in chance.sample((0, 5_000, HOUR_MS), 1):
            low = chance.choice(times)
            conditions = (
                ds.GreaterThanOrEqual(("timestamp",), moment(low)),
                ds.LessThan(("timestamp",), moment(low + width, microseconds=1)),
            )
            found = read(golden, golden_archive, *conditions, assign=f'{{"{topic}":[{partition}]}}')
            expected = [each["o"] for each in truths if low <= each["ts"] <= low + width]
            assert found.offsets() == expected, (topic, partition, low, width)
            assert found.left == []
            every = [each["size"] for each in true_batches(topic, partition)]
            near = [
                each["size"]
                for each in true_batches(topic, partition)
                if each["max_ts"] >= low and _smallest(truths, each) <= low + width
            ]
            assert found.bytes_read <= sum(near), (topic, partition, low, width)
            pruned += sum(every) - found.bytes_read
    assert pruned > 7_000_000


@pytest.mark.pushdown
def test_offset_range_reads_exactly_the_bytes_of_its_batches(golden: Warehouse, golden_archive: Path) -> None:
    first, last = 1_000, 1_100
    conditions = (ds.GreaterThanOrEqual(("offset",), first), ds.LessThanOrEqual(("offset",), last))
    for options in (
        {"startingOffsets": f'{{"orders":{{"0":{first}}}}}', "endingOffsets": f'{{"orders":{{"0":{last + 1}}}}}'},
        {},
    ):
        found = read(golden, golden_archive, *(() if options else conditions), subscribe="orders", **options)
        assert found.offsets() == list(range(first, last + 1))
        touched = [each for each in true_batches("orders", 0) if each["last"] >= first and each["base"] <= last]
        assert found.bytes_read == sum(each["size"] for each in touched)


@pytest.mark.pushdown
def test_partitions_that_filters_exclude_are_not_read(golden: Warehouse, golden_archive: Path) -> None:
    conditions = (ds.EqualTo(("partition",), 2), ds.In(("topic",), ("payments", "orders")))
    found = read(golden, golden_archive, *conditions, subscribePattern=".*")
    assert {(task.topic, task.partition) for task in found.tasks} == {("payments", 2)}
    assert found.bytes_read == sum(each["size"] for each in true_batches("payments", 2))


@pytest.mark.pushdown
def test_offset_by_timestamp_equals_the_brokers(golden: Warehouse, golden_archive: Path) -> None:
    queries = [each for each in golden_queries() if each["archive"] and each["topic"] == "late.events"]
    chosen = random.Random(3).sample([each for each in queries if int(str(each["ts"])) >= 0], 12)
    for query in chosen:
        topic, partition, timestamp_ms = str(query["topic"]), query["partition"], query["ts"]
        expected = query["ru"]["offset"]  # type: ignore[index]
        options = {"assign": f'{{"{topic}":[{partition}]}}', "columns": "offset"}
        at = f'{{"{topic}":{{"{partition}":{timestamp_ms}}}}}'
        start = read(golden, golden_archive, **options, startingOffsetsByTimestamp=at)
        assert start.offsets()[0] == expected
        end = read(golden, golden_archive, **options, endingTimestamp=timestamp_ms)
        assert end.offsets() == list(range(expected)), "the end is exclusive"
        # Later records may be older again: the option is not a filter.
        exact = read(
            golden, golden_archive, ds.GreaterThanOrEqual(("timestamp",), moment(int(str(timestamp_ms)))), **options
        )
        assert len(exact.offsets()) <= len(start.offsets())


def test_ending_timestamps_apply_to_each_partition(golden: Warehouse, golden_archive: Path) -> None:
    queries = [each for each in golden_queries() if each["archive"] and each["topic"] == "late.events"]
    timed = [each for each in queries if int(str(each["ts"])) >= 0]
    chance, options = random.Random(4), {"subscribe": "late.events", "columns": "partition,offset"}
    for _ in range(4):
        chosen = [chance.choice([each for each in timed if each["partition"] == number]) for number in (0, 1)]
        until = [*(each["ru"]["offset"] for each in chosen), 1 << 60]  # type: ignore[index]
        at = json.dumps({"late.events": {"0": chosen[0]["ts"], "1": chosen[1]["ts"], "2": 1 << 60}})
        # A time wins over offsets that are given too.
        offsets = json.dumps({"late.events": dict.fromkeys(("0", "1", "2"), 1)})
        found = read(golden, golden_archive, **options, endingOffsetsByTimestamp=at, endingOffsets=offsets)
        rows = [(row["partition"], row["offset"]) for row in found.rows.to_pylist()]
        assert rows == [
            (number, each["o"])
            for number in range(3)
            for each in consumed("late.events", number)
            if each["o"] < until[number]
        ]
    with pytest.raises(UsageError, match="endingOffsetsByTimestamp must name every partition"):
        read(golden, golden_archive, **options, endingOffsetsByTimestamp='{"late.events":{"0":5}}')


def test_starting_time_after_all_records_is_an_error_or_reads_nothing(golden: Warehouse, golden_archive: Path) -> None:
    late = {"subscribe": "orders", "startingTimestamp": 1 << 60}
    with pytest.raises(UsageError, match=f"no archived record of orders-0 is at or after {1 << 60}"):
        read(golden, golden_archive, **late)
    nothing = read(golden, golden_archive, **late, startingOffsetsByTimestampStrategy="latest")
    assert nothing.offsets() == []
    everything = read(golden, golden_archive, subscribe="orders", endingTimestamp=1 << 60, columns="offset")
    assert everything.offsets() == list(range(3_953))


def test_min_partitions_is_kept_and_every_record_is_read_once_and_in_order(
    golden: Warehouse, golden_archive: Path
) -> None:
    whole = read(golden, golden_archive, subscribe="mixed-codecs,payments", kafka_isolation_level="read_committed")
    assert len(whole.tasks) == 5
    for options in ({"minPartitions": 40}, {"maxPartitionBytes": 20_000}):
        cut = read(
            golden, golden_archive, subscribe="mixed-codecs,payments", kafka_isolation_level="read_committed", **options
        )
        assert len(cut.tasks) >= 40
        assert cut.rows == whole.rows
        assert cut.bytes_read == whole.bytes_read
        assert max(task.size_bytes for task in cut.tasks) < 80_000


def test_only_the_named_columns_are_read(golden: Warehouse, golden_archive: Path) -> None:
    whole = read(golden, golden_archive, subscribe="headers_and_big", includeHeaders=True)
    some = read(golden, golden_archive, subscribe="headers_and_big", columns="headers,offset,key")
    assert some.rows == whole.rows.select(["headers", "offset", "key"])
    bare = read(golden, golden_archive, subscribe="headers_and_big", columns="timestamp")
    assert bare.rows == whole.rows.select(["timestamp"])


@pytest.mark.pushdown
def test_timestamp_that_does_not_fit_spark_is_reported_and_its_column_can_be_omitted(
    golden: Warehouse, golden_archive: Path
) -> None:
    place = {"assign": '{"edge-times":[2]}'}
    with pytest.raises(ArchiveError, match="the timestamp of offset .* of edge-times-2 does not fit into a TIMESTAMP"):
        read(golden, golden_archive, **place)
    assert read_damage_reports(golden.uri) == [], "the archive is sound"
    assert read(golden, golden_archive, **place, columns="offset,value").rows.num_rows == 668
    early = read(golden, golden_archive, ds.LessThan(("timestamp",), moment(1_800_000_000_000)), **place)
    truths = [each for each in consumed("edge-times", 2) if each["ts"] < 1_800_000_000_000]
    assert early.offsets() == [each["o"] for each in truths]


def test_timestamp_that_does_not_fit_spark_is_null_on_request_and_filters_follow(
    golden: Warehouse, golden_archive: Path
) -> None:
    register_source(golden.spark, {"warehouse.uri": golden.uri, "archive.uri": str(golden_archive)})
    source = golden.spark.read.format("coldlog").option("assign", '{"edge-times":[2]}')
    records = source.option("includeTimestampMs", "true").option("timestampBeyondRange", "null").load()
    assert records.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampMs", "timestampType",
    ]  # fmt: skip
    truths = {each["o"]: each["ts"] for each in consumed("edge-times", 2)}
    rows = records.select("offset", "timestampMs", F.unix_millis("timestamp").alias("of_timestamp")).collect()
    assert {row["offset"]: row["timestampMs"] for row in rows} == truths
    fitting = {offset: ts for offset, ts in truths.items() if abs(ts) <= (1 << 63) // 1000}
    assert 0 < len(fitting) < len(truths)
    assert {row["offset"]: row["of_timestamp"] for row in rows} == {**dict.fromkeys(truths), **fitting}
    noon = 1_700_049_600_000
    for condition, expected in (
        (f"timestamp >= timestamp_millis({noon})", {o for o, ts in fitting.items() if ts >= noon}),
        ("timestamp IS NULL", truths.keys() - fitting.keys()),
        (f"timestampMs = {(1 << 63) - 1}", {o for o, ts in truths.items() if ts == (1 << 63) - 1}),
    ):
        assert {row["offset"] for row in records.where(condition).select("offset").collect()} == set(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "orders,nowhere"}, "the warehouse does not know the topic 'nowhere'"),
        ({"assign": '{"orders":[0,7]}'}, "the warehouse does not know partition 7 of topic 'orders'"),
        (
            {"subscribe": "records-deleted", "startingOffsets": '{"records-deleted":{"0":-2,"1":-2}}'},
            "startingOffsets must name every partition that is read; missing: records-deleted-2",
        ),
        (
            {"assign": '{"records-deleted":[0]}', "startingOffsets": '{"records-deleted":{"0":1000}}'},
            "records-deleted-0 are missing: 1000 to 1224 are below the log start",
        ),
        (
            {"subscribe": "orders", "endingOffsets": '{"orders":{"0":4000}}'},
            "orders-0 are missing: 3953 to 3999 are not archived",
        ),
    ],
)
def test_missing_data_is_an_error_unless_data_loss_is_accepted(
    golden: Warehouse, golden_archive: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(golden, golden_archive, **options)
    if "every partition" not in message:
        accepted = read(golden, golden_archive, **options, failOnDataLoss=False, columns="offset")
        first = 1_225 if "records-deleted" in message else 0
        last = 3_474 if "records-deleted" in message else 3_952
        assert accepted.offsets() == list(range(first, last + 1))


def test_offsets_after_an_open_transaction_are_lost_for_readers_of_committed_records(
    golden: Warehouse, golden_archive: Path, stops: dict[tuple[str, int], int]
) -> None:
    stop = stops["payments", 1]
    behind = {"assign": '{"payments":[1]}', "endingOffsets": '{"payments":{"1":900}}'}
    assert stop < 900
    assert read(golden, golden_archive, **behind).offsets()[-1] < 900
    committed = {**behind, "kafka_isolation_level": "read_committed"}
    with pytest.raises(UsageError, match=f"{stop} to 899 are after a transaction that is open where the archive ends"):
        read(golden, golden_archive, **committed)
    assert read(golden, golden_archive, **committed, failOnDataLoss=False).offsets()[-1] < stop
    started = {**committed, "endingOffsets": "latest", "startingOffsets": '{"payments":{"1":900}}'}
    message = (
        f"starting offset 900 of payments-1 is after the ending offset {stop}; offsets 0 to {stop - 1} can be read"
    )
    with pytest.raises(UsageError, match=f"{message}, then a transaction is open"):
        read(golden, golden_archive, **started)


def test_known_topic_without_archived_segments_is_empty(golden: Warehouse, golden_archive: Path) -> None:
    assert read(golden, golden_archive, assign='{"records-deleted":[2]}', columns="offset").offsets() == list(
        range(2_574, 3_294)
    )


def test_spark_reads_filters_and_counts(golden: Warehouse, golden_archive: Path, series: SparkSeries) -> None:
    spark: SparkSession = golden.spark
    counted = spark.sparkContext.accumulator(0)
    register_source(spark, {"warehouse.uri": golden.uri, "archive.uri": str(golden_archive)}, bytes_read=counted)
    records = spark.read.format("coldlog").option("subscribePattern", "^(orders|late)").option("INCLUDEHEADERS", "true")
    found = records.load().where("partition = 0 AND offset BETWEEN 100 AND 199 AND topic <> 'nothing'")
    plan = found._jdf.queryExecution().executedPlan().toString()
    is_filtered_by_spark = "offset" in plan.partition("Filter")[2].partition("\n")[0]
    assert is_filtered_by_spark is not series.pushes_filters
    rows = sorted(found.toArrow().to_pylist(), key=lambda row: row["offset"])
    for topic in ("late.events", "orders"):
        truths = [each for each in consumed(topic, 0) if 100 <= each["o"] <= 199]
        own = [row for row in rows if row["topic"] == topic]
        assert as_truth(own, truths) == of_truth(truths)
    touched = [
        each["size"]
        for topic in ("late.events", "orders")
        for each in true_batches(topic, 0)
        if each["last"] >= 100 and each["base"] <= 199
    ]
    if series.pushes_filters:
        assert counted.value == sum(touched)
    assert records.load().where("offset < 0").collect() == [], "no task is no trouble"
    low, high = "2023-11-14 22:20:00", "2023-11-14 23:20:00"
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW late USING coldlog OPTIONS (subscribe 'late.events')")
    counts = {
        row["partition"]: row["n"]
        for row in spark.table("late")
        .where((F.col("timestamp") >= F.to_timestamp(F.lit(low))) & (F.col("timestamp") < F.to_timestamp(F.lit(high))))
        .groupBy("partition")
        .agg(F.count("*").alias("n"))
        .collect()
    }
    start = 1_700_000_400_000
    true = {
        partition: sum(start <= each["ts"] < start + HOUR_MS for each in consumed("late.events", partition))
        for partition in range(3)
    }
    assert counts == {partition: count for partition, count in true.items() if count}


def test_scans_of_one_dataframe_do_not_share_their_filters(
    golden: Warehouse, golden_archive: Path, series: SparkSeries
) -> None:
    register_source(golden.spark, {"warehouse.uri": golden.uri, "archive.uri": str(golden_archive)})
    reading = golden.spark.read.format("coldlog").option("subscribe", "payments").option("columns", "partition,offset")
    records = reading.load()
    first, second = records.where("partition = 0 AND offset < 3"), records.where("partition = 2 AND offset < 2")
    together = sorted((row["partition"], row["offset"]) for row in first.union(second).collect())
    assert together == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert (first.count(), records.count()) == (3, 3_415), "a query without a filter does not have that before it"
    assert records.join(second, ["partition", "offset"], "left_anti").count() == 3_413


def test_spark_reports_the_error_of_a_call(golden: Warehouse, golden_archive: Path) -> None:
    register_source(golden.spark, {"warehouse.uri": golden.uri, "archive.uri": str(golden_archive)})
    source = golden.spark.read.format("coldlog")
    with pytest.raises(Exception, match="UsageError: the warehouse does not know the topic 'nowhere'"):
        source.option("subscribe", "nowhere").load().collect()
    with pytest.raises(Exception, match="UsageError: archived records have the fixed schema"):
        source.option("subscribe", "orders").schema("offset STRING").load().collect()
