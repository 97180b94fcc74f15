"""group_member: one consumer of a group, as a program that a test may kill.

    python -m endpoint.support.group_member CLIENT ADDRESS GROUP TOPIC... [--stuck]

It says a line of JSON for each assignment ({"assigned": [[topic, partition], ...]}) and for each batch whose commit was
acknowledged ({"committed": [[topic, partition, offset], ...]}). After a commit that was refused ({"refused": true}) it
reads the batch again. After its first commit it pauses until it gets a line on its standard input. With --stuck it
reads on instead, says {"stuck": true} and never commits again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import aiokafka
import aiokafka.abc
import aiokafka.coordinator.assignors.roundrobin as aiokafka_assignors
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.coordinator.assignors.roundrobin as kafka_assignors

_BATCH = 25
_SESSION_MS = 6000
Record = tuple[str, int, int]
Place = tuple[str, int]


class Client(Protocol):
    """What the three clients have in common."""

    def poll(self) -> list[Record]:
        """Some records, or none."""

    def commit(self, ends: dict[Place, int]) -> bool:
        """Whether the commit was acknowledged."""

    def go_back(self, starts: dict[Place, int]) -> None:
        """Read again from these offsets, in partitions that are still assigned."""

    def pause(self, *, is_paused: bool) -> None:
        """Whether partitions of the present assignment are read."""

    def close(self) -> None:
        """Leave the group."""


def _python_options(address: str, group: str) -> dict[str, Any]:
    """The options that kafka-python and aiokafka have in common."""
    return {
        "bootstrap_servers": address,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "session_timeout_ms": _SESSION_MS,
        "heartbeat_interval_ms": 500,
    }


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def say_assigned(places: Iterable[Place]) -> None:
    say(assigned=sorted(places))


class KafkaPython(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    """kafka-python. A pause goes back to the first record: of two partitions that its own pause() has parked, one
    is never read again if nothing else comes (`Fetcher.fetched_records` of 3.0.12)."""

    def __init__(self, address: str, group: str, topics: list[str]) -> None:
        self._is_paused = False
        self._consumer = kafka.KafkaConsumer(
            **_python_options(address, group),
            partition_assignment_strategy=[kafka_assignors.RoundRobinPartitionAssignor],
        )
        self._consumer.subscribe(topics, listener=self)

    def on_partitions_revoked(self, revoked: object) -> None:
        """Nothing is kept."""

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        say_assigned((each.topic, each.partition) for each in assigned)

    def poll(self) -> list[Record]:
        batches = self._consumer.poll(200, max_records=_BATCH)
        if self._is_paused:
            for place, records in batches.items():
                self._consumer.seek(place, records[0].offset)
            time.sleep(0.1)
            return []
        return [(each.topic, each.partition, each.offset) for records in batches.values() for each in records]

    def commit(self, ends: dict[Place, int]) -> bool:
        offsets = {kafka.TopicPartition(*place): kafka.OffsetAndMetadata(end, "", -1) for place, end in ends.items()}
        try:
            self._consumer.commit(offsets)
        except kafka.errors.KafkaError:
            return False
        return True

    def go_back(self, starts: dict[Place, int]) -> None:
        for place in self._consumer.assignment() & {kafka.TopicPartition(*each) for each in starts}:
            self._consumer.seek(place, starts[tuple(place)])

    def pause(self, *, is_paused: bool) -> None:
        self._is_paused = is_paused

    def close(self) -> None:
        self._consumer.close()


class Librdkafka:
    """confluent-kafka."""

    def __init__(self, address: str, group: str, topics: list[str]) -> None:
        self._batch: list[Record] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": "roundrobin",
            }
        )
        self._consumer.subscribe(
            topics,
            on_assign=lambda _, places: say_assigned((each.topic, each.partition) for each in places),
            on_revoke=lambda *_: self._batch.clear(),
        )

    def poll(self) -> list[Record]:
        self._batch.clear()
        while len(self._batch) < _BATCH and (message := self._consumer.poll(0.2)) is not None:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if message.error() is None and topic is not None and partition is not None and offset is not None:
                self._batch.append((topic, partition, offset))
        return list(self._batch)

    def commit(self, ends: dict[Place, int]) -> bool:
        offsets = [confluent_kafka.TopicPartition(*place, end) for place, end in ends.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException:
            return False
        return all(each.error is None for each in done or ())

    def go_back(self, starts: dict[Place, int]) -> None:
        for place in self._consumer.assignment():
            if (start := starts.get((place.topic, place.partition))) is not None:
                self._consumer.seek(confluent_kafka.TopicPartition(place.topic, place.partition, start))

    def pause(self, *, is_paused: bool) -> None:
        (self._consumer.pause if is_paused else self._consumer.resume)(self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


class Aiokafka(aiokafka.abc.ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    """aiokafka, in an event loop of its own."""

    def __init__(self, address: str, group: str, topics: list[str]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._consumer = self._do(lambda: self._start(address, group, topics))

    def _do(self, call: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def _start(self, address: str, group: str, topics: list[str]) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            **_python_options(address, group),
            partition_assignment_strategy=[aiokafka_assignors.RoundRobinPartitionAssignor],
        )
        consumer.subscribe(topics, listener=self)
        await consumer.start()
        return consumer

    async def on_partitions_revoked(self, revoked: object) -> None:
        """Nothing is kept."""

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        say_assigned((each.topic, each.partition) for each in assigned)

    def poll(self) -> list[Record]:
        batches = self._do(lambda: self._consumer.getmany(timeout_ms=200, max_records=_BATCH))
        return [(each.topic, each.partition, each.offset) for records in batches.values() for each in records]

    def commit(self, ends: dict[Place, int]) -> bool:
        offsets = {aiokafka.TopicPartition(*place): end for place, end in ends.items()}
        try:
            self._do(lambda: self._consumer.commit(offsets))
        except aiokafka.errors.KafkaError:
            return False
        return True

    def go_back(self, starts: dict[Place, int]) -> None:
        async def go_back() -> None:
            for place in self._consumer.assignment() & {aiokafka.TopicPartition(*each) for each in starts}:
                self._consumer.seek(place, starts[tuple(place)])

        self._do(go_back)

    def pause(self, *, is_paused: bool) -> None:
        async def pause() -> None:
            (self._consumer.pause if is_paused else self._consumer.resume)(*self._consumer.assignment())

        self._do(pause)

    def close(self) -> None:
        self._do(self._consumer.stop)


CLIENTS: dict[str, Callable[[str, str, list[str]], Client]] = {
    "kafka-python": KafkaPython,
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
}


def main(name: str, address: str, group: str, *topics: str) -> None:
    """Read until a second line comes."""
    lines: list[str] = []

    def listen() -> None:
        for line in sys.stdin:
            lines.append(line)

    threading.Thread(target=listen, daemon=True).start()
    gets_stuck, is_stuck, has_committed = "--stuck" in topics, False, False
    client = CLIENTS[name](address, group, [topic for topic in topics if topic != "--stuck"])
    while len(lines) < 2:
        client.pause(is_paused=has_committed and not lines and not gets_stuck)
        records = client.poll()
        if is_stuck or not records:
            continue
        if has_committed and gets_stuck:
            is_stuck = True
            say(stuck=True)
            continue
        if client.commit({(topic, partition): offset + 1 for topic, partition, offset in records}):
            has_committed = True
            say(committed=records)
        else:
            say(refused=True)
            client.go_back({(topic, partition): offset for topic, partition, offset in reversed(records)})
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
