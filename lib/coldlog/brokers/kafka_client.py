"""Send requests to brokers, with a time limit for every call.

Nothing here commits, joins a group or creates a topic. The client's own time-outs do not cover every wait (for example
a TLS handshake), so each call is watched. If a broker refuses the client, the client retries until its time-out and
then reports only the time-out; the errors that it logged meanwhile show the cause.

Refused (`UsageError`): a wrong address, a broker that does not authorize the client. Any other failure, and no answer
in time, is a `RetriableError`. Messages contain the names of errors, never their text or an option's value.
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
"""Seconds that a client may take to close, and a call beyond its time-out."""
_POLL_MS = 500
_FETCH_BYTES = 4 << 20
_RECORDS_A_POLL = 5_000

_Answer = TypeVar("_Answer")
TopicPartition = tuple[str, int]


class OffsetSpec(IntEnum):
    """The requested offset, with ListOffsets' numbers."""

    LATEST = -1
    EARLIEST = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The brokers' addresses and the client's options; can be pickled. `options` may contain secrets."""

    bootstrap_servers: str
    timeout_ms: int
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTopic:
    """The current state of a topic."""

    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """A record; the timestamp is None if the record's format has none."""

    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None


def open_cluster(bootstrap_servers: str, timeout_ms: int, client_config: str | None) -> Cluster:
    """The cluster of the settings; the client must be installed."""
    client_library()
    if not _SERVERS.fullmatch(bootstrap_servers.strip()):
        raise UsageError(f"wrong bootstrap servers {bootstrap_servers!r}; use host:port, several separated by commas")
    options = {} if client_config is None else read_client_options(client_config)
    return Cluster(bootstrap_servers=bootstrap_servers.strip(), timeout_ms=timeout_ms, options=options)


def describe_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, LiveTopic]:
    """The existing ones of the named topics."""
    topics = sorted(set(names))
    about = f"topic {topics[0]}" if len(topics) == 1 else f"{len(topics)} topics"
    described = _ask_admin(cluster, about, lambda admin: admin.describe_topics(topics))  # type: ignore[attr-defined]
    found = {}
    for topic in described:
        if topic["error_code"] == 0:
            partitions = tuple(sorted(partition["partition_index"] for partition in topic["partitions"]))
            found[topic["name"]] = LiveTopic(topic_id=written_topic_id(topic["topic_id"]), partitions=partitions)
        elif topic["error_code"] != 3:  # UNKNOWN_TOPIC_OR_PARTITION
            failure = client_library().errors.for_code(topic["error_code"])()
            raise _error_for(cluster, f"topic {topic['name']}", failure)
    return found


