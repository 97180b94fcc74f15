"""A program that reads Kafka reads the archive: format changed, brokers dropped, and every row is the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.sql import SparkSession

from broker.program_runner import run_program
from broker.scenario import START_MS, TIERED, Scenario, make_topic
from broker.tiered_broker import TieredBroker
from coldlog.brokers.kafka_client import open_cluster
from coldlog.errors import UsageError
from coldlog.records.source.options import read_options
from coldlog.replay.runs.replay import ReplayOptions, replay
from coldlog.replay.runs.replay_sinks import TopicSink
from coldlog.replay.runs.replay_state import ReplayStates
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.system_clock import SystemClock
from contents.merged_logs import iter_merged
from worlds.golden_warehouse import run_pipeline

TOPIC = "ledger"
CODECS = (None, "lz4", "zstd", "gzip")
Kinds = dict[str, str]


@contextmanager
def client_of(broker: TieredBroker, **options: object) -> Iterator[KafkaProducer]:
    client = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=50, **options)
    try:
        yield client
    finally:
        client.close()


def send(client: KafkaProducer, partition: int, count: int, chance: random.Random) -> None:
    """Records with and without key, value and headers, at times that go up and down."""
    for number in range(count):
        headers = [("trace", chance.randbytes(5)), ("leer", b""), ("trace", chance.randbytes(2))][: chance.randrange(4)]
        value = chance.choice((None, b"", chance.randbytes(300), chance.randbytes(90) * 5))
        client.send(
            TOPIC,
            value,
            # The client refuses to send neither.
            key=chance.choice((b"", chance.randbytes(8), b"" if value is None else None)),
            headers=headers,
            partition=partition,
            timestamp_ms=START_MS + number * 1_000 + chance.randrange(60_000),
        )
        if number % 9 == 8:
            client.flush()
    client.flush()


@pytest.fixture(scope="module")
def ledger(broker: TieredBroker) -> TieredBroker:
    """Two partitions, several codecs, and in partition 1 transactions, some aborted, between other records."""
    chance, scenario = random.Random(20261121), Scenario(broker=broker)
    make_topic(broker, TOPIC, partition_count=2, configs=TIERED)
    for codec in CODECS:
        with client_of(broker, compression_type=codec) as client:
            send(client, 0, 90, chance)
            send(client, 1, 40, chance)
    for number in range(4):
        with client_of(broker, transactional_id=f"ledger-{number}", compression_type="lz4") as client:
            client.init_transactions()
            client.begin_transaction()
            send(client, 1, 30, chance)
            client.abort_transaction() if number % 2 else client.commit_transaction()
    with client_of(broker) as client:
        send(client, 1, 150, chance)
    scenario.settle([(TOPIC, 0), (TOPIC, 1)])
    return broker


@pytest.fixture(scope="module")
def warehouse(ledger: TieredBroker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return run_pipeline(spark, ledger.tier, tmp_path_factory.mktemp("ledger") / "warehouse")


def archive_end(warehouse: Warehouse) -> dict[str, dict[str, int]]:
    """Up to where every reader can read, whatever its isolation level: `endingOffsets`."""
    rows = warehouse.read(PARTITION_METADATA).where(f"topic = '{TOPIC}'").collect()
    ends = {str(row["partition"]): row["latest_tiered_offset"] + 1 for row in rows}
    open_from = {str(row["partition"]): row["stable_offset"] for row in rows if row["stable_offset"] is not None}
    return {TOPIC: {partition: min(end, open_from.get(partition, end)) for partition, end in ends.items()}}


def test_every_row_is_that_of_sparks_own_source(ledger: TieredBroker, warehouse: Warehouse, tmp_path: Path) -> None:
    ending = archive_end(warehouse)
    assert min(ending[TOPIC].values()) > 300
    programs: dict[str, dict[str, Any]] = {
        "uncommitted": {"includeHeaders": "true"},
        "committed": {"kafka.isolation.level": "read_committed", "includeHeaders": "true", "minPartitions": "7"},
        "from": {"startingOffsets": json.dumps({TOPIC: {"0": 77, "1": -2}})},
        "at": {"startingTimestamp": str(START_MS + 65_000)},
    }
    sources: dict[str, Kinds] = {
        "kafka": {"kafka.bootstrap.servers": ledger.bootstrap_servers},
        "coldlog": {"warehouse.uri": warehouse.uri, "archive.uri": str(ledger.tier)},
    }
    cases = [
        {
            "format": source,
            "options": {"subscribe": TOPIC, "endingOffsets": json.dumps(ending), **options, **where},
            "where": "partition + 1 < 9",
            "select": ["*"],
            "file": str(tmp_path / f"{source}-{name}.parquet"),
        }
        for name, options in programs.items()
        for source, where in sources.items()
    ]
    run_program(cases, tmp_path)
    counts = {}
    for name in programs:
        ours, theirs = (
            sorted(
                pq.read_table(tmp_path / f"{source}-{name}.parquet").to_pylist(),
                key=lambda row: (row["partition"], row["offset"]),
            )
            for source in ("coldlog", "kafka")
        )
        assert ours == theirs, name
        counts[name] = len(ours)
    assert counts["uncommitted"] - counts["committed"] == 60, "two transactions of thirty records were aborted"
    assert 0 < counts["from"] < counts["uncommitted"]
    assert 0 < counts["at"] < counts["uncommitted"]


def consumed(broker: TieredBroker, topic: str) -> list[tuple[Any, ...]]:
    """Everything in partition 0, as Kafka's readers get it."""
    place = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    consumer.assign([place])
    (end,) = consumer.end_offsets([place]).values()
    found: list[tuple[Any, ...]] = []
    while len(found) < end:
        polled = consumer.poll(timeout_ms=10_000)
        assert polled, f"{len(found)} of {end} records came"
        found += [(each.timestamp, each.key, each.value, list(each.headers)) for each in polled[place]]
    consumer.close()
    return found


