"""event_producer: how are records put into a topic of a running cluster?

For the metadata topic: each record goes to a partition that the caller names, is acknowledged by all replicas that are
in sync before the call returns, and only then comes the next one. The producer is idempotent, so that a record that
was sent again is there once. The topic must be there; none is made.

Errors are those of `kafka_client`: no acknowledgement in time is a `RetriableError`, and leaves open whether the record
was written.
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
        """The offset of the record."""
        about = f"the acknowledgement of an event in partition {partition} of topic {self.topic}"

        def send() -> int:
            sent = self.producer.send(self.topic, value=value, partition=partition, timestamp_ms=timestamp_ms)
            self.producer.flush(self.cluster.timeout_ms / 1000)
            return int(sent.get(self.cluster.timeout_ms / 1000).offset)

        return watched(self.cluster, about, send)


@contextmanager
def producing(cluster: Cluster, topic: str) -> Iterator[EventProducer]:
    """A producer, closed when the block is left."""
    kafka = client_library()
    options = producer_options(cluster)
    producer = watched(cluster, f"topic {topic}", lambda: kafka.KafkaProducer(**options))
    try:
        yield EventProducer(cluster=cluster, topic=topic, producer=producer)
    finally:
        producer.close(timeout=1.0)


def producer_options(cluster: Cluster) -> dict[str, object]:
    """What every producer is made with: idempotent, and acknowledged by all replicas that are in sync."""
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