def list_offsets(cluster: Cluster, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
    """The earliest or latest offset of each partition, with read_uncommitted; tiered records count."""
    kafka = client_library()
    wanted = {kafka.TopicPartition(topic, partition): int(spec) for topic, partition in partitions}
    if not wanted:
        return {}
    about = f"offsets of {len(wanted)} partitions"
    found = _ask_admin(cluster, about, lambda admin: admin.list_partition_offsets(wanted))  # type: ignore[attr-defined]
    return {(place.topic, place.partition): answer.offset for place, answer in found.items()}


def iter_records(
    cluster: Cluster, topic: str, partition: int, from_offset: int, end_offset: int
) -> Iterator[list[LiveRecord]]:
    """The records in [from_offset, end_offset), some thousands at a time; the size of a fetch limits the memory."""
    kafka, about = client_library(), f"partition {partition} of topic {topic}"
    topic_partition = kafka.TopicPartition(topic, partition)
    consumer = watched(cluster, about, lambda: new_client(kafka.KafkaConsumer, _consumer_options(cluster)))
    try:
        consumer.assign([topic_partition])
        consumer.seek(topic_partition, from_offset)
        yield from _iter_polled(cluster, about, consumer, topic_partition, end_offset)
    finally:
        # Closing must not wait long, nor raise another error, if the broker does not answer.
        closing = threading.Thread(target=consumer.close, kwargs={"autocommit": False}, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _iter_polled(
    cluster: Cluster, about: str, consumer: Any, topic_partition: object, end_offset: int
) -> Iterator[list[LiveRecord]]:
    position, silent_ms = consumer.position(topic_partition), 0
    while position < end_offset:
        polled = watched(cluster, about, lambda: consumer.poll(_POLL_MS, max_records=_RECORDS_A_POLL))
        # After a transaction's last marker the position moves without a record.
        moved = max(position, watched(cluster, about, lambda: consumer.position(topic_partition)))
        silent_ms = 0 if moved > position else silent_ms + _POLL_MS
        position = moved
        if silent_ms > cluster.timeout_ms:
            raise _no_answer(cluster, f"{about} (read up to offset {position})")
        records = [
            LiveRecord(record.offset, None if record.timestamp < 0 else record.timestamp, record.key, record.value)
            for record in polled.get(topic_partition, ())
            if record.offset < end_offset
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
        admin = new_client(kafka.KafkaAdminClient, client_options(cluster))
        try:
            return question(admin)
        finally:
            admin.close()

    return watched(cluster, about, ask)


def new_client(kind: Callable[..., Any], options: Mapping[str, object]) -> Any:
    """Make a client of kafka-python of the class `kind`. If that fails, end its thread and close its connections.

    kafka-python 3.0.12 itself does not end the thread, which then connects again and again until the process ends.
    """
    connections: list[Any] = []

    def connect(**config: object) -> object:
        connections.append(client_library().net.compat.KafkaNetClient(**config))
        return connections[-1]

    try:
        return kind(**options, kafka_client=connect)
    except BaseException:
        for each in connections:
            each.close()
            each._manager._net.stop(CLOSE_S * 1000)
        raise


def client_options(cluster: Cluster) -> dict[str, object]:
    """The options of every client."""
    times = {"bootstrap_timeout_ms": cluster.timeout_ms, "request_timeout_ms": cluster.timeout_ms}
    return {
        **client_arguments(cluster.options),
        **times,
        "bootstrap_servers": [server.strip() for server in cluster.bootstrap_servers.split(",")],
    }


def watched(cluster: Cluster, about: str, call: Callable[[], _Answer]) -> _Answer:
    """Run the call in a thread and return its result. A call without end stays in its thread, which ends with the
    process."""
    answers: list[_Answer] = []
    failures: list[Exception] = []
    expected = (client_library().errors.KafkaError, OSError, ColdlogError)

    def run() -> None:
        try:
            answers.append(call())
        except expected as failed:
            failures.append(failed)

    thread = threading.Thread(target=run, name="coldlog-kafka", daemon=True)
    with _logged_errors() as logged:
        thread.start()
        thread.join(cluster.timeout_ms / 1000 + CLOSE_S)
    if answers:
        return answers[0]
    if failures and isinstance(failures[0], ColdlogError):
        raise failures[0]
    if failures:
        raise _error_for(cluster, about, failures[0], logged) from failures[0]
    if not thread.is_alive():
        raise ColdlogError(f"kafka-python failed when it asked for {about}; see its traceback above")
    raise _error_for(cluster, about, None, logged)


@contextmanager
def _logged_errors() -> Iterator[list[BaseException]]:
    """The errors that the client logs while it retries; they show why it fails."""
    logged: list[BaseException] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            arguments = record.args if isinstance(record.args, tuple) else ()
            logged.extend(argument for argument in arguments if isinstance(argument, BaseException))

    listener, logger = Listener(logging.WARNING), logging.getLogger("kafka")
    logger.addHandler(listener)
    try:
        yield logged
    finally:
        logger.removeHandler(listener)


def _error_for(
    cluster: Cluster, about: str, failure: Exception | None, logged: Sequence[BaseException] = ()
) -> ColdlogError:
    """The error to raise; without a failure the call did not end in time."""
    errors = client_library().errors
    causes = [error for error in (*logged, failure) if error and not isinstance(error, errors.KafkaTimeoutError)]
    why = f" ({type(causes[-1]).__name__})" if causes else ""
    refused = next((cause for cause in causes if isinstance(cause, _refusals())), None)
    if isinstance(refused, errors.TopicAuthorizationFailedError):
        return NotAuthorizedError(
            f"{cluster.bootstrap_servers} does not authorize coldlog for {about}; grant it Describe and Read on the "
            "topic, or correct metadata.client_config"
        )
    if refused is not None:
        return UsageError(
            f"{cluster.bootstrap_servers} does not authorize coldlog for {about} ({type(refused).__name__}); correct "
            "metadata.client_config"
        )
    if failure is None or isinstance(failure, errors.KafkaTimeoutError | errors.RequestTimedOutError):
        return _no_answer(cluster, about, why)
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


def _no_answer(cluster: Cluster, about: str, why: str = "") -> RetriableError:
    return RetriableError(
        f"{cluster.bootstrap_servers} did not answer for {about} within {cluster.timeout_ms:,} ms{why}; check that a "
        "broker runs there with the protocol in metadata.client_config, or increase metadata.timeout_ms"
    )


def written_topic_id(text: object) -> str:
    """A topic id as Kafka writes it, for example in names of directories; zero for None, as the client reads zero."""
    known = uuid.UUID(int=0) if text is None else uuid.UUID(str(text))
    return base64.urlsafe_b64encode(known.bytes).decode().rstrip("=")
