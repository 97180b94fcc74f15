"""Write many records to a topic of a running cluster, in order.

Records of one partition are written in the order of `send`, each once during the producer's lifetime (it is
idempotent), and acknowledged by all in-sync replicas. The topic and the partition must exist; they are not created.

Errors are those of `kafka_client`. The error of a refused record is raised by the next `send`, or at the end.
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
"""Large, so that the brokers decide which record is too large."""


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
        """Start to send one record; it may not be acknowledged yet on return. `UsageError` for a record that cannot be
        sent; `about` names the record in messages."""
        self._require_accepted()
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
                f"{about}: kafka-python cannot send this record to topic {self.topic}: it has neither key nor value, "
                "or a header without a value; replay into a table instead"
            ) from unfit
        except client_library().errors.KafkaError as failed:
            raise self._error_for(failed, about) from failed
        sent.add_errback(lambda failure: self._failed.append((failure, about)))
        self._sent += 1
        if self._sent % _FLUSH_EVERY == 0:
            self.flush()

    def flush(self) -> None:
        """Wait until every sent record is acknowledged."""
        about = f"the acknowledgement of records in topic {self.topic}"
        watched(self.cluster, about, lambda: self.producer.flush(self.cluster.timeout_ms / 1000))
        self._require_accepted()

    def _require_accepted(self) -> None:
        if self._failed:
            failure, about = self._failed[0]
            raise self._error_for(failure, about)

    def _error_for(self, failure: BaseException, about: str) -> ColdlogError:
        text = f"topic {self.topic} did not accept the record {about} ({type(failure).__name__})"
        if getattr(failure, "retriable", False):
            return RetriableError(f"{text}; run again")
        return UsageError(f"{text}; check the topic's limits (max.message.bytes, message.timestamp.after.max.ms)")


@contextmanager
def producing_records(cluster: Cluster, topic: str) -> Iterator[RecordProducer]:
    """A producer that is flushed and closed at the end of the block."""
    kafka = client_library()
    options = {**producer_options(cluster), "linger_ms": 20, "max_request_size": _MOST_BYTES}
    producer = watched(cluster, f"topic {topic}", lambda: kafka.KafkaProducer(**options))
    records = RecordProducer(cluster=cluster, topic=topic, producer=producer)
    try:
        yield records
        records.flush()
    finally:
        producer.close(timeout=1.0)
