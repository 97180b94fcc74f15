"""kafka_client: how is a broker asked, and what is made of its silence?

Nothing here commits, joins a group or makes a topic. The client's own time-outs do not cover every wait (a TLS
handshake), so each call is watched. The client tries again and again where it is refused, and then says no more than
that the time is over; what it logged meanwhile tells why.

Refused (`UsageError`): an address that is none, a broker that does not let us in. Any other failure, and no answer in
time, is a `RetriableError`. Messages hold the names of errors, never their text or an option's value.
"""

from __future__ import annotations

import base64
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

from coldlog.brokers.kafka_options import client_arguments, client_library, read_client_options
from coldlog.errors import ColdlogError, NotAuthorizedError, RetriableError, UsageError

_SERVERS = re.compile(r"[^\s,:]+:[0-9]{1,5}(,\s*[^\s,:]+:[0-9]{1,5})*")
CLOSE_S = 1.0
"""What a client gets to close, and a call beyond its time-out."""
_POLL_MS = 500
_FETCH_BYTES = 4 << 20
_RECORDS_A_POLL = 5_000

_Answer = TypeVar("_Answer")
TopicPartition = tuple[str, int]


class OffsetSpec(IntEnum):
    """Which offset is asked for, as ListOffsets numbers them."""

    LATEST = -1
    EARLIEST = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where brokers are and how they are spoken to; can be pickled. `options` may hold secrets."""

    bootstrap_servers: str
    timeout_ms: int
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTopic:
    """A topic as the cluster has it now."""

    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """A record; the timestamp is None where its format has none."""

    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None


def open_cluster(bootstrap_servers: str, timeout_ms: int, client_config: str | None) -> Cluster:
    """The cluster of the settings; the client must be installed."""
    client_library()
    if not _SERVERS.fullmatch(bootstrap_servers.strip()):
        raise UsageError(f"bootstrap servers {bootstrap_servers!r}: host:port is expected, several with commas between")
    options = {} if client_config is None else read_client_options(client_config)
    return Cluster(bootstrap_servers=bootstrap_servers.strip(), timeout_ms=timeout_ms, options=options)


def describe_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, LiveTopic]:
    """Those of the topics that the cluster has."""
    asked = sorted(set(names))
    about = f"topic {asked[0]}" if len(asked) == 1 else f"{len(asked)} topics"
    described = _ask_admin(cluster, about, lambda admin: admin.describe_topics(asked))  # type: ignore[attr-defined]
    found = {}
    for topic in described:
        if topic["error_code"] == 0:
            partitions = tuple(sorted(each["partition_index"] for each in topic["partitions"]))
            found[topic["name"]] = LiveTopic(topic_id=written_topic_id(topic["topic_id"]), partitions=partitions)
        elif topic["error_code"] != 3:  # UNKNOWN_TOPIC_OR_PARTITION
            raise _told(cluster, f"topic {topic['name']}", client_library().errors.for_code(topic["error_code"])())
    return found


def list_offsets(cluster: Cluster, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
    """The earliest or latest offset of each partition, by read_uncommitted; those of a tiered topic count its tier."""
    kafka = client_library()
    wanted = {kafka.TopicPartition(topic, partition): int(spec) for topic, partition in partitions}
    if not wanted:
        return {}
    about = f"offsets of {len(wanted)} partitions"
    found = _ask_admin(cluster, about, lambda admin: admin.list_partition_offsets(wanted))  # type: ignore[attr-defined]
    return {(each.topic, each.partition): answer.offset for each, answer in found.items()}


def iter_records(
    cluster: Cluster, topic: str, partition: int, from_offset: int, end_offset: int
) -> Iterator[list[LiveRecord]]:
    """The records in [from_offset, end_offset), thousands at a time; memory is bounded by what a fetch brings."""
    kafka, about = client_library(), f"partition {partition} of topic {topic}"
    place = kafka.TopicPartition(topic, partition)
    consumer = watched(cluster, about, lambda: kafka.KafkaConsumer(**_consumer_options(cluster)))
    try:
        consumer.assign([place])
        consumer.seek(place, from_offset)
        yield from _iter_polled(cluster, about, consumer, place, end_offset)
    finally:
        # Also of a broker that is silent: this is not worth a wait, nor another error.
        closing = threading.Thread(target=consumer.close, kwargs={"autocommit": False}, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _iter_polled(
    cluster: Cluster, about: str, consumer: Any, place: object, end_offset: int
) -> Iterator[list[LiveRecord]]:
    position, silent_ms = consumer.position(place), 0
    while position < end_offset:
        polled = watched(cluster, about, lambda: consumer.poll(_POLL_MS, max_records=_RECORDS_A_POLL))
        # Behind a transaction's last marker the position moves without a record.
        moved = max(position, watched(cluster, about, lambda: consumer.position(place)))
        silent_ms = 0 if moved > position else silent_ms + _POLL_MS
        position = moved
        if silent_ms > cluster.timeout_ms:
            raise _silent(cluster, f"{about}, read up to offset {position},")
        records = [
            LiveRecord(each.offset, None if each.timestamp < 0 else each.timestamp, each.key, each.value)
            for each in polled.get(place, ())
            if each.offset < end_offset
        ]
        if records:
            yield records


def _consumer_options(cluster: Cluster) -> dict[str, object]:
    return {
        **client_options(cluster),
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "allow_auto_create_topics": False,
        "isolation_level": "read_uncommitted",
        "fetch_max_bytes": _FETCH_BYTES,
        "metrics_enabled": False,
    }


def _ask_admin(cluster: Cluster, about: str, question: Callable[[object], _Answer]) -> _Answer:
    kafka = client_library()

    def ask() -> _Answer:
        admin = kafka.KafkaAdminClient(**client_options(cluster))
        try:
            return question(admin)
        finally:
            admin.close()

    return watched(cluster, about, ask)


def client_options(cluster: Cluster) -> dict[str, object]:
    """What every client of the library is made with."""
    times = {"bootstrap_timeout_ms": cluster.timeout_ms, "request_timeout_ms": cluster.timeout_ms}
    return {
        **client_arguments(cluster.options),
        **times,
        "bootstrap_servers": [each.strip() for each in cluster.bootstrap_servers.split(",")],
    }


def watched(cluster: Cluster, about: str, call: Callable[[], _Answer]) -> _Answer:
    """What the call returns. A call that has no end is left behind in its thread, which ends with the process."""
    answers: list[_Answer] = []
    failures: list[Exception] = []
    expected = (client_library().errors.KafkaError, OSError)

    def run() -> None:
        try:
            answers.append(call())
        except expected as failed:
            failures.append(failed)

    thread = threading.Thread(target=run, name="coldlog-kafka", daemon=True)
    with _heard() as troubles:
        thread.start()
        thread.join(cluster.timeout_ms / 1000 + CLOSE_S)
    if answers:
        return answers[0]
    if failures:
        raise _told(cluster, about, failures[0], troubles) from failures[0]
    if not thread.is_alive():
        raise ColdlogError(f"kafka-python failed when it asked for {about}; its traceback stands above")
    raise _told(cluster, about, None, troubles)


@contextmanager
def _heard() -> Iterator[list[BaseException]]:
    """The errors that the client logs while it tries again and again: why it does not get through."""
    troubles: list[BaseException] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            arguments = record.args if isinstance(record.args, tuple) else ()
            troubles.extend(each for each in arguments if isinstance(each, BaseException))

    listener, logger = Listener(logging.WARNING), logging.getLogger("kafka")
    logger.addHandler(listener)
    try:
        yield troubles
    finally:
        logger.removeHandler(listener)


def _told(
    cluster: Cluster, about: str, failure: Exception | None, troubles: Sequence[BaseException] = ()
) -> ColdlogError:
    """The error to raise; without a failure the call has no end."""
    errors = client_library().errors
    told = [each for each in (*troubles, failure) if each and not isinstance(each, errors.KafkaTimeoutError)]
    why = f" ({type(told[-1]).__name__})" if told else ""
    refused = next((each for each in told if isinstance(each, _refusals())), None)
    if isinstance(refused, errors.TopicAuthorizationFailedError):
        return NotAuthorizedError(
            f"{cluster.bootstrap_servers} does not let coldlog ask for {about}; grant it Describe and Read of the "
            "topic, or correct metadata.client_config"
        )
    if refused is not None:
        return UsageError(
            f"{cluster.bootstrap_servers} does not let coldlog ask for {about} ({type(refused).__name__}); correct "
            "metadata.client_config"
        )
    if failure is None or isinstance(failure, errors.KafkaTimeoutError | errors.RequestTimedOutError):
        return _silent(cluster, about, why)
    return RetriableError(f"asking {cluster.bootstrap_servers} for {about} failed{why}; try again")


def _refusals() -> tuple[type[Exception], ...]:
    errors = client_library().errors
    return (
        errors.AuthorizationError,
        errors.SaslAuthenticationFailedError,
        errors.UnsupportedSaslMechanismError,
        errors.UnsupportedVersionError,
        errors.KafkaConfigurationError,
    )


def _silent(cluster: Cluster, about: str, why: str = "") -> RetriableError:
    return RetriableError(
        f"{cluster.bootstrap_servers} did not answer for {about} within {cluster.timeout_ms:,} ms{why}; see that a "
        "broker runs there and speaks as metadata.client_config says, or raise metadata.timeout_ms"
    )


def written_topic_id(text: object) -> str:
    """As Kafka writes it, and names directories by it."""
    return base64.urlsafe_b64encode(uuid.UUID(str(text)).bytes).decode().rstrip("=")
