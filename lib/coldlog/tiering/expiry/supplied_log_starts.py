"""Read log start offsets from a CSV file, or ask brokers for them.

The file has a header and the columns `topic,partition,log_start_offset`. Brokers are asked for the earliest offset of
partitions whose topic ids are known. A topic that they do not have, or have under another id, is left out and reported.
No Spark is used.

Refused (`UsageError`): a file that cannot be read, a missing column, a partition named twice, a value
that is not a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from coldlog.brokers.kafka_client import Cluster, OffsetSpec, describe_topics, list_offsets
from coldlog.errors import UsageError
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tiering.tier_assignments import read_csv

_INTEGER = re.compile(r"-?[0-9]{1,19}")

LogStarts = Mapping[tuple[str, int], int]
"""Log start offset by topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLogStarts:
    """The log starts that the brokers answered, and the topics of the archive that they do not have."""

    log_starts: LogStarts
    left_out_topics: tuple[str, ...]


def read_log_start_offsets(path: str) -> LogStarts:
    """Read the log starts from a CSV file."""
    found = read_csv(path, LOG_START_OFFSETS.column_names, "log_start_offsets.uri")
    rows = [_log_start_offset(path, number, row) for number, row in found]
    log_starts = dict(rows)
    repeated = len(rows) - len(log_starts)
    if repeated:
        raise UsageError(f"{path}: {repeated} topic-partitions are named more than once; name each of them once")
    return log_starts


def ask_brokers(cluster: Cluster, known: Mapping[tuple[str, int], str]) -> LiveLogStarts:
    """Ask a cluster for the earliest offsets of partitions. `known` has their topic ids."""
    live = describe_topics(cluster, {topic for topic, _ in known}) if known else {}
    same = [
        (topic, partition)
        for (topic, partition), topic_id in known.items()
        if topic in live and live[topic].topic_id == topic_id and partition in live[topic].partitions
    ]
    left_out = {topic for topic, _ in known} - {topic for topic, _ in same}
    return LiveLogStarts(
        log_starts=list_offsets(cluster, same, OffsetSpec.EARLIEST), left_out_topics=tuple(sorted(left_out))
    )


def _log_start_offset(path: str, number: int, row: dict[str, str]) -> tuple[tuple[str, int], int]:
    numbers = (row["partition"], row["log_start_offset"])
    if not all(_INTEGER.fullmatch(text) for text in numbers):
        raise UsageError(f"{path}, line {number}: partition and log_start_offset must be integers: {row}")
    partition, offset = int(numbers[0]), int(numbers[1])
    if not row["topic"] or not 0 <= partition < 2**31 or not 0 <= offset < 2**63:
        raise UsageError(f"{path}, line {number}: expected a topic, and a partition and offset of 0 or more: {row}")
    return (row["topic"], partition), offset
