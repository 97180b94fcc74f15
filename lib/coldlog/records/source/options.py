"""Read the options of the data source.

Names, values and rules are those of Spark's Kafka source in a batch query; names may be in any case. Settings of
coldlog (`warehouse.uri`, `archive.uri` and all of `archive.`, `s3.` and `index.`) and `columns` are options too.
Options that are for brokers or for polling them are ignored, so that a program can keep them.

Refused (`UsageError`): what the Kafka source refuses, and unknown names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum

from coldlog.errors import UsageError
from coldlog.model.states import IsolationLevel
from coldlog.records.source.columns import COLUMN_TYPES, HEADERS, TIMESTAMP_MS
from coldlog.runtime.settings import MIB, Settings
from coldlog.runtime.settings_sources import settings_of
from coldlog.runtime.timestamps import timestamp_from_text

TopicPartition = tuple[str, int]
EARLIEST, LATEST = -2, -1
"""Used in place of an offset."""

_MOST_OFFSETS = "maxoffsetspertrigger"
_STRATEGIES = ("assign", "subscribe", "subscribepattern")
FOR_RECORDS = frozenset(
    {
        *_STRATEGIES, "startingoffsets", "endingoffsets", "startingoffsetsbytimestamp", "endingoffsetsbytimestamp",
        "startingtimestamp", "endingtimestamp", "startingoffsetsbytimestampstrategy", "minpartitions",
        "failondataloss", "includeheaders", "includetimestampms", "timestampbeyondrange",
        "columns", "maxpartitionbytes", _MOST_OFFSETS,
    }
)  # fmt: skip
_FOR_CONSUMERS = frozenset(
    {
        "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix",
        "minoffsetspertrigger", "maxtriggerdelay", "maxrecordsperpartition",
    }
)  # fmt: skip
_SETTING_GROUPS = ("warehouse", "archive", "s3", "index")
READ_QUOTA = ("remote.log.manager.fetch.max.bytes.per.second", "fetch.share_quota")
LOCAL_LOG = ("fetch.log_directory",)
_SHARED_GROUPS = ("warehouse.", "archive.", "s3.", "index.max_", *READ_QUOTA, *LOCAL_LOG)
_ISOLATION = "kafka.isolation.level"
_DEFAULT_TASK_BYTES = 128 * MIB


class Strategy(Enum):
    """How the partitions are chosen."""

    ASSIGN = "assign"
    SUBSCRIBE = "subscribe"
    PATTERN = "subscribePattern"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The partitions that are asked for: `partitions`, or all of `topics`, or of topics that match `pattern`.
    `topic_ids`: of these topics; a topic with another id was created again, and is not meant."""

    strategy: Strategy
    partitions: frozenset[TopicPartition] = frozenset()
    topics: tuple[str, ...] = ()
    pattern: str = ""
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One end of the offsets that are asked for: the same for every partition (`offset`: EARLIEST or LATEST, or
    `timestamp_ms`), or by partition. One of the four is set."""

    offset: int | None = None
    timestamp_ms: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps_ms: Mapping[TopicPartition, int] | None = None

    @property
    def by_partition(self) -> Mapping[TopicPartition, int] | None:
        """Return the offsets or timestamps of single partitions."""
        return self.offsets if self.offsets is not None else self.timestamps_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a reading. `starts_late`: a partition without a record at or after its starting timestamp is read
    from its end, so nothing is read; otherwise it is an error. `min_tasks` is a wish. `most_offsets` limits a stream's
    micro-batch. `nulls_timestamps`: `timestamp` is NULL where Spark's type cannot hold it; otherwise it is an error."""

    subscription: Subscription
    start: Limit
    end: Limit
    starts_late: bool
    min_tasks: int
    task_bytes: int
    fails_on_data_loss: bool
    isolation_level: IsolationLevel
    columns: tuple[str, ...]
    nulls_timestamps: bool
    most_offsets: int | None
    warehouse_uri: str
    as_of_ms: int | None
    settings: Settings


