"""Find timestamps in the stairs of a partition's segments, part by part of the table."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coldlog.lookups.index_rows import NOTHING, IndexRows, Int64s
from coldlog.tables.delta.files.table_reader import PartRange

_END = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSegments:
    """The segments that answer for one partition, in the order of their offsets.

    `running_max_ms` never decreases. The first segment where it is at least T has the answer to T, or the answer that a
    broker gives (`broker_compatible`). `exact_running_max_ms` is always computed from the records.
    """

    topic: str
    partition: int
    segment_ids: tuple[str, ...]
    build_numbers: Int64s
    from_offsets: Int64s
    end_offsets: Int64s
    to_offsets: Int64s
    running_max_ms: Int64s
    exact_running_max_ms: Int64s
    is_at_batch_depth: npt.NDArray[np.bool_]
    is_at_sidecar_depth: npt.NDArray[np.bool_]

    def is_read(self, number: int) -> bool:
        """Whether a lookup reads the archive of the segment with this number."""
        return bool(self.is_at_batch_depth[number] or self.is_at_sidecar_depth[number])

    def place(self, number: int) -> SegmentPlace:
        """Return one of the segments."""
        return SegmentPlace(
            topic=self.topic,
            partition=self.partition,
            segment_id=self.segment_ids[number],
            build_number=int(self.build_numbers[number]),
            from_offset=int(self.from_offsets[number]),
            end_offset=int(self.end_offsets[number]),
            to_offset=int(self.to_offsets[number]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """A segment that answers for a partition, and the key of its index rows."""

    topic: str
    partition: int
    segment_id: str
    build_number: int
    from_offset: int
    end_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class FoundStairs:
    """Answers to several timestamps. Where there is no answer, `offsets` and `leader_epochs` are -1, `timestamps_ms`
    NOTHING."""

    offsets: Int64s
    timestamps_ms: Int64s
    leader_epochs: Int64s


@dataclass(frozen=True, slots=True)
class StairRun:
    """Stairs of one segment that are one after another in a part of the table; offsets ascend."""

    offsets: Int64s
    timestamps_ms: Int64s
    leader_epochs: Int64s


class SoughtStairs:
    """Timestamps to find in the stairs of segments, and the answers found so far."""

    def __init__(self, segments: ServedSegments, runs: Sequence[tuple[int, int, int]], timestamps_ms: Int64s) -> None:
        self.found = _no_stairs(len(timestamps_ms))
        self._runs = runs
        self._timestamps_ms = timestamps_ms
        self._numbers = [number for number, _, _ in runs]
        self._keys = [
            (segments.topic, segments.partition, segments.segment_ids[at], build)
            for at, build in zip(self._numbers, segments.build_numbers[self._numbers].tolist(), strict=True)
        ]
        self._from_offsets = segments.from_offsets[self._numbers].tolist()
        # Another upload may replace the end of this one: its end may then be after the ends of later segments.
        self._end_offsets = np.maximum.accumulate(segments.end_offsets[self._numbers]).tolist()
        self._least_ms = timestamps_ms[[first for _, first, _ in runs]].tolist()
        self._is_begun = [False] * len(runs)
        self.further = {
            "offset": (self._from_offsets[0], self._end_offsets[-1]),
            "timestamp_ms": (min(self._least_ms), _END),
        }

    def key(self, at: int) -> tuple[str, int, str, int]:
        """Return the key of the rows of a run."""
        return self._keys[at]

    def may_be_in(self, part: PartRange) -> bool:
        """True if the part may have an answer for a run, or a lower one than found so far."""
        least_offset, latest_ms = part.least("offset"), part.greatest("timestamp_ms")
        return any(
            self._least_ms[at] <= latest_ms and self._may_be_better(at, least_offset)
            for at in self._runs_within(least_offset, part.greatest("offset"))
        )

    def look_into(self, known: PartRange, part: IndexRows) -> None:
        """Take the answers of the part that are lower than those found so far."""
        within = self._runs_within(known.least("offset"), known.greatest("offset"))
        for at in within:
            for start, stop in part.runs_of(self._keys[at], is_only=len(within) == 1):
                self._take_lower(at, part, start, stop)

    def _runs_within(self, least_offset: int, greatest_offset: int) -> range:
        """Return the runs whose segments may have stairs between these offsets."""
        return range(bisect_left(self._end_offsets, least_offset), bisect_right(self._from_offsets, greatest_offset))

    def _may_be_better(self, at: int, least_offset: int) -> bool:
        if not self._is_begun[at]:
            return True
        _, first, last = self._runs[at]
        offsets = self.found.offsets[first:last]
        return bool(offsets.min() < 0 or least_offset <= offsets.max())

    def _take_lower(self, at: int, part: IndexRows, start: int, stop: int) -> None:
        _, first, last = self._runs[at]
        places = np.searchsorted(part.keys[start:stop], self._timestamps_ms[first:last])
        if places[-1] == stop - start:
            # Timestamps ascend: the last ones are later than all stairs of this part.
            last = first + int(np.searchsorted(places, stop - start))
            places = places[: last - first]
        places += start
        where, offsets, found = np.arange(first, last), part.offsets[places], self.found
        if self._is_begun[at]:
            is_better = (found.offsets[where] < 0) | (offsets < found.offsets[where])
            where, places, offsets = where[is_better], places[is_better], offsets[is_better]
        found.offsets[where] = offsets
        found.timestamps_ms[where] = part.keys[places]
        found.leader_epochs[where] = part.columns["leader_epoch"][places]
        self._is_begun[at] = True


def _no_stairs(count: int) -> FoundStairs:
    return FoundStairs(*(np.full(count, nothing, dtype=np.int64) for nothing in (-1, NOTHING, -1)))
