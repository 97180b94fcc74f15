"""kafka_client: how is a broker asked, and what is made of its silence?

The one module that imports kafka-python (the extra `kafka`), and only when a broker is asked. It was chosen because its
consumer does without a group: librdkafka's cannot, and asks for the group's coordinator, upon which a broker makes
`__consumer_offsets`. Nothing here commits, joins a group or makes a topic.

Options of the client come from a properties file, `key=value` a line, `#` before a comment: the client's own names,
with dots or underscores (`security.protocol`, `ssl_cafile`, `sasl.plain.password`). Their values are never part of a
message.

Refused (`UsageError`): the client is not installed, a file that cannot be read, options that the client does not know
or that are not the user's to choose, a broker that does not let us in. Any other failure, and no answer in time, is a
`RetriableError`. The client's own time-outs do not cover every wait (a TLS handshake), so each call is watched.
"""

from __future__ import annotations

import base64
import difflib
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import TypeVar

from coldlog.errors import ColdlogError, RetriableError, UsageError

_SERVERS = re.compile(r"[^\s,:]+:[0-9]{1,5}(,\s*[^\s,:]+:[0-9]{1,5})*")
_OURS = {"bootstrap_servers", "bootstrap_timeout_ms", "request_timeout_ms"}
_GRACE_S = 1.0
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
    value: bytes | None


def open_cluster(bootstrap_servers: str, timeout_ms: int, client_config: str | None) -> Cluster:
    """The cluster of the settings; the client must be installed."""
    _client_library()
    if not _SERVERS.fullmatch(bootstrap_servers.strip()):
        raise UsageError(f"bootstrap servers {bootstrap_servers!r}: host:port is expected, several with commas between")
    options = {} if client_config is None else dict(_read_options(client_config))
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
            found[topic["name"]] = LiveTopic(topic_id=_topic_id(topic["topic_id"]), partitions=partitions)
        elif topic["error_code"] != 3:  # UNKNOWN_TOPIC_OR_PARTITION
            raise _told(cluster, f"topic {topic['name']}", _client_library().errors.for_code(topic["error_code"])())
    return found


