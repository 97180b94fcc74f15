"""scenario: what happens on the broker before the tests ask, and what is known of it without asking?

`orders` is tiered, with two partitions. The first act fills it; the second cuts partition 0 inside a segment with
DeleteRecords, fills partition 1 further, and makes the tiered topic `brief` anew under another id. Timestamps go up
and down. Each act ends when the broker has nothing left to upload or delete; what the metadata topic's log segments say
then can be kept as a copy.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from broker.tiered_broker import KAFKA_VERSION, TieredBroker, small_segments
from coldlog.archive.metadata_log import METADATA_TOPIC

ORDERS, BRIEF = "orders", "brief"
CUT_OFFSET = 95
START_MS = 1_700_000_000_000
MOST_TRANSACTION_MS = 900_000
"""A broker allows no longer ones."""
_BATCH_RECORDS, _RECORD_BYTES, _SEGMENT_BYTES = 10, 500, 20_000
SMALL_SEGMENTS = small_segments(KAFKA_VERSION, _SEGMENT_BYTES)
TIERED = {
    "remote.storage.enable": "true",
    **SMALL_SEGMENTS,
    # All but the active segment is in the tier alone.
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "100",
}


@dataclass(slots=True, kw_only=True)
class Scenario:
    """The broker, and what was sent to it: timestamps of each partition by offset."""

    broker: TieredBroker
    sent_ms: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(20260407))

    def play_first_act(self) -> None:
        """Two tiered topics, with several segments each."""
        self._make(ORDERS, partition_count=2)
        self._make(BRIEF, partition_count=1)
        self.send((ORDERS, 0), 300)
        self.send((ORDERS, 1), 300)
        self.send((BRIEF, 0), 100)
        self.settle([(ORDERS, 0), (ORDERS, 1), (BRIEF, 0)])

    def play_second_act(self) -> None:
        """One partition is cut, one grows, one topic is made anew."""
        with admin(self.broker) as client:
            client.delete_records({TopicPartition(ORDERS, 0): CUT_OFFSET})
            client.delete_topics([BRIEF])
        self.send((ORDERS, 1), 200)
        self.broker.wait_until(lambda: not self.broker.tiered_logs(BRIEF, 0), "the deletion of a topic in the tier")
        self.broker.wait_until(lambda: min(self._ends((ORDERS, 0))) > CUT_OFFSET, "the deletion of cut segments")
        self.settle([(ORDERS, 0), (ORDERS, 1)])
        make_topic(self.broker, BRIEF, partition_count=1)

    def copy_metadata_logs(self, directory: Path) -> Path:
        """A copy of the metadata topic's log segments as they are now."""
        for each in self.broker.data.glob(f"{METADATA_TOPIC}-*"):
            shutil.copytree(each, directory / each.name)
        return directory

    def first_at_or_after(self, place: tuple[str, int], timestamp_ms: int, offsets: range) -> int | None:
        """By what was sent: the lowest of the offsets whose record is as late."""
        return next((offset for offset in offsets if self.sent_ms[place][offset] >= timestamp_ms), None)

    def asked_ms(self, place: tuple[str, int], count: int) -> list[int]:
        """Timestamps worth asking for: those that were sent, and beside them."""
        chosen = self.chance.sample(self.sent_ms[place], count)
        return [
            START_MS - 1,
            *(each + self.chance.choice((-1, 0, 1)) for each in chosen),
            max(self.sent_ms[place]) + 1,
        ]

    def _make(self, topic: str, *, partition_count: int) -> None:
        make_topic(self.broker, topic, partition_count=partition_count, configs=TIERED)

    def send(self, place: tuple[str, int], count: int, at_ms: Mapping[int, int] | None = None) -> None:
        """Records with timestamps that go up and down; `at_ms` are those of some offsets."""
        sent, fixed = self.sent_ms.setdefault(place, []), at_ms or {}
        new = [START_MS + (len(sent) + index) * 1_000 + self.chance.randrange(60_000) for index in range(count)]
        new = [fixed.get(len(sent) + index, timestamp_ms) for index, timestamp_ms in enumerate(new)]
        with producer(self.broker) as client:
            for index in range(0, count, _BATCH_RECORDS):
                for timestamp_ms in new[index : index + _BATCH_RECORDS]:
                    value = self.chance.randbytes(_RECORD_BYTES)
                    client.send(place[0], value, partition=place[1], timestamp_ms=timestamp_ms)
                client.flush()
        sent += new

    def _ends(self, place: tuple[str, int]) -> list[int]:
        """Where each tiered segment ends: where the next begins, in the tier or at the broker."""
        starts = [*self.broker.tiered_logs(*place), self.broker.local_logs(*place)[-1]]
        return starts[1:] or [0]

    def settle(self, places: Sequence[tuple[str, int]]) -> None:
        """Only active segments are left at the broker, and nothing was announced for a while."""
        for place in places:
            self.broker.wait_until(lambda place=place: len(self.broker.local_logs(*place)) == 1, f"uploads of {place}")  # type: ignore[misc]
        known: list[int] = []

        def is_quiet() -> bool:
            known.append(sum(each.stat().st_size for each in self.broker.data.glob(f"{METADATA_TOPIC}-*/*.log")))
            return len(known) > _QUIET_TICKS and len(set(known[-_QUIET_TICKS:])) == 1

        self.broker.wait_until(is_quiet, "silence of the metadata topic")


_QUIET_TICKS = 8


def make_topic(broker: TieredBroker, name: str, *, partition_count: int, configs: dict[str, str] | None = None) -> None:
    """A new topic; returns when it has leaders."""
    wanted = {"num_partitions": partition_count, "replication_factor": 1, "configs": configs or {}}
    with admin(broker) as client:
        client.create_topics({name: wanted})
        client.wait_for_topics([name])


@contextmanager
def admin(broker: TieredBroker) -> Iterator[KafkaAdminClient]:
    """An admin client of the test's own."""
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def producer(broker: TieredBroker, transactional_id: str | None = None) -> Iterator[KafkaProducer]:
    """A producer of the test's own; a broker on a busy machine ends none of its transactions."""
    client = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        linger_ms=50,
        transactional_id=transactional_id,
        transaction_timeout_ms=MOST_TRANSACTION_MS,
    )
    try:
        yield client
    finally:
        client.close()
