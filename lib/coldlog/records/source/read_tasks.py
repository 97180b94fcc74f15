"""read_tasks: which task reads which bytes of which segments?

A segment that is read whole, and fits into a task, is one extent; of any other the offset index tells the batches that
overlap the offsets and may hold a timestamp that is asked for, and only those are read. Extents of a partition are laid
out in the order of offsets and cut into tasks of about equal bytes; a task is of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql.datasource import InputPartition

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.records.source.archived_log import (
    NOTHING_ABORTED,
    AbortedTransactions,
    ArchivedLogs,
    BatchPlaces,
    Flags,
    Int64s,
    ServedSegment,
)
from coldlog.records.source.offset_ranges import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPiece:
    """Bytes of one log: whole batches from `positions[i]` on, `lengths[i]` bytes; and which of their records count."""

    segment: ListedSegment
    positions: tuple[int, ...]
    lengths: tuple[int, ...]
    bounds: RecordBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Pieces of one partition in the order of offsets."""

    topic: str
    partition: int
    pieces: tuple[SegmentPiece, ...]
    aborted: AbortedTransactions

    @property
    def size_bytes(self) -> int:
        """Bytes of logs that it reads."""
        return sum(sum(piece.lengths) for piece in self.pieces)


class TaskPartition(InputPartition):
    """A task as Spark carries it; `value` is a `ReadTask`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """A task has about `task_bytes`, fewer if else there were less than `min_tasks`."""

    task_bytes: int
    min_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extents:
    """What is to be read of one segment, an entry an extent; `bounds` are those of its records."""

    segment: ListedSegment
    bounds: RecordBounds
    positions: Int64s
    lengths: Int64s


def plan_tasks(
    logs: ArchivedLogs,
    ranges: Sequence[OffsetRange],
    bounds: RecordBounds,
    sizes: TaskSizes,
    *,
    is_committed: bool,
    may_grow: bool,
) -> list[ReadTask]:
    """The tasks; `bounds` are those of the query, `may_grow` says that logs may have grown since they were indexed."""
    most_bytes = min(sizes.task_bytes, max(1, _estimated_bytes(ranges) // sizes.min_tasks))
    planned: list[tuple[OffsetRange, list[_Extents], AbortedTransactions]] = []
    for each in ranges:
        extents = [
            found
            for served in each.segments
            if (found := _extents(logs, served, each, bounds, most_bytes, may_grow=may_grow)) is not None
        ]
        if extents:
            aborted = (
                logs.aborted(each.topic, each.partition, each.topic_id, logs.served_segments(*_place(each)))
                if is_committed
                else NOTHING_ABORTED
            )
            planned.append((each, extents, aborted))
    total = sum(int(found.lengths.sum()) for _, extents, _ in planned for found in extents)
    task_bytes = max(1, min(sizes.task_bytes, -(-total // sizes.min_tasks)))
    return [
        ReadTask(
            topic=each.topic,
            partition=each.partition,
            pieces=pieces,
            aborted=aborted.between(pieces[0].bounds.from_offset, pieces[-1].bounds.to_offset),
        )
        for each, extents, aborted in planned
        for pieces in _cut(extents, task_bytes)
    ]


def _place(each: OffsetRange) -> tuple[str, int, str]:
    return each.topic, each.partition, each.topic_id


def _estimated_bytes(ranges: Sequence[OffsetRange]) -> int:
    """Of the segments that are met, as if all of each were read."""
    return sum(served.size_bytes or 0 for each in ranges for served in each.segments)


def _extents(
    logs: ArchivedLogs,
    served: ServedSegment,
    each: OffsetRange,
    bounds: RecordBounds,
    most_bytes: int,
    *,
    may_grow: bool,
) -> _Extents | None:
    first, last = max(each.start, served.from_offset), min(each.until - 1, served.to_offset)
    if first > last or not _may_hold_time(served, bounds):
        return None
    own = replace(bounds, from_offset=first, to_offset=last)
    is_whole = first <= served.segment.start_offset and last >= served.end_offset and _is_within_time(served, bounds)
    if is_whole and served.size_bytes is not None and served.size_bytes <= most_bytes and not may_grow:
        positions, lengths = np.zeros(1, dtype=np.int64), np.array([served.size_bytes], dtype=np.int64)
        return _Extents(segment=served.segment, bounds=own, positions=positions, lengths=lengths)
    batches = logs.batches(served, first, last)
    batches = batches.where(_may_hold(batches, bounds))
    if not len(batches):
        return None
    return _Extents(segment=served.segment, bounds=own, positions=batches.position, lengths=batches.size_bytes)


def _may_hold_time(served: ServedSegment, bounds: RecordBounds) -> bool:
    if served.max_timestamp_ms is not None and served.max_timestamp_ms < bounds.from_timestamp_ms:
        return False
    return served.min_timestamp_ms is None or served.min_timestamp_ms <= bounds.to_timestamp_ms


def _is_within_time(served: ServedSegment, bounds: RecordBounds) -> bool:
    """Every record has a timestamp that is asked for, so that no batch can be left out for it."""
    has_any = bounds.from_timestamp_ms > RecordBounds().from_timestamp_ms
    has_any |= bounds.to_timestamp_ms < RecordBounds().to_timestamp_ms
    if not has_any:
        return True
    least, greatest = served.min_timestamp_ms, served.max_timestamp_ms
    if least is None or greatest is None:
        return False
    return least >= bounds.from_timestamp_ms and greatest <= bounds.to_timestamp_ms


def _may_hold(batches: BatchPlaces, bounds: RecordBounds) -> Flags:
    is_late = batches.max_timestamp_ms >= bounds.from_timestamp_ms
    return is_late & (batches.min_timestamp_ms <= bounds.to_timestamp_ms)


def _cut(extents: Sequence[_Extents], task_bytes: int) -> Iterator[tuple[SegmentPiece, ...]]:
    """The pieces of each task."""
    pieces: list[SegmentPiece] = []
    used = 0
    for each in extents:
        before = used + np.cumsum(each.lengths) - each.lengths
        numbers = before // task_bytes
        for number in np.unique(numbers).tolist():
            if number and pieces:
                yield tuple(pieces)
                pieces = []
            own = numbers == number
            pieces.append(_piece(each, each.positions[own], each.lengths[own]))
        used = int((before[-1] + each.lengths[-1]) - numbers[-1] * task_bytes)
    if pieces:
        yield tuple(pieces)


def _piece(extents: _Extents, positions: Int64s, lengths: Int64s) -> SegmentPiece:
    """Neighbours become one."""
    is_first = np.concatenate(([True], positions[1:] != positions[:-1] + lengths[:-1]))
    return SegmentPiece(
        segment=extents.segment,
        positions=tuple(positions[is_first].tolist()),
        lengths=tuple(np.add.reduceat(lengths, np.flatnonzero(is_first)).tolist()),
        bounds=extents.bounds,
    )
