"""bulk_lookups: how do a million lookups compare with asking a broker, and how long does one take?

Side by side in one run: a real broker (KRaft, tiered storage) is asked by Kafka's own admin client for times in its
remote tier; coldlog answers from an index of the same tier, and from tables of ten million stairs in ten thousand
partitions. Every answer from generated tables is compared with the right one. Warm: asked once before.
"""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from benchmarks.shared.generated_tables import (
    FIRST_MS,
    STEP_MS,
    TablesShape,
    get_tables,
    offset_at_or_after,
    time_single_lookups,
    topic_and_partition,
)
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes
from benchmarks.shared.spark_job import make_job, new_warehouse
from pyspark.sql import SparkSession

from broker.scenario import make_topic, producer
from broker.tiered_broker import TieredBroker, running_broker
from coldlog.indexing.pipeline import run_pipeline
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import numbered_requests
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from counts.spark_plans import scans_of

_TOPIC, _PARTITIONS, _RECORDS, _RECORD_BYTES = "asked", 60, 1_000, 400
_SEGMENT_BYTES = 60_000
_BROKER_REQUESTS, _GOAL_RATIO, _GOAL_MS = 60, 50.0, 20.0
_SINGLE_LOOKUPS, _LATERAL_REQUESTS = 2_000, 10_000
_GOAL_LATERAL_S, _GOAL_FILES = 5.0, 2


def measure_bulk_lookups(sizes: Sizes) -> Iterator[Figure]:
    """The broker first, then coldlog on the same tier, then on large tables."""
    session = make_job(["warehouse.uri=spark-warehouse"])[0].spark
    try:
        with tempfile.TemporaryDirectory() as folder, running_broker(Path(folder) / "broker") as broker:
            _fill(broker)
            cold, *warm = _broker_rates(broker, sizes.turns + 1, _BROKER_REQUESTS, _PARTITIONS)
            broker_rate = statistics.median(warm)
            yield _rate("Admin.listOffsets, remote segments, cold", f"{_PARTITIONS} partitions", cold)
            yield _rate("Admin.listOffsets, remote segments, warm", f"{_PARTITIONS} partitions", broker_rate)
            rates = {f"Admin.listOffsets, warm, {_PARTITIONS} a request": broker_rate}
            one_by_one = statistics.median(
                _broker_rates(broker, sizes.turns + 1, _BROKER_REQUESTS * _PARTITIONS, 1)[1:]
            )
            yield _rate("Admin.listOffsets, warm, one partition a request", f"{_PARTITIONS} partitions", one_by_one)
            rates["Admin.listOffsets, warm, 1 a request"] = one_by_one
            warehouse = _index(session, broker)
        asked = questions(1_000_000, lambda number: (_TOPIC, number), _PARTITIONS, _RECORDS)
        seconds, _ = seconds_of(warehouse, asked, sizes.turns)
        yield from _against("1,000,000 requests, the broker's tier", f"{_PARTITIONS} partitions", 1e6 / seconds, rates)
        yield from _measure_tables(get_tables(session, sizes.tables), sizes, rates)
    finally:
        session.stop()


def _measure_tables(warehouse: Warehouse, sizes: Sizes, rates: Mapping[str, float]) -> Iterator[Figure]:
    shape, base = sizes.tables, 0.0
    on = f"{shape.stair_count:,} stairs"
    for count in (10_000, 100_000, 1_000_000):
        asked = questions(count, topic_and_partition, shape.partition_count, shape.records)
        seconds, answers = seconds_of(warehouse, asked, sizes.turns)
        compare(asked, answers, shape)
        work = count * math.log(count)
        base = base or seconds / work
        yield Figure(
            benchmark="bulk",
            what=f"{count:,} requests",
            on=on,
            value=seconds,
            unit="s",
            against="the time of 10,000 by n log n",
            ratio=seconds / work / base,
            target="<= 1",
            is_met=seconds / work <= base,
        )
        if count == 1_000_000:
            yield from _against(f"{count:,} requests", on, count / seconds, rates)
    yield from _measure_reader(Path(warehouse.uri), shape)
    attach_warehouse(warehouse.spark, warehouse.uri)
    yield from _measure_single_sql(warehouse, shape, sizes.turns)
    yield from _measure_lateral(warehouse, shape, sizes.turns)


