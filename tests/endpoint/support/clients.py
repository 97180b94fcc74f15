"""clients: read whole partitions with the Kafka clients of this Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import aiokafka
import confluent_kafka
import kafka

from contents.record_rows import Row
from endpoint.support.truth import Header, Place, as_row

_PATIENCE_S = 60
Records = dict[Place, list[Row]]
Offsets = dict[Place, int | None]
MakeRow = Callable[[int, int, bytes | None, bytes | None, Sequence[Header]], Row]
"""Of offset, timestamp, key, value and headers."""


class Reader(Protocol):
    """Reads partitions from an address at an isolation level, from the beginning to the end of each."""

    def __call__(self, address: str, places: Sequence[Place], level: str, *, row: MakeRow = as_row) -> Records: ...


def read_with_librdkafka(
    address: str,
    places: Sequence[Place],
    level: str,
    options: Mapping[str, str] | None = None,
    *,
    row: MakeRow = as_row,
) -> Records:
    """confluent-kafka, assigned, from the beginning to the end of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": level,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            **(options or {}),
        }
    )
    found: Records = {place: [] for place in places}
    starts = [consumer.get_watermark_offsets(confluent_kafka.TopicPartition(*place))[0] for place in places]
    assigned = [
        confluent_kafka.TopicPartition(topic, partition, start)
        for (topic, partition), start in zip(places, starts, strict=True)
    ]
    consumer.assign(assigned)
    at_end: set[Place] = set()
    while len(at_end) < len(places):
        message = consumer.poll(_PATIENCE_S)
        assert message is not None, f"nothing more from {set(places) - at_end}"
        place = message.topic() or "", message.partition() or 0
        error = message.error()
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, str(error)
            at_end.add(place)
            continue
        offset, headers = message.offset(), cast("list[Header]", message.headers() or [])
        assert offset is not None
        found[place].append(row(offset, message.timestamp()[1], message.key(), message.value(), headers))
    consumer.close()
    return found


def read_with_kafka_python(address: str, places: Sequence[Place], level: str, *, row: MakeRow = as_row) -> Records:
    """kafka-python, the same."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, isolation_level=level, auto_offset_reset="none", enable_auto_commit=False
    )
    assigned = [kafka.TopicPartition(*place) for place in places]
    consumer.assign(assigned)
    consumer.seek_to_beginning(*assigned)
    ends, found = consumer.end_offsets(assigned), {place: list[Row]() for place in places}
    while any(consumer.position(each) < ends[each] for each in assigned):
        batches: Mapping[kafka.TopicPartition, Sequence[kafka.consumer.fetcher.ConsumerRecord]] = consumer.poll(1000)
        for each, records in batches.items():
            found[each.topic, each.partition] += [
                row(record.offset, record.timestamp, record.key, record.value, record.headers) for record in records
            ]
    consumer.close()
    return found


def read_with_aiokafka(address: str, places: Sequence[Place], level: str, *, row: MakeRow = as_row) -> Records:
    """aiokafka, the same."""
    return asyncio.run(_read_with_aiokafka(address, places, level, row))


async def _read_with_aiokafka(address: str, places: Sequence[Place], level: str, row: MakeRow) -> Records:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address, isolation_level=level, auto_offset_reset="none", enable_auto_commit=False
    )
    await consumer.start()
    assigned = [aiokafka.TopicPartition(*place) for place in places]
    consumer.assign(assigned)
    await consumer.seek_to_beginning(*assigned)
    ends = await consumer.end_offsets(assigned)
    found: Records = {place: [] for place in places}
    for each in assigned:
        while await consumer.position(each) < ends[each]:
            for records in (await consumer.getmany(each, timeout_ms=1000)).values():
                found[each.topic, each.partition] += [
                    row(record.offset, record.timestamp, record.key, record.value, record.headers) for record in records
                ]
    await consumer.stop()
    return found


READERS: dict[str, Reader] = {
    "librdkafka": read_with_librdkafka,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
}


def _find_with_librdkafka(address: str, times: Mapping[Place, int]) -> Offsets:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "unused"})
    asked = [confluent_kafka.TopicPartition(*place, timestamp_ms) for place, timestamp_ms in times.items()]
    found = consumer.offsets_for_times(asked, timeout=_PATIENCE_S)
    consumer.close()
    return {(each.topic, each.partition): None if each.offset < 0 else each.offset for each in found}


def _find_with_kafka_python(address: str, times: Mapping[Place, int]) -> Offsets:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address)
    found = consumer.offsets_for_times({kafka.TopicPartition(*place): at for place, at in times.items()})
    consumer.close()
    return {(each.topic, each.partition): answer and answer.offset for each, answer in found.items()}


def _find_with_aiokafka(address: str, times: Mapping[Place, int]) -> Offsets:
    async def find() -> Offsets:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        found = await consumer.offsets_for_times({aiokafka.TopicPartition(*place): at for place, at in times.items()})
        await consumer.stop()
        return {(each.topic, each.partition): answer and answer.offset for each, answer in found.items()}

    return asyncio.run(find())


FINDERS: dict[str, Callable[[str, Mapping[Place, int]], Offsets]] = {
    "librdkafka": _find_with_librdkafka,
    "kafka-python": _find_with_kafka_python,
    "aiokafka": _find_with_aiokafka,
}
"""Each finds the offset at a time in each partition, or None where no record is that late."""
