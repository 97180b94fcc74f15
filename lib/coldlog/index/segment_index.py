"""Compute the index of one segment from its log.

A log is read in windows, in two steps. `SegmentIndexer.decode` reads the batches of one window, and needs nothing of
the others, so threads can decode several windows at once. `add` then takes them in order; each window begins where the
one before was consumed. It returns a chunk: one row per batch, with the largest timestamp before the batch and up to
it, and the stairs. At the end it returns the summary. It keeps only running values, so a segment of any size needs the
memory of one window. `add_window` does both steps.

At depth `batch` only the records of markers are read. The running maximum is then over the largest timestamps in the
headers, for batches that have records and end at or after `counted_from_offset`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.control_record import ControlRecordType, read_control_record_type
from coldlog.formats.kafka.index_entries import INT32_MAX
from coldlog.formats.kafka.record_batch import CONTROL, BatchHeaders, read_batch_headers
from coldlog.formats.kafka.sections import RecordSections, SectionReader
from coldlog.index.header_times import find_cut_batch, go_on, run_over_headers
from coldlog.index.segment_summary import SegmentSummary, SegmentTotals
from coldlog.index.stairs import BatchTimes, RunningMaximum, Stairs, find_stairs
from coldlog.model.states import IndexDepth

Int64Column = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedWindow:
    """What the batches of one window show by themselves.

    `stairs` and `times` are those of a segment that begins with the window; `times` is None at depth `batch`. There
    `cut` is the batch in which counting begins, if it is one of these, and `cut_maximum` is over its counted records.
    """

    headers: BatchHeaders
    stairs: Stairs
    times: BatchTimes | None
    cut: int | None
    cut_maximum: RunningMaximum
    abort_offsets: Int64Column
    commit_marker_count: int
    consumed_bytes: int
    needed_bytes: int


@dataclass(slots=True, kw_only=True)
class SegmentIndexer:
    """Index one segment; `start_offset` is the lowest offset that it may hold."""

    start_offset: int
    depth: IndexDepth
    counted_from_offset: int
    sections: SectionReader
    _next_offset: int = field(init=False)
    _running: RunningMaximum = field(init=False)
    _totals: SegmentTotals = field(init=False)

    def __post_init__(self) -> None:
        self._running = RunningMaximum(counted_from_offset=self.counted_from_offset)
        self._next_offset = self.start_offset
        self._totals = SegmentTotals()

    def add_window(self, window: memoryview, position: int, *, is_last: bool) -> IndexChunk:
        """The index of the whole batches in `window`, which begins at `position` of the log.

        The next window must begin at `position + consumed_bytes` and, unless the log ends, have at least
        `needed_bytes`.
        """
        decoded = self.decode(window, position, next_offset=self._next_offset, is_last=is_last, sections=self.sections)
        return self.add(decoded)

    def decode(
        self, window: memoryview, position: int, *, next_offset: int, is_last: bool, sections: SectionReader
    ) -> DecodedWindow:
        """Read the whole batches in `window`, which begins at `position` of the log; changes nothing.

        `next_offset` is the least offset that they may have; `is_last`: the window must end with a whole batch. Bytes
        that are wrong are an `ArchiveError` with the position of the first bad batch.
        """
        read = read_batch_headers(
            window,
            position=position,
            next_offset=next_offset,
            is_last=is_last,
            max_batch_bytes=sections.limits.max_batch_bytes,
            # Kafka rolls a log before its relative offsets exceed an int32.
            furthest_offset=self.start_offset + INT32_MAX,
        )
        headers, stairs, times, cut = read.headers, _no_stairs(), None, None
        running = RunningMaximum(counted_from_offset=self.counted_from_offset)
        if self.depth is IndexDepth.RECORD:
            pieces = [find_stairs(each, headers, running) for each in sections.iter_sections(window, headers, position)]
            stairs, times = _join_stairs([stairs for stairs, _ in pieces]), _join_times([times for _, times in pieces])
        elif (cut := find_cut_batch(headers, self.counted_from_offset)) is not None:
            # The header also counts records before the offset, so the records of this batch must be read.
            one = headers.slice(cut, cut + 1)
            for each in sections.iter_sections(window, one, position):
                find_stairs(each, one, running)
        abort_offsets, commit_marker_count = _read_markers(sections, window, headers, position)
        return DecodedWindow(
            headers=headers,
            stairs=stairs,
            times=times,
            cut=cut,
            cut_maximum=running,
            abort_offsets=abort_offsets,
            commit_marker_count=commit_marker_count,
            consumed_bytes=read.consumed_bytes,
            needed_bytes=read.needed_bytes,
        )

    def add(self, decoded: DecodedWindow) -> IndexChunk:
        """The index of the next window, of which `may_follow` is true."""
        headers, times = decoded.headers, decoded.times
        if times is None:
            stairs = decoded.stairs
            # With LogAppendTime all records have the timestamp of the header.
            smallest, has_smallest = headers.max_timestamp_ms, headers.is_log_append_time & (headers.record_count > 0)
            running = run_over_headers(headers, self._running, decoded.cut, decoded.cut_maximum)
        else:
            stairs, running = go_on(decoded.stairs, times, self._running)
            smallest, has_smallest = times.smallest_ms, headers.record_count > 0
        if len(headers):
            self._next_offset = int(headers.last_offset[-1]) + 1
            self._totals.add(headers, times, stairs)
            self._totals.abort_marker_count += len(decoded.abort_offsets)
            self._totals.commit_marker_count += decoded.commit_marker_count
        return IndexChunk(
            headers=headers,
            previous_running_ms=running.previous_running_ms,
            has_previous_running=running.has_previous_running,
            running_ms=running.running_ms,
            has_running=running.has_running,
            smallest_ms=smallest,
            has_smallest=has_smallest,
            stairs=stairs,
            abort_offsets=decoded.abort_offsets,
            consumed_bytes=decoded.consumed_bytes,
            needed_bytes=decoded.needed_bytes,
        )

    def may_follow(self, decoded: DecodedWindow) -> bool:
        """Whether the first batch begins after the last one so far."""
        return not len(decoded.headers) or int(decoded.headers.base_offset[0]) >= self._next_offset

    def finish(self) -> SegmentSummary:
        """The summary; an empty log is an `ArchiveError`."""
        if not self._totals.batch_count:
            raise ArchiveError(Reason.LOG_EMPTY, "log has no batch", position=0, expected="a batch", found="0 bytes")
        running = self._running if self._running.is_known else None
        return self._totals.summary(running.timestamp_ms if running else None, self.depth)


def _read_markers(
    sections: SectionReader, window: memoryview, headers: BatchHeaders, position: int
) -> tuple[Int64Column, int]:
    """The offsets of the abort markers, and the number of commit markers."""
    aborts: list[int] = []
    commit_count = 0
    if headers.has_any(CONTROL):
        control = np.flatnonzero(headers.is_control & (headers.record_count > 0))
        for section, index in _control_sections(sections, window, headers, control, position):
            kind = read_control_record_type(
                section.buffer, int(section.starts[0]), int(section.ends[0]), int(headers.position[index])
            )
            if kind is ControlRecordType.ABORT:
                aborts.append(int(headers.base_offset[index]))
            commit_count += kind is ControlRecordType.COMMIT
    return np.array(aborts, dtype=np.int64), commit_count


def _control_sections(
    reader: SectionReader, window: memoryview, headers: BatchHeaders, control: Int64Column, position: int
) -> Iterator[tuple[RecordSections, int]]:
    """The records of each control batch, one batch at a time."""
    for index in control.tolist():
        one = headers.slice(index, index + 1)
        for sections in reader.iter_sections(window, one, position):
            yield sections, index


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
