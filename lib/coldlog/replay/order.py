"""order: in which order are the records of several partitions replayed?

As Kafka Streams chooses: always the partition whose head record has the least timestamp, then its next record becomes
its head. So a partition's records stay in the order of their offsets, whatever their timestamps do. Of equal timestamps
the lesser topic is first (by code points), then the lesser partition.

`iter_merged` does just that, with a heap. It is the same as sorting all records by the running maximum of the
timestamp over their partition, then topic, partition and offset (`replay_order`), which can be computed in parallel: a
record behind a later one in its partition becomes the head the moment that one is taken, and is then the least of all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
TopicPartition = tuple[str, int]
Head = tuple[int, int]
"""Timestamp and offset of a record."""


def iter_merged(logs: Mapping[TopicPartition, Iterable[Head]]) -> Iterator[tuple[TopicPartition, Head]]:
    """The records of all logs, each of which is in order of offsets; one record of each is held at a time."""
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


def running_maximum(timestamps_ms: Int64s, so_far_ms: int | None = None) -> Int64s:
    """Of a partition's timestamps in order of offsets, the greatest up to and with each; `so_far_ms`: of those before
    them."""
    if not len(timestamps_ms):
        return timestamps_ms
    reached: Int64s = np.maximum.accumulate(timestamps_ms)
    return reached if so_far_ms is None else np.maximum(reached, so_far_ms)


def replay_order(
    topics: npt.NDArray[np.str_], partitions: Int64s, offsets: Int64s, reached_ms: Int64s
) -> npt.NDArray[np.intp]:
    """The places of records, an entry a record, in the order in which they are replayed; `reached_ms` is the running
    maximum of their partition."""
    return np.lexsort((offsets, partitions, topics, reached_ms))
