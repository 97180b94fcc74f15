"""records: how fast are archived records read, beside Spark's Kafka source reading the same topic from a live broker?

A broker with tiered storage on this machine, a topic a codec, filled by Kafka's own performance tool with clicks of
100-180 bytes; what it archived is indexed. Then one program counts and sums the same offsets of both sources, in turns,
in one session on two cores, of which the broker takes its share, with the two settings that
docs/how-to/read-records.md advises. It does so twice: while the broker still has all of it at hand, and when it has its
active segments alone and fetches the rest from its tier. Kafka's own consumer reads them too, in a JVM of its own. The
time of processors beside it says what a machine that has other work cannot blur.

Last, how many bytes does a filter on one hour read of a day whose records come up to half a minute late?
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.shared.generated_logs import FIRST_TIMESTAMP_MS, click_json
from benchmarks.shared.measuring import Figure
from benchmarks.shared.sizes import Sizes
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.sql import SparkSession

from broker.program_runner import run_program
from broker.scenario import admin, make_topic
from broker.tiered_broker import TieredBroker, running_broker
from builders.archive_writer import TopicPartition, write_archive
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, build_batch
from coldlog.launch.session import spark_session
from coldlog.records.source.datasource import register_source
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from servers.kafka_jars import find_tool, run_tool
from worlds.golden_warehouse import run_pipeline

CODECS = ("lz4", "zstd")
TARGET = 3.0
_SEGMENT_BYTES = 8 << 20
_CONFIGS = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": str(_SEGMENT_BYTES),
    "file.delete.delay.ms": "100",
}
_CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
_HOUR_MS = 3_600_000
_BATCH_MS, _BATCH_RECORDS, _BATCHES_A_SEGMENT, _LATEST_MS = 10_000, 20, 360, 30_000
_PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
_PAYLOADS = 20_000
_READS = {
    "all columns": {},
    "offset and timestamp": {"columns": "topic,partition,offset,timestamp"},
}


def measure_records(sizes: Sizes) -> Iterator[Figure]:
    """Records per second of each codec, of all columns and of few; and the bytes that a filter reads."""
    with tempfile.TemporaryDirectory() as scratch, running_broker(Path(scratch) / "broker") as broker:
        for codec in CODECS:
            _fill(broker, codec, sizes.record_count, Path(scratch))
        warehouse = _index(broker, Path(scratch) / "warehouse")
        for is_tiered in (False, True):
            for codec in CODECS:
                if is_tiered:
                    _leave_to_tier(broker, codec)
                yield from _measure(broker, warehouse, codec, Path(scratch), sizes.turns, is_tiered=is_tiered)
        yield _measure_hour(warehouse.spark, Path(scratch) / "day")


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


def _leave_to_tier(broker: TieredBroker, topic: str) -> None:
    """Returns when the broker has but the active segments itself."""
    configs = {**_CONFIGS, "local.retention.bytes": "1"}
    with admin(broker) as client:
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)])
    for partition in (0, 1):
        broker.wait_until(
            lambda partition=partition: len(broker.local_logs(topic, partition)) == 1,  # type: ignore[misc]
            f"local deletion of {topic}-{partition}",
        )


def _index(broker: TieredBroker, location: Path) -> Warehouse:
    spark = spark_session(load_settings("local", [f"warehouse.uri={location}"]), "records benchmark")
    return run_pipeline(spark, broker.tier, location)


def _measure(
    broker: TieredBroker, warehouse: Warehouse, codec: str, scratch: Path, turns: int, *, is_tiered: bool
) -> Iterator[Figure]:
    on = f"{codec}, tiered" if is_tiered else codec
    rows = warehouse.read(PARTITION_METADATA).where(f"topic = '{codec}'").collect()
    ends = {str(row["partition"]): row["latest_tiered_offset"] + 1 for row in rows}
    count = sum(ends.values())
    shared = {"subscribe": codec, "endingOffsets": json.dumps({codec: ends}), "minPartitions": "4"}
    places = {
        "kafka": {"kafka.bootstrap.servers": broker.bootstrap_servers},
        "coldlog": {"warehouse.uri": warehouse.uri, "archive.uri": str(broker.tier)},
    }
    consumed_s = statistics.median(_seconds_of_consumer(broker, codec, count) for _ in range(turns))
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
        read = partial(
            Figure,
            benchmark="records",
            what=f"read {count:,} records, {what}",
            on=on,
            value=count / seconds["coldlog"] / 1e6,
            unit="M/s",
        )
        yield read(
            against=f"Spark's Kafka source {count / seconds['kafka'] / 1e6:.2f} M/s",
            ratio=ratio,
            target=f">= {TARGET:g}" if is_tiered else "",
            is_met=ratio >= TARGET if is_tiered else None,
        )
        yield Figure(
            benchmark="records",
            what=f"processors' time, {what}",
            on=on,
            value=cpu_seconds["coldlog"] / count * 1e6,
            unit="s/M",
            against=f"Kafka source {cpu_seconds['kafka'] / count * 1e6:.2f} s/M, broker not counted",
            ratio=cpu_seconds["kafka"] / cpu_seconds["coldlog"],
        )
        if not few:
            yield read(
                against=f"Kafka's consumer in Java {count / consumed_s / 1e6:.2f} M/s",
                ratio=consumed_s / seconds["coldlog"],
            )


def _seconds_of_consumer(broker: TieredBroker, topic: str, count: int) -> float:
    """Seconds that Kafka's own tool needs to fetch so many records, without what its group takes to begin."""
    command = [find_tool("java"), "-Xmx512m", "-cp", f"{broker.jars}/*", _CONSUMER, "--topic", topic]
    command += ["--bootstrap-server", broker.bootstrap_servers, "--num-records", str(count), "--timeout", "60000"]
    header, told = (line.split(", ") for line in run_tool(command).splitlines()[-2:])
    facts = dict(zip(header, told, strict=True))
    assert int(facts["data.consumed.in.nMsg"]) >= count, facts
    return int(facts["fetch.time.ms"]) / 1000 * count / int(facts["data.consumed.in.nMsg"])