def test_a_replay_into_a_topic_has_one_order_and_the_records_own_times(
    ledger: TieredBroker, warehouse: Warehouse, spark: SparkSession
) -> None:
    make_topic(ledger, "replayed", partition_count=1)
    told = {
        "subscribe": TOPIC,
        "kafka.isolation.level": "read_committed",
        "endingoffsets": json.dumps(archive_end(warehouse)),
    }
    source = read_options({"warehouse.uri": warehouse.uri, "archive.uri": str(ledger.tier), **told})
    cluster = open_cluster(ledger.bootstrap_servers, 120_000, None)
    states, clock = ReplayStates.of_warehouse(warehouse.uri), SystemClock()
    with pytest.raises(UsageError, match="topic replayed has 1 partitions and no partition 1"):
        replay(spark, ReplayOptions(source=source), TopicSink(cluster=cluster, topic="replayed"), states, clock)
    with pytest.raises(UsageError, match="topic elsewhere does not exist at"):
        replay(spark, ReplayOptions(source=source), TopicSink(cluster=cluster, topic="elsewhere"), states, clock)
    sink = TopicSink(cluster=cluster, topic="replayed", to_partition=0)
    summary = replay(spark, ReplayOptions(source=source), sink, states, clock)
    found = consumed(ledger, "replayed")
    reading = spark.read.format("coldlog").options(**told, includeHeaders="true")
    rows = reading.options(**{"warehouse.uri": warehouse.uri, "archive.uri": str(ledger.tier)}).load().collect()
    by_place: dict[tuple[str, int], list[Any]] = {}
    for row in sorted(rows, key=lambda row: row["offset"]):
        by_place.setdefault((row["topic"], row["partition"]), []).append(row)
    heads = {
        place: [(round(row["timestamp"].timestamp() * 1000), at) for at, row in enumerate(own)]
        for place, own in by_place.items()
    }
    expected = []
    for place, (timestamp_ms, at) in iter_merged(heads):
        row = by_place[place][at]
        headers = [(each["key"], bytes(each["value"])) for each in row["headers"] or ()]
        expected.append((timestamp_ms, row["key"], row["value"], headers))
    assert found == expected
    assert summary.record_count == len(found) > 500
