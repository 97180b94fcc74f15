"""records: how fast are archived records read, beside Spark's Kafka source reading the same topic from a live broker?

A broker with tiered storage on this machine, a topic a codec, filled by Kafka's own performance tool with clicks of
100-180 bytes; what it archived is indexed. Then one program counts and sums the same offsets of both sources, in turns,
in one session on two cores: the broker has all of it at hand still, and takes its share of the cores. The time of
processors beside it says what a machine that has other work cannot blur.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.generated_logs import FIRST_TIMESTAMP_MS, click_json
from benchmarks.measuring import Figure
from benchmarks.sizes import Sizes

from broker.program_runner import run_program
from broker.scenario import make_topic
from broker.tiered_broker import TieredBroker, running_broker
from coldlog.session import spark_session
from coldlog.settings_sources import load_settings
from coldlog.tables.partition_metadata import PARTITION_METADATA
from coldlog.tables.warehouse import Warehouse
from golden_warehouse import run_pipeline
from kafka_jars import find_tool, run_tool

CODECS = ("lz4", "zstd")
TARGET = 3.0
_SEGMENT_BYTES = 8 << 20
_CONFIGS = {"remote.storage.enable": "true", "internal.segment.bytes": str(_SEGMENT_BYTES)}
_PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
_PAYLOADS = 20_000
_READS = {
    "all columns": {},
    "offset and timestamp": {"columns": "topic,partition,offset,timestamp"},
}


def measure_records(sizes: Sizes) -> Iterator[Figure]:
    """Records per second of each codec, of all columns and of few."""
    with tempfile.TemporaryDirectory() as scratch, running_broker(Path(scratch) / "broker") as broker:
        for codec in CODECS:
            _fill(broker, codec, sizes.record_count, Path(scratch))
        warehouse = _index(broker, Path(scratch) / "warehouse")
        for codec in CODECS:
            yield from _measure(broker, warehouse, codec, Path(scratch), sizes.turns)


def _fill(broker: TieredBroker, codec: str, count: int, scratch: Path) -> None:
    """Returns when all but the active segments are archived."""
    payloads, randomness = scratch / "payloads", random.Random(5)
    payloads.write_bytes(b"\n".join(click_json(randomness, FIRST_TIMESTAMP_MS + at) for at in range(_PAYLOADS)))
    make_topic(broker, codec, partition_count=2, configs=_CONFIGS)
    options = [f"bootstrap.servers={broker.bootstrap_servers}", f"compression.type={codec}", "batch.size=65536"]
    command = [find_tool("java"), "-Xmx256m", "-cp", f"{broker.jars}/*", _PRODUCER, "--topic", codec]
    command += ["--num-records", str(count), "--throughput", "-1", "--payload-file", str(payloads)]
    run_tool([*command, "--producer-props", *options, "linger.ms=50"])
    for partition in (0, 1):
        broker.wait_until(
            lambda partition=partition: (
                len(broker.tiered_logs(codec, partition))  # type: ignore[misc]
                == len(broker.local_logs(codec, partition)) - 1
            ),
            f"uploads of {codec}-{partition}",
        )


def _index(broker: TieredBroker, location: Path) -> Warehouse:
    spark = spark_session(load_settings("local", [f"warehouse.uri={location}"]), "records benchmark")
    return run_pipeline(spark, broker.tier, location)


def _measure(broker: TieredBroker, warehouse: Warehouse, codec: str, scratch: Path, turns: int) -> Iterator[Figure]:
    rows = warehouse.read(PARTITION_METADATA).where(f"topic = '{codec}'").collect()
    ends = {str(row["partition"]): row["latest_tiered_offset"] + 1 for row in rows}
    count = sum(ends.values())
    shared = {"subscribe": codec, "endingOffsets": json.dumps({codec: ends}), "minPartitions": "4"}
    places = {
        "kafka": {"kafka.bootstrap.servers": broker.bootstrap_servers},
        "coldlog": {"warehouse.uri": warehouse.uri, "archive.uri": str(broker.tier)},
    }
    for what, few in _READS.items():
        summed = ["count(*)", "sum(offset)", "max(timestamp)"]
        summed += [] if few else ["sum(length(value))", "count(key)"]
        turn = [
            {
                "format": source,
                "options": {**shared, **place, **(few if source == "coldlog" else {})},
                "where": "true",
                "select": summed,
                "turns": 1,
            }
            for source, place in places.items()
        ]
        told = run_program(turn * (turns + 1), scratch, timeout_s=3_600)
        assert len({tuple(each["answer"]) for each in told}) == 1, "both sources read the same"
        seconds, cpu_seconds = (
            {
                source: statistics.median(each[of][0] for each in told[len(places) + at :: len(places)])
                for at, source in enumerate(places)
            }
            for of in ("seconds", "cpu_seconds")
        )
        ratio = seconds["kafka"] / seconds["coldlog"]
        yield Figure(
            benchmark="records",
            what=f"read {count:,} records, {what}",
            on=codec,
            value=count / seconds["coldlog"] / 1e6,
            unit="M/s",
            against=f"Spark's Kafka source {count / seconds['kafka'] / 1e6:.2f} M/s",
            ratio=ratio,
            target=f">= {TARGET:g}",
            is_met=ratio >= TARGET,
        )
        yield Figure(
            benchmark="records",
            what=f"processors' time, {what}",
            on=codec,
            value=cpu_seconds["coldlog"] / count * 1e6,
            unit="s/M",
            against=f"Kafka source {cpu_seconds['kafka'] / count * 1e6:.2f} s/M, broker not counted",
            ratio=cpu_seconds["kafka"] / cpu_seconds["coldlog"],
        )
