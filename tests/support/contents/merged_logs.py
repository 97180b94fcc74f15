"""Merge logs as Kafka Streams does, one record after the other, with a heap.

`coldlog.replay.order` says which record is chosen.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

from coldlog.replay.order import Head, TopicPartition


def iter_merged(logs: Mapping[TopicPartition, Iterable[Head]]) -> Iterator[tuple[TopicPartition, Head]]:
    """Merge the records of all logs, each in order of offsets. Only one record of each log is held at a time."""
    heads: list[tuple[int, TopicPartition, int, Iterator[Head]]] = []
    for place, log in logs.items():
        _push(heads, place, iter(log))
    while heads:
        timestamp_ms, place, offset, rest = heapq.heappop(heads)
        yield place, (timestamp_ms, offset)
        _push(heads, place, rest)


def _push(
    heads: list[tuple[int, TopicPartition, int, Iterator[Head]]], place: TopicPartition, log: Iterator[Head]
) -> None:
    head = next(log, None)
    if head is not None:
        heapq.heappush(heads, (head[0], place, head[1], log))
