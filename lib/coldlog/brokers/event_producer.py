"""Append events to the metadata topic of a running cluster, one at a time.

The caller names the partition of each record. All in-sync replicas acknowledge a record before the call returns. The
producer is idempotent, so a record that is sent again is written once. The topic must exist; it is not created.

Errors are those of `kafka_client`. A missing acknowledgement is a `RetriableError`; the record may have been written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from coldlog.brokers.kafka_client import Cluster, client_options, watched
from coldlog.brokers.kafka_options import client_library


@dataclass(frozen=True, slots=True, kw_only=True)
class EventProducer:
    """A producer for one topic."""

    cluster: Cluster
    topic: str
    producer: Any

    def append(self, partition: int, value: bytes, timestamp_ms: int) -> int:
        """Append the record and return its offset."""
        about = f"the acknowledgement of an event in partition {partition} of topic {self.topic}"

        def send() -> int:
            sent = self.producer.send(self.topic, value=value, partition=partition, timestamp_ms=timestamp_ms)
            self.producer.flush(self.cluster.timeout_ms / 1000)
            return int(sent.get(self.cluster.timeout_ms / 1000).offset)

        return watched(self.cluster, about, send)


@contextmanager
def producing(cluster: Cluster, topic: str) -> Iterator[EventProducer]:
    """A producer that is closed at the end of the block."""
    kafka = client_library()
    options = producer_options(cluster)
    producer = watched(cluster, f"topic {topic}", lambda: kafka.KafkaProducer(**options))
    try:
        yield EventProducer(cluster=cluster, topic=topic, producer=producer)
    finally:
        producer.close(timeout=1.0)


def producer_options(cluster: Cluster) -> dict[str, object]:
    """The options of every producer: idempotent, and acknowledged by all in-sync replicas."""
    return {
        **client_options(cluster),
        "acks": "all",
        "enable_idempotence": True,
        "allow_auto_create_topics": False,
        "max_block_ms": cluster.timeout_ms,
        "delivery_timeout_ms": cluster.timeout_ms,
        "request_timeout_ms": max(1, cluster.timeout_ms // 2),
        "linger_ms": 0,
        "metrics_enabled": False,
    }