def _measure_hour(spark: SparkSession, folder: Path) -> Figure:
    """Bytes that are read of a day's batches when a filter asks for one hour."""
    batches, randomness = [], random.Random(6)
    for number in range(24 * _HOUR_MS // _BATCH_MS):
        moment_ms = FIRST_TIMESTAMP_MS + number * _BATCH_MS
        times = [moment_ms - randomness.randrange(_LATEST_MS) for _ in range(_BATCH_RECORDS)]
        records = tuple(Record(timestamp_ms=at, value=click_json(randomness, at)) for at in times)
        batches.append(Batch(base_offset=number * _BATCH_RECORDS, records=records, codec=Codec.LZ4))
    segments = [
        Segment(batches=tuple(batches[at : at + _BATCHES_A_SEGMENT]))
        for at in range(0, len(batches), _BATCHES_A_SEGMENT)
    ]
    write_archive(folder / "archive", {TopicPartition(topic="day", partition=0): segments})
    warehouse = run_pipeline(spark, folder / "archive", folder / "warehouse")
    read_bytes = spark.sparkContext.accumulator(0)
    places = {"warehouse.uri": warehouse.uri, "archive.uri": str(folder / "archive")}
    register_source(spark, places, bytes_read=read_bytes)
    first_ms = FIRST_TIMESTAMP_MS + 9 * _HOUR_MS
    is_wanted = f"timestamp >= timestamp_millis({first_ms}) AND timestamp < timestamp_millis({first_ms + _HOUR_MS})"
    found = spark.read.format("coldlog").option("subscribe", "day").load().where(is_wanted).count()
    times_of = [[each.timestamp_ms for each in batch.records] for batch in batches]
    hits = [[first_ms <= at < first_ms + _HOUR_MS for at in times] for times in times_of]
    assert found == sum(sum(each) for each in hits)
    sizes = [len(build_batch(each)) for each in batches]
    hour_bytes = sum(size for size, hit in zip(sizes, hits, strict=True) if any(hit))
    return Figure(
        benchmark="records",
        what="bytes read for one hour of a day",
        on=f"{sum(sizes) / 1e6:.0f} MB, lz4",
        value=read_bytes.value / 1e6,
        unit="MB",
        against=f"that hour's batches {hour_bytes / 1e6:.3f} MB",
        ratio=read_bytes.value / hour_bytes,
        target="<= hour + 2 batches",
        is_met=read_bytes.value <= hour_bytes + 2 * max(sizes),
    )
