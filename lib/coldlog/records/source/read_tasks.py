"""Plan which task reads which bytes of which segments.

A segment that is read whole and fits into a task is one extent. For any other segment, the offset index names the
batches that overlap the offsets and may have a timestamp that is asked for; only these are read. The extents of a
partition are sorted by offset and cut into tasks of about equal bytes. A task is of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql.datasource import InputPartition

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.records.aborted_transactions import NOTHING_ABORTED, AbortedTransactions
from coldlog.records.source.archived_log import (
    ArchivedLogs,
    BatchPlaces,
    Flags,
    Int64s,
    ServedSegment,
)
from coldlog.records.source.local_logs import LocalLogs, LocalPiece
from coldlog.records.source.offset_ranges import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPiece:
    """Whole batches of one log, `lengths[i]` bytes from `positions[i]` on, and which of their records count.

    At sidecar depth, batches must end with these `ends`, and none after `end_offset` (`ExpectedEnds`)."""

    segment: ListedSegment
    build_number: int
    positions: tuple[int, ...]
    lengths: tuple[int, ...]
    bounds: RecordBounds
    ends: tuple[int, ...] = ()
    end_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Pieces of one partition in the order of offsets, or a piece of what is not archived yet."""

    topic: str
    partition: int
    pieces: tuple[SegmentPiece, ...]
    aborted: AbortedTransactions
    local: LocalPiece | None = None

    @property
    def topic_id(self) -> str | None:
        """Return the id of the topic that is read; None if a log directory does not have it."""
        if self.local is not None:
            return self.local.topic_id
        return self.pieces[0].segment.topic_id

    @property
    def size_bytes(self) -> int:
        """Return the bytes of logs that the task reads."""
        archived = sum(sum(piece.lengths) for piece in self.pieces)
        return archived if self.local is None else archived + self.local.size_bytes


