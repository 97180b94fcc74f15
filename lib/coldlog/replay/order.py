"""Define the order in which the records of several partitions are replayed.

Kafka Streams chooses in the same way: always the partition whose head record has the smallest timestamp; then its next
record becomes its head. So the records of a partition stay in the order of their offsets, whatever their timestamps
are. For equal timestamps the smaller topic is first (by code points), then the smaller partition.

The result is the same as sorting all records by the running maximum of the timestamps of their partition, then topic,
partition and offset, which can be computed in parallel: a record after a later one of its partition becomes the head
when that one is taken, and is then the smallest of all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
TopicPartition = tuple[str, int]
Head = tuple[int, int]
"""Timestamp and offset of a record."""


def running_maximum(timestamps_ms: Int64s, so_far_ms: int | None = None) -> Int64s:
    """Return the running maximum of a partition's timestamps, in order of offsets. `so_far_ms` is the maximum before
    them."""
    if not len(timestamps_ms):
        return timestamps_ms
    reached: Int64s = np.maximum.accumulate(timestamps_ms)
    return reached if so_far_ms is None else np.maximum(reached, so_far_ms)
