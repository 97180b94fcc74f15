"""Cut a replay into buckets that can be sorted separately, each before the next.

Every record has a place in the order of a replay: task, running maximum of its partition's timestamps, topic,
partition, offset (`coldlog.replay.order`). Bounds are such places. A record's bucket is the number of bounds at or
below its place. The bounds are chosen from samples, so that buckets have about equally many records. Bounds include
offsets, so records with the same running maximum, such as all after a timestamp of the far future, need not share a
bucket.
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
    """A record that stands for `count` records: itself, and those after the sample before it."""

    place: Place
    count: int


def choose_bounds(samples: Sequence[Sample], bucket_count: int) -> list[Place]:
    """Choose ascending bounds of at most so many buckets."""
    ordered = sorted(samples, key=lambda sample: sample.place)
    counts = np.cumsum([sample.count for sample in ordered])
    if not len(counts):
        return []
    wanted = [int(counts[-1]) * number // bucket_count for number in range(1, bucket_count)]
    chosen = np.searchsorted(counts, wanted, side="left").tolist()
    return sorted({ordered[at].place for at in chosen})


def bucket_numbers(
    bounds: Sequence[Place], task: int, topic: str, partition: int, reached_ms: Int64s, offsets: Int64s
) -> npt.NDArray[np.int32]:
    """Return the bucket of each record; the records are of one partition, in order of offsets."""
    begins = np.zeros(len(offsets) + 1, dtype=np.int32)
    for bound in bounds:
        begins[_first_at_or_after(bound, task, topic, partition, reached_ms, offsets)] += 1
    numbers: npt.NDArray[np.int32] = np.cumsum(begins[:-1], dtype=np.int32)
    return numbers


def _first_at_or_after(bound: Place, task: int, topic: str, partition: int, reached_ms: Int64s, offsets: Int64s) -> int:
    """Return the number of the first such record. Running maxima and offsets ascend, so the places ascend too."""
    if task != bound.task:
        return 0 if task > bound.task else len(offsets)
    first = int(np.searchsorted(reached_ms, bound.reached_ms, side="left"))
    if (topic, partition) > (bound.topic, bound.partition):
        return first
    stop = int(np.searchsorted(reached_ms, bound.reached_ms, side="right"))
    if (topic, partition) < (bound.topic, bound.partition):
        return stop
    return first + int(np.searchsorted(offsets[first:stop], bound.offset, side="left"))