def read_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of the DataFrame: `columns`, or all."""
    on_request = ((HEADERS, "includeHeaders"), (TIMESTAMP_MS, "includeTimestampMs"))
    left_out = {name for name, option in on_request if not _flag(options, option, default=False)}
    text = options.get("columns")
    if text is None:
        return tuple(name for name in COLUMN_TYPES if name not in left_out)
    by_name = {name.lower(): name for name in COLUMN_TYPES}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name.lower() not in by_name]
    if unknown or not names or len({name.lower() for name in names}) < len(names):
        raise UsageError(
            f"columns = {text}: expected some of {', '.join(COLUMN_TYPES)}, separated by commas, each once"
        )
    return tuple(by_name[name.lower()] for name in names)


def source_defaults(settings: Settings) -> dict[str, str]:
    """Return the options with which every reading finds the warehouse and the archive of the settings."""
    shared = {key: value for key, value in settings.items() if key.startswith(_SHARED_GROUPS) and value is not None}
    return {key: str(value) for key, value in shared.items()}


def read_options(options: Mapping[str, str], *, is_stream: bool = False) -> SourceOptions:
    """Read options, whose names are in lower case. A stream begins at the end by default, and has no end."""
    settings = _read_settings(options)
    start = _read_limit(options, "starting", LATEST if is_stream else EARLIEST)
    end = _read_limit(options, "ending", LATEST)
    if is_stream:
        _refuse_ending(options)
    else:
        _require_batch_limits(start, end)
    strategy = _choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    as_of = settings.warehouse.as_of
    return SourceOptions(
        subscription=_read_subscription(options),
        start=start,
        end=end,
        starts_late=strategy == "latest",
        min_tasks=_positive(options, "minPartitions", 1),
        task_bytes=_positive(options, "maxPartitionBytes", _DEFAULT_TASK_BYTES),
        fails_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        isolation_level=_read_isolation_level(options),
        columns=read_columns(options),
        nulls_timestamps=_choice(options, "timestampBeyondRange", ("error", "null")) == "null",
        most_offsets=_positive(options, "maxOffsetsPerTrigger", 1) if is_stream and _MOST_OFFSETS in options else None,
        warehouse_uri=_required(settings.warehouse.uri, "warehouse.uri"),
        as_of_ms=None if as_of is None else timestamp_from_text(as_of),
        settings=settings,
    )


def _read_settings(options: Mapping[str, str]) -> Settings:
    settings: dict[str, str] = {}
    for name, value in options.items():
        if name in (*READ_QUOTA, *LOCAL_LOG) or (name.partition(".")[0] in _SETTING_GROUPS and "." in name):
            settings[name] = value
        elif name not in FOR_RECORDS and name not in _FOR_CONSUMERS and not name.startswith("kafka."):
            nearest = get_close_matches(name, sorted(FOR_RECORDS), n=1)
            meant = f", did you mean {nearest[0]}?" if nearest else ""
            raise UsageError(
                f"unknown option {name}{meant}: docs/how-to/read-records.md lists them. They are those of Spark's "
                "Kafka source, coldlog's settings such as warehouse.uri and archive.uri, and columns"
            )
    read = settings_of(settings, "option")
    _required(read.archive.uri, "archive.uri")
    return read


def _required(uri: str | None, key: str) -> str:
    if uri is None:
        raise UsageError(f'option {key} is missing: set .option("{key}", ...) to a directory or s3://bucket/prefix')
    return uri


def _read_subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in _STRATEGIES if name in options]
    if len(given) != 1:
        number = "one" if not given else "only one"
        raise UsageError(f"{number} of the options assign, subscribe and subscribePattern must be given")
    value = options[given[0]].strip()
    if given[0] == "assign":
        return Subscription(strategy=Strategy.ASSIGN, partitions=_read_assignment(value))
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise UsageError(f"subscribe = {value!r} names no topic")
        return Subscription(strategy=Strategy.SUBSCRIBE, topics=topics)
    try:
        re.compile(value)
    except re.error as wrong:
        raise UsageError(f"subscribePattern = {value}: not a regular expression: {wrong}") from wrong
    if not value:
        raise UsageError("subscribePattern is empty")
    return Subscription(strategy=Strategy.PATTERN, pattern=value)


def _read_assignment(text: str) -> frozenset[TopicPartition]:
    expected = '{"topicA":[0,1],"topicB":[2,4]}'
    named = _read_json("assign", text, expected)
    found = set()
    for topic, partitions in named.items():
        if not isinstance(partitions, list) or not all(_is_partition(number) for number in partitions):
            raise _not_as_expected("assign", text, expected)
        found |= {(topic, number) for number in partitions}
    if not found:
        raise UsageError(f"assign = {text} names no partition")
    return frozenset(found)


def _read_limit(options: Mapping[str, str], side: str, default: int) -> Limit:
    """Read one end. As in the Kafka source, one timestamp wins over timestamps by partition, and these over offsets."""
    if f"{side}timestamp" in options:
        return Limit(timestamp_ms=_timestamp(f"{side}Timestamp", options[f"{side}timestamp"]))
    name = f"{side}offsetsbytimestamp"
    if name in options:
        return Limit(timestamps_ms=_by_partition(f"{side}OffsetsByTimestamp", options[name], lowest=0))
    text = options.get(f"{side}offsets", "").strip()
    if not text:
        return Limit(offset=default)
    if text.lower() in ("earliest", "latest"):
        return Limit(offset=EARLIEST if text.lower() == "earliest" else LATEST)
    return Limit(offsets=_by_partition(f"{side}Offsets", text, lowest=EARLIEST))


def _refuse_ending(options: Mapping[str, str]) -> None:
    given = [
        name for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp") if name.lower() in options
    ]
    if given:
        raise UsageError(f"{given[0]} is not possible for a stream, because a stream has no end")


def _require_batch_limits(start: Limit, end: Limit) -> None:
    """Refuse limits that make no sense in a batch query, alone or together."""
    for side, limit, wrong, word in (
        ("startingOffsets", start, LATEST, "latest"),
        ("endingOffsets", end, EARLIEST, "earliest"),
    ):
        if limit.offset == wrong or wrong in (limit.offsets or {}).values():
            raise UsageError(f"{side} cannot be {word} in a batch query")
    for first, last, unit in (
        (start.offsets, end.offsets, "offset"),
        (start.timestamps_ms, end.timestamps_ms, "timestamp"),
    ):
        if first is None or last is None:
            continue
        if first.keys() != last.keys():
            raise UsageError(f"starting and ending {unit}s name different partitions; name the same in both")
        for place in first:
            if first[place] > last[place] >= 0:
                raise UsageError(
                    f"starting {unit} {first[place]} of {place[0]}-{place[1]} is greater than the ending {unit} "
                    f"{last[place]}"
                )


def _by_partition(name: str, text: str, *, lowest: int) -> Mapping[TopicPartition, int]:
    by_offset = 'earliest, latest or {"topicA":{"0":23,"1":-2},"topicB":{"0":-1}}'
    expected = by_offset if lowest < 0 else '{"topicA":{"0":1700000000000}}'
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _read_json(name, text, expected).items():
        if not isinstance(numbers, dict):
            raise _not_as_expected(name, text, expected)
        for partition, number in numbers.items():
            is_number = isinstance(number, int) and not isinstance(number, bool) and lowest <= number < 1 << 63
            if not is_number or not partition.isdecimal() or not _is_partition(int(partition)):
                raise _not_as_expected(name, text, expected)
            found[topic, int(partition)] = number
    return found


def _read_json(name: str, text: str, expected: str) -> dict[str, object]:
    try:
        read = json.loads(text)
    except ValueError as wrong:
        raise _not_as_expected(name, text, expected) from wrong
    if not isinstance(read, dict):
        raise _not_as_expected(name, text, expected)
    return read


def _not_as_expected(name: str, text: str, expected: str) -> UsageError:
    return UsageError(f"{name} = {text}: expected e.g. {expected}")


def _is_partition(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31


def _timestamp(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or int(text) >= 1 << 63:
        raise UsageError(f"{name} = {text}: expected epoch milliseconds, such as 1700000000000")
    return int(text)


def _read_isolation_level(options: Mapping[str, str]) -> IsolationLevel:
    text = options.get(_ISOLATION, IsolationLevel.READ_UNCOMMITTED.value).strip().lower()
    if text not in list(IsolationLevel):
        raise UsageError(f"{_ISOLATION} = {text}: expected {' or '.join(IsolationLevel)}")
    return IsolationLevel(text)


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or not int(text):
        raise UsageError(f"{name} = {text}: expected a whole number from 1")
    return int(text)


def _choice(options: Mapping[str, str], name: str, allowed: tuple[str, str]) -> str:
    """Return the value, in lower case; the first of `allowed` is the default."""
    text = options.get(name.lower(), allowed[0]).strip().lower()
    if text not in allowed:
        raise UsageError(f"{name} = {text}: expected {' or '.join(allowed)}")
    return text


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name} = {text}: expected true or false")
    return text == "true"