def _measure_reader(location: Path, shape: TablesShape) -> Iterator[Figure]:
    for what, value in time_single_lookups(location, shape, _SINGLE_LOOKUPS).items():
        is_judged = "first" not in what
        yield Figure(
            benchmark="bulk",
            what=f"one lookup by OffsetReader, {what}",
            on=f"{shape.stair_count:,} stairs",
            value=value,
            unit="ms",
            against=f"{_GOAL_MS:.0f} ms" if is_judged else "",
            ratio=value / _GOAL_MS if is_judged else None,
            target="< 1" if is_judged else "",
            is_met=value < _GOAL_MS if is_judged else None,
        )


def _measure_single_sql(warehouse: Warehouse, shape: TablesShape, turns: int) -> Iterator[Figure]:
    """One question with constants: its time, and what it read of each table."""
    spark, randomness, seconds = warehouse.spark, random.Random(13), []
    for _ in range(turns + 1):
        topic, partition = topic_and_partition(randomness.randrange(shape.partition_count))
        timestamp_ms = FIRST_MS + randomness.randrange((shape.records - 1) * STEP_MS)
        answer = spark.sql(f"SELECT offset FROM offset_for_timestamp('{topic}', {partition}, {timestamp_ms})")
        started = time.perf_counter()
        offset = answer.collect()[0]["offset"]
        seconds.append(time.perf_counter() - started)
        if offset != offset_at_or_after(timestamp_ms, shape):
            raise RuntimeError(f"a wrong answer: {offset}")
    on = f"{shape.stair_count:,} stairs"
    what = "one lookup by SQL"
    yield Figure(benchmark="bulk", what=what, on=on, value=statistics.median(seconds[1:]), unit="s")
    for table in (SEGMENTS, OFFSET_INDEX, TIME_INDEX):
        scans = [each for each in scans_of(answer) if each.table == table.name]
        file_count = max(each.file_count for each in scans)
        yield Figure(
            benchmark="bulk",
            what=f"{what}: files read of {table.name}",
            on=on,
            value=file_count,
            unit="files",
            against=f"rows read: {sum(each.row_count for each in scans):,}",
            ratio=file_count,
            target=f"<= {_GOAL_FILES}",
            is_met=file_count <= _GOAL_FILES,
        )


def _measure_lateral(warehouse: Warehouse, shape: TablesShape, turns: int) -> Iterator[Figure]:
    spark = warehouse.spark
    asked = questions(_LATERAL_REQUESTS, topic_and_partition, shape.partition_count, shape.records)
    spark.createDataFrame(asked).createOrReplaceTempView("bulk_requests")
    for function in ("offset_for_timestamp", "list_offsets"):
        query = (
            f"SELECT q.request_index, o.offset FROM bulk_requests q, "
            f"LATERAL {function}(q.topic, q.partition, q.timestamp_ms) o"
        )
        seconds = []
        for _ in range(turns + 1):
            started = time.perf_counter()
            answers = spark.sql(query).toArrow()
            seconds.append(time.perf_counter() - started)
        compare(asked, answers.sort_by("request_index"), shape)
        median = statistics.median(seconds[1:])
        yield Figure(
            benchmark="bulk",
            what=f"{_LATERAL_REQUESTS:,} requests by SQL, LATERAL {function}",
            on=f"{shape.stair_count:,} stairs",
            value=median,
            unit="s",
            against=f"{_GOAL_LATERAL_S:.0f} s",
            ratio=median / _GOAL_LATERAL_S,
            target="< 1",
            is_met=median < _GOAL_LATERAL_S,
        )


