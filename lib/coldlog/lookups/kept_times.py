"""Keep in memory what was read to answer offsets by time, and answer from it without a read.

A lookup reads the rows of its partition and a run of stairs of one segment. Kept as sorted arrays, they answer every
time that lies in the same run with two binary searches. Everything else returns None and is left to `ListOffsets`:
other timestamps, a request of another leader epoch, a partition in which offsets are not served, segments of which the
archive is read. So an answer is that of `ListOffsets` without a local tier over the same tables.

One thread or several `learn`, any thread may `find`; `find` waits for nobody.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from coldlog.lookups.index_rows import NOTHING, Int64s
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.served_index import ServedIndex
from coldlog.lookups.sought_stairs import ServedSegments, StairRun
from coldlog.model.list_offsets import LEADER_EPOCH_SINCE_VERSION, UNKNOWN_EPOCH

MOST_BYTES = 64 << 20
_NO_OFFSET = -1
Found = tuple[int, int, int]
"""Offset, timestamp and leader epoch; -1 each if there is none."""
NOT_FOUND: Found = (_NO_OFFSET, -1, UNKNOWN_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Stairs of a segment one after another. They answer times after `after_ms` up to the last of `timestamps_ms`."""

    after_ms: int
    timestamps_ms: array[int]
    offsets: array[int]
    leader_epochs: array[int]

    @property
    def size_bytes(self) -> int:
        return 3 * 8 * len(self.offsets)


@dataclass(slots=True, kw_only=True)
class _Partition:
    facts: PartitionFacts
    segments: ServedSegments
    running_max_ms: array[int]
    runs: dict[int, tuple[_Run, ...]] = field(default_factory=dict)
    """By the number of the segment."""


class KeptTimes:
    """Of one version of the tables."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._turn = threading.Lock()
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._kept_bytes = 0

    def find(
        self, topic: str, partition: int, timestamp_ms: int, *, is_committed: bool, leader_epoch: int, version: int
    ) -> Found | None:
        """Return the answer to a time; None if it is not in memory. Nothing is read."""
        known = self._partitions.get((topic, partition))
        if known is None or timestamp_ms < 0 or leader_epoch not in (UNKNOWN_EPOCH, known.facts.leader_epoch):
            return None
        number = bisect_left(known.running_max_ms, timestamp_ms)
        if number == len(known.running_max_ms):
            return NOT_FOUND
        run = _find_run(known.runs.get(number, ()), timestamp_ms)
        if run is None:
            return None
        at, stable_offset = bisect_left(run.timestamps_ms, timestamp_ms), known.facts.stable_offset
        if is_committed and stable_offset is not None and run.offsets[at] >= stable_offset:
            return NOT_FOUND
        epoch = run.leader_epochs[at] if version >= LEADER_EPOCH_SINCE_VERSION else UNKNOWN_EPOCH
        return run.offsets[at], run.timestamps_ms[at], epoch

    def learn(self, index: ServedIndex, topic: str, partition: int, timestamp_ms: int) -> None:
        """Keep what the index has read for this time. Raise as the index does."""
        if timestamp_ms < 0:
            return
        place = topic, partition
        known = self._partitions.get(place)
        if known is None:
            found = index.partition(topic, partition)
            if found is None or found[0].unserved_ranges:
                return
            facts, segments = found
            known = _Partition(facts=facts, segments=segments, running_max_ms=_packed(segments.running_max_ms))
            with self._turn:
                self._make_room(8 * len(known.running_max_ms))
                self._partitions[place] = known
        number = bisect_left(known.running_max_ms, timestamp_ms)
        if number == len(known.running_max_ms) or known.segments.is_read(number):
            return
        if _find_run(known.runs.get(number, ()), timestamp_ms) is not None:
            return
        stairs = index.find_run(known.segments, number, timestamp_ms)
        run = None if stairs is None else _keep(stairs, int(known.segments.from_offsets[number]))
        if run is None:
            return
        with self._turn:
            if _find_run(known.runs.get(number, ()), timestamp_ms) is None:
                self._make_room(run.size_bytes)
                known.runs[number] = (*known.runs.get(number, ()), run)
                self._partitions[place] = known

    def _make_room(self, size_bytes: int) -> None:
        self._kept_bytes += size_bytes
        if self._kept_bytes > self._most_bytes:
            # Replace, do not clear: other threads may still read the old dictionary.
            for known in self._partitions.values():
                known.runs = {}
            self._partitions, self._kept_bytes = {}, size_bytes


def _find_run(runs: Iterable[_Run], timestamp_ms: int) -> _Run | None:
    return next((run for run in runs if run.after_ms < timestamp_ms <= run.timestamps_ms[-1]), None)


def _keep(stairs: StairRun, from_offset: int) -> _Run | None:
    """Return a run to keep; None if it does not ascend, as other lookups would find another stair then."""
    timestamps_ms = stairs.timestamps_ms
    if (timestamps_ms[1:] <= timestamps_ms[:-1]).any():
        return None
    # The first record of a segment is its first stair. Before any other run there may be one with a lower offset.
    is_first = stairs.offsets[0] <= from_offset
    return _Run(
        after_ms=NOTHING if is_first else int(timestamps_ms[0]),
        timestamps_ms=_packed(timestamps_ms),
        offsets=_packed(stairs.offsets),
        leader_epochs=_packed(stairs.leader_epochs),
    )


def _packed(column: Int64s) -> array[int]:
    """Return a column that single searches read faster than numpy's."""
    return array("q", np.ascontiguousarray(column, dtype=np.int64).tobytes())
