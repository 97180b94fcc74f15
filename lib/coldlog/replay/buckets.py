"""buckets: how is a replay cut into parts that can be sorted apart, each before the next?

Every record has a place in the order of a replay: task, running maximum of its partition's timestamps, topic,
partition, offset (`coldlog.replay.order`). Bounds are such places; a record's bucket is the number of bounds at or
below its own. They are chosen from samples, so that buckets hold about equally many records, and name offsets too:
records of one running maximum, such as all that follow a timestamp of the far future, need not share a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A record's place in the order of a replay."""

    task: int
    reached_ms: int
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A record that stands for `count` records, those behind the sample before it up to itself."""

    place: Place
    count: int


def choose_bounds(samples: Sequence[Sample], bucket_count: int) -> list[Place]:
    """Ascending bounds of at most so many buckets."""
    ordered = sorted(samples, key=lambda each: each.place)
    counts = np.cumsum([each.count for each in ordered])
    if not len(counts):
        return []
    wanted = [int(counts[-1]) * number // bucket_count for number in range(1, bucket_count)]
    chosen = np.searchsorted(counts, wanted, side="left").tolist()
    return sorted({ordered[at].place for at in chosen})


def bucket_numbers(
    bounds: Sequence[Place], task: int, topic: str, partition: int, reached_ms: Int64s, offsets: Int64s
) -> npt.NDArray[np.int32]:
    """Of records of one partition in order of offsets, an entry a record."""
    begins = np.zeros(len(offsets) + 1, dtype=np.int32)
    for bound in bounds:
        begins[_first_at_or_behind(bound, task, topic, partition, reached_ms, offsets)] += 1
    numbers: npt.NDArray[np.int32] = np.cumsum(begins[:-1], dtype=np.int32)
    return numbers


def _first_at_or_behind(
    bound: Place, task: int, topic: str, partition: int, reached_ms: Int64s, offsets: Int64s
) -> int:
    """Running maxima and offsets go up, so do the places of records."""
    if task != bound.task:
        return 0 if task > bound.task else len(offsets)
    first = int(np.searchsorted(reached_ms, bound.reached_ms, side="left"))
    if (topic, partition) > (bound.topic, bound.partition):
        return first
    behind = int(np.searchsorted(reached_ms, bound.reached_ms, side="right"))
    if (topic, partition) < (bound.topic, bound.partition):
        return behind
    return first + int(np.searchsorted(offsets[first:behind], bound.offset, side="left"))