def questions(count: int, place: Callable[[int], tuple[str, int]], partition_count: int, records: int) -> pa.Table:
    """Random partitions and times that are archived."""
    chance = np.random.default_rng(23)
    numbers = chance.integers(0, partition_count, count)
    topics, partitions = zip(*(place(number) for number in range(partition_count)), strict=True)
    times = FIRST_MS + chance.integers(0, (records - 1) * STEP_MS, count)
    return numbered_requests(
        {
            "topic": pa.array(topics).take(pa.array(numbers)),
            "partition": pa.array(partitions, pa.int32()).take(pa.array(numbers)),
            "timestamp_ms": pa.array(times),
        }
    )


def seconds_of(warehouse: Warehouse, asked: pa.Table, turns: int) -> tuple[float, pa.Table]:
    """The median, after one turn that warms; and the last answers."""
    seconds = []
    for _ in range(turns + 1):
        started = time.perf_counter()
        answers = find_offsets_for_timestamps(warehouse, asked)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:]), answers


def compare(asked: pa.Table, answers: pa.Table, shape: TablesShape) -> None:
    times = asked.column("timestamp_ms").to_numpy()
    right = np.maximum(0, -((FIRST_MS - times) // STEP_MS))
    wrong = int(np.count_nonzero(answers.column("offset").to_numpy() != right))
    if wrong or int(right.max()) >= shape.records:
        raise RuntimeError(f"{wrong} of {len(times)} answers are wrong: the time means nothing")


def _fill(broker: TieredBroker) -> None:
    """Every partition in the remote tier, but for its active segment."""
    configs = {
        "remote.storage.enable": "true",
        "internal.segment.bytes": str(_SEGMENT_BYTES),
        "local.retention.bytes": "1",
        "file.delete.delay.ms": "100",
    }
    make_topic(broker, _TOPIC, partition_count=_PARTITIONS, configs=configs)
    value = bytes(_RECORD_BYTES)
    with producer(broker) as client:
        for offset in range(_RECORDS + 3 * _SEGMENT_BYTES // _RECORD_BYTES):
            for partition in range(_PARTITIONS):
                client.send(_TOPIC, value, partition=partition, timestamp_ms=FIRST_MS + offset * STEP_MS)
        client.flush()
    for partition in range(_PARTITIONS):
        broker.wait_until(
            lambda partition=partition: len(broker.local_logs(_TOPIC, partition)) == 1,  # type: ignore[misc]
            f"uploads of partition {partition}",
        )


def _broker_rates(broker: TieredBroker, turns: int, requests: int, together: int) -> list[float]:
    """Answers a second, a turn each of so many requests, each for so many partitions; the first of all turns finds the
    broker's index cache empty."""
    program = Path(__file__).with_name("peers") / "ListOffsetsRate.java"
    times = [str(FIRST_MS), str(FIRST_MS + (_RECORDS - 1) * STEP_MS)]
    numbers = [str(_PARTITIONS), *times, str(turns), str(requests), str(together)]
    command = ["java", "-Xmx256m", "-cp", f"{broker.jars}/*", str(program), broker.bootstrap_servers, _TOPIC, *numbers]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [int(answers) / float(seconds) for answers, seconds in (line.split() for line in told)]


def _index(spark: SparkSession, broker: TieredBroker) -> Warehouse:
    location = new_warehouse("broker-tier")
    run_pipeline(make_job([f"archive.uri={broker.tier}", f"warehouse.uri={location}"], spark)[0])
    return Warehouse(spark=spark, uri=str(location))


def _rate(what: str, on: str, rate: float) -> Figure:
    return Figure(benchmark="bulk", what=what, on=on, value=rate, unit="1/s")


def _against(what: str, on: str, rate: float, rates: Mapping[str, float]) -> Iterator[Figure]:
    for against, broker_rate in rates.items():
        yield Figure(
            benchmark="bulk",
            what=what,
            on=on,
            value=rate,
            unit="1/s",
            against=against,
            ratio=rate / broker_rate,
            target=f">= {_GOAL_RATIO:.0f}",
            is_met=rate >= _GOAL_RATIO * broker_rate,
        )
