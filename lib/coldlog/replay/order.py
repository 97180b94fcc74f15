"""Define the order in which the records of several partitions are replayed.

Kafka Streams chooses in the same way: always the partition whose head record has the smallest timestamp; then its next
record becomes its head. So the records of a partition stay in the order of their offsets, whatever their timestamps
are. For equal timestamps the smaller topic is first (by code points), then the smaller partition.

`iter_merged` does exactly this, with a heap. The result is the same as sorting all records by the running maximum of
the timestamps of their partition, then topic, partition and offset (`replay_order`), which can be computed in parallel:
a record after a later one of its partition becomes the head when that one is taken, and is then the smallest of all.
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


def running_maximum(timestamps_ms: Int64s, so_far_ms: int | None = None) -> Int64s:
    """Return the running maximum of a partition's timestamps, in order of offsets. `so_far_ms` is the maximum before
    them."""
    if not len(timestamps_ms):
        return timestamps_ms
    reached: Int64s = np.maximum.accumulate(timestamps_ms)
    return reached if so_far_ms is None else np.maximum(reached, so_far_ms)


def replay_order(
    topics: npt.NDArray[np.str_], partitions: Int64s, offsets: Int64s, reached_ms: Int64s
) -> npt.NDArray[np.intp]:
    """Return the indices of records in the order in which they are replayed. `reached_ms` is the running maximum of
    their partition."""
    return np.lexsort((offsets, partitions, topics, reached_ms))