def list_offsets(cluster: Cluster, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
    """The earliest or latest offset of each partition, by read_uncommitted; those of a tiered topic count its tier."""
    kafka = _client_library()
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
    kafka, about = _client_library(), f"partition {partition} of topic {topic}"
    place = kafka.TopicPartition(topic, partition)
    consumer = _watched(cluster, about, lambda: kafka.KafkaConsumer(**_consumer_options(cluster)))
    consumer.assign([place])
    consumer.seek(place, from_offset)
    position, silent_ms = from_offset, 0
    while position < end_offset:
        polled = _watched(cluster, about, lambda: consumer.poll(_POLL_MS, max_records=_RECORDS_A_POLL))
        # Behind a transaction's last marker the position moves without a record.
        moved = max(position, _watched(cluster, about, lambda: consumer.position(place)))
        silent_ms = 0 if moved > position else silent_ms + _POLL_MS
        position = moved
        if silent_ms > cluster.timeout_ms:
            raise _silent(cluster, f"{about}, which it read up to offset {position},")
        records = [
            LiveRecord(each.offset, None if each.timestamp < 0 else each.timestamp, each.value)
            for each in polled.get(place, ())
            if each.offset < end_offset
        ]
        if records:
            yield records
    _watched(cluster, about, lambda: consumer.close(autocommit=False))


def _consumer_options(cluster: Cluster) -> dict[str, object]:
    return {
        **_client_options(cluster),
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "allow_auto_create_topics": False,
        "isolation_level": "read_uncommitted",
        "fetch_max_bytes": _FETCH_BYTES,
        "metrics_enabled": False,
    }


def _ask_admin(cluster: Cluster, about: str, question: Callable[[object], _Answer]) -> _Answer:
    kafka = _client_library()

    def ask() -> _Answer:
        admin = kafka.KafkaAdminClient(**_client_options(cluster))
        try:
            return question(admin)
        finally:
            admin.close()

    return _watched(cluster, about, ask)


def _client_options(cluster: Cluster) -> dict[str, object]:
    given = {key: _converted(key, text) for key, text in cluster.options.items()}
    times = {"bootstrap_timeout_ms": cluster.timeout_ms, "request_timeout_ms": cluster.timeout_ms}
    return {**given, **times, "bootstrap_servers": [each.strip() for each in cluster.bootstrap_servers.split(",")]}


def _watched(cluster: Cluster, about: str, call: Callable[[], _Answer]) -> _Answer:
    """What the call returns. A call that has no end is left behind in its thread, which ends with the process."""
    answers: list[_Answer] = []
    failures: list[Exception] = []
    expected = (_client_library().errors.KafkaError, OSError)

    def run() -> None:
        try:
            answers.append(call())
        except expected as failed:
            failures.append(failed)

    thread = threading.Thread(target=run, name="coldlog-kafka", daemon=True)
    thread.start()
    thread.join(cluster.timeout_ms / 1000 + _GRACE_S)
    if failures:
        raise _told(cluster, about, failures[0]) from failures[0]
    if not answers:
        raise _silent(cluster, about)
    return answers[0]


def _told(cluster: Cluster, about: str, failure: Exception) -> ColdlogError:
    errors = _client_library().errors
    what = f"{about} at {cluster.bootstrap_servers}"
    if isinstance(failure, errors.KafkaTimeoutError | errors.RequestTimedOutError):
        return _silent(cluster, about)
    if isinstance(failure, _refusals()):
        return UsageError(
            f"the broker did not let coldlog read {what}: {type(failure).__name__}; correct metadata.client_config"
        )
    return RetriableError(f"asking for {what} failed: {type(failure).__name__}; try again")


def _refusals() -> tuple[type[Exception], ...]:
    errors = _client_library().errors
    return (
        errors.AuthorizationError,
        errors.SaslAuthenticationFailedError,
        errors.UnsupportedSaslMechanismError,
        errors.UnsupportedVersionError,
        errors.KafkaConfigurationError,
    )


def _silent(cluster: Cluster, about: str) -> RetriableError:
    return RetriableError(
        f"{cluster.bootstrap_servers} did not answer for {about} within {cluster.timeout_ms:,} ms; see that a broker "
        "runs there and speaks as metadata.client_config says, or raise metadata.timeout_ms"
    )


def _read_options(path: str) -> Iterator[tuple[str, str]]:
    allowed = sorted(_option_defaults())
    try:
        with open(path, encoding="utf-8") as lines:
            stripped = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    except (OSError, UnicodeDecodeError) as unreadable:
        raise UsageError(f"metadata.client_config cannot be read: {path}: {type(unreadable).__name__}") from unreadable
    for number, line in stripped:
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, text = line.partition("=")
        name = key.strip().replace(".", "_")
        if not equals:
            raise UsageError(f"{path}, line {number}: key=value is expected")
        if name not in allowed:
            nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.0)[0]
            raise UsageError(f"{path}, line {number}: {key.strip()} cannot be set; did you mean {nearest}?")
        _converted(name, text.strip(), f"{path}, line {number}: ")
        yield name, text.strip()


def _option_defaults() -> dict[str, object]:
    """What may be set, with its default: what every kind of client knows, and a text can say."""
    known: dict[str, object] = _client_library().KafkaAdminClient.DEFAULT_CONFIG
    is_text = re.compile(r"security_|ssl_(?!context)|sasl_(?!oauth)|proxy_url|client_|re(connect|try)_|connections_")
    return {key: default for key, default in known.items() if is_text.match(key) and key not in _OURS}


def _converted(name: str, text: str, where: str = "") -> object:
    default = _option_defaults()[name]
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return int(text) if isinstance(default, int) else text
    except (KeyError, ValueError):
        # Without its cause, which shows the value.
        allowed = "true or false" if isinstance(default, bool) else "a number"
        raise UsageError(f"{where}{name} must be {allowed}") from None


def _topic_id(text: str) -> str:
    """As Kafka writes it, and names directories by it."""
    return base64.urlsafe_b64encode(uuid.UUID(str(text)).bytes).decode().rstrip("=")


def _client_library() -> ModuleType:
    try:
        import kafka
    except ImportError as missing:
        raise UsageError(
            "a live topic is read with kafka-python, which is not installed: run .venv/bin/python -m uv pip install "
            "--constraints constraints.txt --editable '.[kafka]'; on a cluster every executor's Python needs it too"
        ) from missing
    return kafka  # type: ignore[no-any-return]  # it ships no types
