"""Compute the index of one segment from its log.

A `SegmentIndexer` gets the windows of a log in order; each window begins at the end of the bytes that were consumed so
far. For each window it returns a chunk: one row per batch, with the largest timestamp before the batch and up to it,
and the stairs. At the end it returns the summary. It keeps only running values, so a segment of any size needs the
memory of one window.

At depth `batch` only the records of markers are read. The running maximum is then over the largest timestamps in the
headers, for batches that have records and end at or after `counted_from_offset`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.control_record import ControlRecordType, read_control_record_type
from coldlog.formats.kafka.index_entries import INT32_MAX
from coldlog.formats.kafka.record_batch import CONTROL, BatchHeaders, read_batch_headers
from coldlog.formats.kafka.sections import RecordSections, SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.header_times import HeaderTimes, find_cut_batch, run_over_headers
from coldlog.index.segment_summary import SegmentSummary, SegmentTotals
from coldlog.index.stairs import BatchTimes, RunningMaximum, Stairs, find_stairs
from coldlog.model.states import IndexDepth

Int64Column = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", np.int64, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChunk:
    """The index of one window. `smallest_ms` is over the records of a batch. This column, `previous_running_ms` and
    `running_ms` are valid only where their flags are set. `abort_offsets` are the offsets of abort markers."""

    headers: BatchHeaders
    previous_running_ms: Int64Column
    has_previous_running: BoolColumn
    running_ms: Int64Column
    has_running: BoolColumn
    smallest_ms: Int64Column
    has_smallest: BoolColumn
    stairs: Stairs
    abort_offsets: Int64Column
    consumed_bytes: int
    needed_bytes: int


@dataclass(slots=True, kw_only=True)
class SegmentIndexer:
    """Index one segment; `start_offset` is the lowest offset that it may hold."""

    start_offset: int
    depth: IndexDepth
    counted_from_offset: int
    sections: SectionReader
    _running: RunningMaximum = field(init=False)
    _next_offset: int = field(init=False)
    _totals: SegmentTotals = field(init=False)

    def __post_init__(self) -> None:
        self._running = RunningMaximum(counted_from_offset=self.counted_from_offset)
        self._next_offset = self.start_offset
        self._totals = SegmentTotals()

    @property
    def limits(self) -> DecodeLimits:
        return self.sections.limits

    def add_window(self, window: memoryview, position: int, *, is_last: bool) -> IndexChunk:
        """The index of the whole batches in `window`, which begins at `position` of the log.

        The next window must begin at `position + consumed_bytes` and, unless the log ends, have at least
        `needed_bytes`.
        """
        read = read_batch_headers(
            window,
            position=position,
            next_offset=self._next_offset,
            is_last=is_last,
            max_batch_bytes=self.limits.max_batch_bytes,
        )
        headers = read.headers
        if self.depth is IndexDepth.RECORD:
            before = (self._running.timestamp_ms, self._running.is_known)
            stairs, times = self._read_records(window, headers, position)
            running = HeaderTimes(
                previous_running_ms=_shifted(times.running_ms, before[0]),
                has_previous_running=_shifted(times.has_running, before[1]),
                running_ms=times.running_ms,
                has_running=times.has_running,
            )
            smallest, has_smallest = times.smallest_ms, headers.record_count > 0
        else:
            stairs, times = _no_stairs(), None
            # With LogAppendTime all records have the timestamp of the header.
            smallest, has_smallest = headers.max_timestamp_ms, headers.is_log_append_time & (headers.record_count > 0)
            running = self._run_over_headers(window, headers, position)
        abort_offsets = self._count_markers(window, headers, position)
        if len(headers):
            _require_reach(headers, self.start_offset)
            self._next_offset = int(headers.last_offset[-1]) + 1
            self._totals.add(headers, times, stairs)
        return IndexChunk(
            headers=headers,
            previous_running_ms=running.previous_running_ms,
            has_previous_running=running.has_previous_running,
            running_ms=running.running_ms,
            has_running=running.has_running,
            smallest_ms=smallest,
            has_smallest=has_smallest,
            stairs=stairs,
            abort_offsets=abort_offsets,
            consumed_bytes=read.consumed_bytes,
            needed_bytes=read.needed_bytes,
        )

    def finish(self) -> SegmentSummary:
        """The summary; an empty log is an `ArchiveError`."""
        if not self._totals.batch_count:
            raise ArchiveError(Reason.LOG_EMPTY, "log has no batch", position=0, expected="a batch", found="0 bytes")
        running = self._running if self._running.is_known else None
        return self._totals.summary(running.timestamp_ms if running else None, self.depth)

    def _read_records(self, window: memoryview, headers: BatchHeaders, position: int) -> tuple[Stairs, BatchTimes]:
        pieces = [
            find_stairs(sections, headers, self._running)
            for sections in self.sections.iter_sections(window, headers, position)
        ]
        return _join_stairs([stairs for stairs, _ in pieces]), _join_times([times for _, times in pieces])

    def _run_over_headers(self, window: memoryview, headers: BatchHeaders, position: int) -> HeaderTimes:
        cut = find_cut_batch(headers, self.counted_from_offset)
        if cut is None:
            return run_over_headers(headers, self._running)
        # The header also counts records before the offset, so the records of this batch must be read.
        of_cut = RunningMaximum(counted_from_offset=self.counted_from_offset)
        one = headers.slice(cut, cut + 1)
        for sections in self.sections.iter_sections(window, one, position):
            find_stairs(sections, one, of_cut)
        return run_over_headers(headers, self._running, cut, of_cut)

    def _count_markers(self, window: memoryview, headers: BatchHeaders, position: int) -> Int64Column:
        """Count the markers; return the offsets of the abort markers."""
        aborts: list[int] = []
        if headers.has_any(CONTROL):
            control = np.flatnonzero(headers.is_control & (headers.record_count > 0))
            for sections, index in _control_sections(self.sections, window, headers, control, position):
                kind = read_control_record_type(
                    sections.buffer, int(sections.starts[0]), int(sections.ends[0]), int(headers.position[index])
                )
                if kind is ControlRecordType.ABORT:
                    aborts.append(int(headers.base_offset[index]))
                self._totals.commit_marker_count += kind is ControlRecordType.COMMIT
        self._totals.abort_marker_count += len(aborts)
        return np.array(aborts, dtype=np.int64)


def _require_reach(headers: BatchHeaders, start_offset: int) -> None:
    """Refuse offsets that a segment cannot hold: Kafka rolls a log before its relative offsets exceed an int32."""
    furthest = start_offset + INT32_MAX
    if int(headers.last_offset[-1]) > furthest:
        # Last offsets ascend.
        at = int(np.searchsorted(headers.last_offset, furthest, side="right"))
        raise ArchiveError(
            Reason.HEADER_INVALID,
            "batch is too far from the segment's start offset",
            position=int(headers.position[at]),
            expected=f"at most offset {furthest}",
            found=f"offset {int(headers.last_offset[at])}",
        )


def _control_sections(
    reader: SectionReader, window: memoryview, headers: BatchHeaders, control: Int64Column, position: int
) -> Iterator[tuple[RecordSections, int]]:
    """The records of each control batch, one batch at a time."""
    for index in control.tolist():
        one = headers.slice(index, index + 1)
        for sections in reader.iter_sections(window, one, position):
            yield sections, index


def _shifted(column: npt.NDArray[_Scalar], before: int | bool) -> npt.NDArray[_Scalar]:
    """The column shifted by one entry; the first entry is `before`."""
    return np.concatenate((np.array([before], dtype=column.dtype), column[:-1])) if len(column) else column


def _no_stairs() -> Stairs:
    nothing = np.empty(0, dtype=np.int64)
    return Stairs(
        timestamp_ms=nothing,
        previous_timestamp_ms=nothing,
        has_previous=np.empty(0, dtype=np.bool_),
        offset=nothing,
        batch=nothing,
    )


def _join_stairs(pieces: list[Stairs]) -> Stairs:
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return _no_stairs()
    return Stairs(
        timestamp_ms=np.concatenate([piece.timestamp_ms for piece in pieces]),
        previous_timestamp_ms=np.concatenate([piece.previous_timestamp_ms for piece in pieces]),
        has_previous=np.concatenate([piece.has_previous for piece in pieces]),
        offset=np.concatenate([piece.offset for piece in pieces]),
        batch=np.concatenate([piece.batch for piece in pieces]),
    )


def _join_times(pieces: list[BatchTimes]) -> BatchTimes:
    nothing = np.empty(0, dtype=np.int64)
    return BatchTimes(
        largest_ms=np.concatenate([piece.largest_ms for piece in pieces] or [nothing]),
        largest_offset=np.concatenate([piece.largest_offset for piece in pieces] or [nothing]),
        smallest_ms=np.concatenate([piece.smallest_ms for piece in pieces] or [nothing]),
        running_ms=np.concatenate([piece.running_ms for piece in pieces] or [nothing]),
        has_running=np.concatenate([piece.has_running for piece in pieces] or [np.empty(0, dtype=np.bool_)]),
    )