class TaskPartition(InputPartition):
    """A task in Spark's form; `value` is a `ReadTask`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """A task has about `task_bytes`, or less if there would be fewer than `min_tasks` tasks."""

    task_bytes: int
    min_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extents:
    """The extents to read of one segment; `bounds` are those of its records. `first_ends[i]`: at sidecar depth, a batch
    of the extent ends with this offset; -1: unknown."""

    segment: ListedSegment
    build_number: int
    bounds: RecordBounds
    positions: Int64s
    lengths: Int64s
    first_ends: Int64s
    end_offset: int | None = None


def plan_tasks(
    logs: ArchivedLogs,
    ranges: Sequence[OffsetRange],
    bounds: RecordBounds,
    sizes: TaskSizes,
    *,
    is_committed: bool,
    may_grow: bool,
) -> list[ReadTask]:
    """Plan the tasks. `bounds` are those of the query. `may_grow`: logs may have grown since they were indexed."""
    most_bytes = min(sizes.task_bytes, max(1, _estimated_bytes(ranges) // sizes.min_tasks))
    planned: list[tuple[OffsetRange, list[_Extents], AbortedTransactions]] = []
    for offsets in ranges:
        extents = [
            found
            for served in offsets.segments
            if (found := _extents(logs, served, offsets, bounds, most_bytes, may_grow=may_grow)) is not None
        ]
        if extents:
            aborted = (
                logs.aborted(*_key(offsets), logs.served_segments(*_key(offsets))) if is_committed else NOTHING_ABORTED
            )
            planned.append((offsets, extents, aborted.joined(offsets.aborted_later)))
    total = sum(int(found.lengths.sum()) for _, extents, _ in planned for found in extents)
    task_bytes = max(1, min(sizes.task_bytes, -(-total // sizes.min_tasks)))
    return [
        ReadTask(
            topic=offsets.topic,
            partition=offsets.partition,
            pieces=pieces,
            aborted=aborted.between(pieces[0].bounds.from_offset, pieces[-1].bounds.to_offset),
        )
        for offsets, extents, aborted in planned
        for pieces in _cut(extents, task_bytes)
    ]


def plan_local_tasks(
    logs: LocalLogs, ranges: Sequence[OffsetRange], bounds: RecordBounds, sizes: TaskSizes, *, is_committed: bool
) -> list[ReadTask]:
    """Plan the tasks that read the log directory."""
    return [
        ReadTask(topic=offsets.topic, partition=offsets.partition, pieces=(), aborted=NOTHING_ABORTED, local=piece)
        for offsets in ranges
        if offsets.local is not None
        for piece in logs.plan(
            offsets.topic,
            offsets.partition,
            replace(bounds, from_offset=offsets.local[0], to_offset=offsets.local[1] - 1),
            sizes.task_bytes,
            is_committed=is_committed,
        )
    ]


def _key(offsets: OffsetRange) -> tuple[str, int, str]:
    return offsets.topic, offsets.partition, offsets.topic_id


def _estimated_bytes(ranges: Sequence[OffsetRange]) -> int:
    """Sum up the sizes of the segments, as if each were read whole."""
    return sum(served.size_bytes or 0 for offsets in ranges for served in offsets.segments)


def _extents(
    logs: ArchivedLogs,
    served: ServedSegment,
    offsets: OffsetRange,
    bounds: RecordBounds,
    most_bytes: int,
    *,
    may_grow: bool,
) -> _Extents | None:
    first, last = max(offsets.start, served.from_offset), min(offsets.until - 1, served.to_offset)
    if first > last or not _may_hold_time(served, bounds):
        return None
    piece_bounds = replace(bounds, from_offset=first, to_offset=last)
    is_whole = first <= served.segment.start_offset and last >= served.end_offset and _is_within_time(served, bounds)
    end_offset = None if served.has_batches else served.end_offset
    if is_whole and served.size_bytes is not None and served.size_bytes <= most_bytes and not may_grow:
        positions, lengths = np.zeros(1, dtype=np.int64), np.array([served.size_bytes], dtype=np.int64)
        return _Extents(
            segment=served.segment,
            build_number=served.build_number,
            bounds=piece_bounds,
            positions=positions,
            lengths=lengths,
            first_ends=np.full(1, -1),
            end_offset=end_offset,
        )
    batches = logs.batches(served, first, last)
    batches = batches.where(_may_hold(batches, bounds))
    if not len(batches):
        return None
    lengths = batches.size_bytes.copy()
    # Intervals overlap: the batches that two of them have are read once.
    lengths[:-1] = np.minimum(lengths[:-1], np.diff(batches.position))
    return _Extents(
        segment=served.segment,
        build_number=served.build_number,
        bounds=piece_bounds,
        positions=batches.position,
        lengths=lengths,
        first_ends=np.where(batches.position > 0, batches.base_offset - 1, -1),
        end_offset=end_offset,
    )


def _may_hold_time(served: ServedSegment, bounds: RecordBounds) -> bool:
    if served.max_timestamp_ms is not None and served.max_timestamp_ms < bounds.from_timestamp_ms:
        return False
    return served.min_timestamp_ms is None or served.min_timestamp_ms <= bounds.to_timestamp_ms


def _is_within_time(served: ServedSegment, bounds: RecordBounds) -> bool:
    """True if every record's timestamp is asked for, so that no batch can be skipped because of its timestamps."""
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
    """Yield the pieces of each task."""
    pieces: list[SegmentPiece] = []
    used = 0
    for extent in extents:
        before = used + np.cumsum(extent.lengths) - extent.lengths
        numbers = before // task_bytes
        for number in np.unique(numbers).tolist():
            if number and pieces:
                yield tuple(pieces)
                pieces = []
            is_in_task = numbers == number
            pieces.append(_piece(extent, is_in_task))
        used = int((before[-1] + extent.lengths[-1]) - numbers[-1] * task_bytes)
    if pieces:
        yield tuple(pieces)


def _piece(extents: _Extents, is_in_piece: Flags) -> SegmentPiece:
    """Make a piece; batches that follow each other without a gap become one range of bytes."""
    positions, lengths = extents.positions[is_in_piece], extents.lengths[is_in_piece]
    is_first = np.concatenate(([True], positions[1:] != positions[:-1] + lengths[:-1]))
    ends = extents.first_ends[is_in_piece] if extents.end_offset is not None else positions[:0]
    return SegmentPiece(
        segment=extents.segment,
        build_number=extents.build_number,
        positions=tuple(positions[is_first].tolist()),
        lengths=tuple(np.add.reduceat(lengths, np.flatnonzero(is_first)).tolist()),
        bounds=extents.bounds,
        ends=tuple(ends[ends >= 0].tolist()),
        end_offset=extents.end_offset,
    )
