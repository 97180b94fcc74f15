"""record_producer: how are many records put into a topic of a running cluster, in order?

Records of one partition arrive in the order in which they were sent, each once as long as the producer lives (it is
idempotent), acknowledged by all replicas that are in sync. The topic and the partition must be there; none is made.

Errors are those of `kafka_client`; a record that was refused is told by the next `send`, or at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from coldlog.brokers.event_producer import producer_options
from coldlog.brokers.kafka_client import Cluster, watched
from coldlog.brokers.kafka_options import client_library
from coldlog.errors import ColdlogError, RetriableError, UsageError

_FLUSH_EVERY = 10_000
_MOST_BYTES = 1 << 30
"""The brokers say what is too large."""


@dataclass(slots=True, kw_only=True)
class RecordProducer:
    """A producer for one topic."""

    cluster: Cluster
    topic: str
    producer: Any
    _sent: int = 0
    _failed: list[tuple[BaseException, str]] = field(default_factory=list)

    def send(
        self,
        *,
        about: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> None:
        """Hands one record over; it is on its way when this returns. `UsageError`: one that cannot be sent; `about`
        says which it is."""
        self._require_taken()
        try:
            sent = self.producer.send(
                self.topic,
                key=key,
                value=value,
                headers=list(headers),
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        except (TypeError, ValueError, AssertionError) as unfit:
            raise UsageError(
                f"{about}: kafka-python cannot send such a record to topic {self.topic} (it has neither key nor value, "
                "or a header without a value); replay into a table instead"
            ) from unfit
        except client_library().errors.KafkaError as failed:
            raise self._told(failed, about) from failed
        sent.add_errback(lambda failure: self._failed.append((failure, about)))
        self._sent += 1
        if self._sent % _FLUSH_EVERY == 0:
            self.flush()

    def flush(self) -> None:
        """Returns when everything that was sent is acknowledged."""
        about = f"the acknowledgement of records in topic {self.topic}"
        watched(self.cluster, about, lambda: self.producer.flush(self.cluster.timeout_ms / 1000))
        self._require_taken()

    def _require_taken(self) -> None:
        if self._failed:
            failure, about = self._failed[0]
            raise self._told(failure, about)

    def _told(self, failure: BaseException, about: str) -> ColdlogError:
        text = f"topic {self.topic} did not take the record {about} ({type(failure).__name__})"
        if getattr(failure, "retriable", False):
            return RetriableError(f"{text}; run again")
        return UsageError(f"{text}; look at the topic's limits (max.message.bytes, message.timestamp.after.max.ms)")


@contextmanager
def producing_records(cluster: Cluster, topic: str) -> Iterator[RecordProducer]:
    """A producer, flushed and closed when the block is left."""
    kafka = client_library()
    options = {**producer_options(cluster), "linger_ms": 20, "max_request_size": _MOST_BYTES}
    producer = watched(cluster, f"topic {topic}", lambda: kafka.KafkaProducer(**options))
    records = RecordProducer(cluster=cluster, topic=topic, producer=producer)
    try:
        yield records
        records.flush()
    finally:
        producer.close(timeout=1.0)
