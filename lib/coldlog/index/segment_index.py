"""segment_index: what must a lookup know of one segment?

A `SegmentIndexer` is fed the windows of a log in order, each beginning where the one before was used up, and gives for
each a chunk: a row a batch with the largest timestamp before it and up to it, and the stairs. At its end it gives the
summary. Nothing is kept but running values, so a segment of any size takes the memory of one window.

At depth `batch` the records are not looked at (but markers); the running maximum is then over the headers' largest
timestamps of batches that have records and end at or behind `counted_from_offset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.control_record import ControlRecordType, read_control_record_type
from coldlog.formats.index_entries import INT32_MAX
from coldlog.formats.limits import DecodeLimits
from coldlog.formats.record_batch import CODEC_NAMES, CONTROL, TRANSACTIONAL, BatchHeaders, read_batch_headers
from coldlog.formats.sections import RecordSections, SectionReader
from coldlog.index.open_transactions import OpenTransactions
from coldlog.index.stairs import BatchTimes, RunningMaximum, Stairs, find_stairs
from coldlog.model.states import IndexDepth

Int64Column = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", np.int64, np.bool_)
_LOWEST = np.iinfo(np.int64).min
_NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChunk:
    """The index of one window. `smallest_ms` is over the records of a batch. It, `previous_running_ms` and `running_ms`
    mean something only where the flag beside them says so; `abort_offsets` are those of abort markers."""

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
class SegmentSummary:
    """One segment in figures. `*_timestamp_offset` is None where records were not decoded or there are none.

    `counted_*` are over records at or behind the offset that was counted from; `largest_batch_timestamp_ms` is over
    headers; `open_transactions` are first offsets by producer id, as far as this log shows them, `ended_producers`
    those that have a marker in it. `last_position` is that of the last batch, `last_producer_id` who wrote it: -1 if
    nobody has said, or if it is a marker.
    """

    batch_count: int
    control_batch_count: int
    record_count: int
    abort_marker_count: int
    commit_marker_count: int
    base_offset: int
    last_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    max_timestamp_ms: int | None
    max_timestamp_offset: int | None
    min_timestamp_ms: int | None
    counted_max_timestamp_ms: int | None
    counted_max_timestamp_offset: int | None
    largest_batch_timestamp_ms: int
    stair_count: int
    codecs: tuple[str, ...]
    open_transactions: Mapping[int, int]
    ended_producers: frozenset[int]
    last_position: int
    last_producer_id: int


@dataclass(slots=True, kw_only=True)
class SegmentIndexer:
    """Indexes one segment; `start_offset` is the lowest offset it may hold."""

    start_offset: int
    depth: IndexDepth
    counted_from_offset: int
    sections: SectionReader
    _running: RunningMaximum = field(init=False)
    _next_offset: int = field(init=False)
    _totals: _Totals = field(init=False)

    def __post_init__(self) -> None:
        self._running = RunningMaximum(counted_from_offset=self.counted_from_offset)
        self._next_offset = self.start_offset
        self._totals = _Totals()

    @property
    def limits(self) -> DecodeLimits:
        return self.sections.limits

    def add_window(self, window: memoryview, position: int, *, is_last: bool) -> IndexChunk:
        """The index of the whole batches in `window`, which begins at `position` of the log.

        The next window has to begin at `position + consumed_bytes` and, unless the log ends, hold `needed_bytes` at
        least.
        """
        read = read_batch_headers(
            window,
            position=position,
            next_offset=self._next_offset,
            is_last=is_last,
            max_batch_bytes=self.limits.max_batch_bytes,
        )
        headers = read.headers
        before = (self._running.timestamp_ms, self._running.is_known)
        if self.depth is IndexDepth.RECORD:
            stairs, times = self._read_records(window, headers, position)
            running, has_running = times.running_ms, times.has_running
            smallest, has_smallest = times.smallest_ms, headers.record_count > 0
        else:
            stairs = _no_stairs()
            times = None
            # All records have the one timestamp that the header says.
            smallest, has_smallest = headers.max_timestamp_ms, headers.is_log_append_time & (headers.record_count > 0)
            running, has_running = self._run_over_headers(window, headers, position)
        abort_offsets = self._count_markers(window, headers, position)
        if len(headers):
            _require_reach(headers, self.start_offset)
            self._next_offset = int(headers.last_offset[-1]) + 1
            self._totals.add(headers, times, stairs)
        return IndexChunk(
            headers=headers,
            previous_running_ms=_shifted(running, before[0]),
            has_previous_running=_shifted(has_running, before[1]),
            running_ms=running,
            has_running=has_running,
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
            raise ArchiveError(Reason.LOG_EMPTY, "log holds no batch", position=0, expected="a batch", found="0 bytes")
        running = self._running if self._running.is_known else None
        return self._totals.summary(running.timestamp_ms if running else None, self.depth)

    def _read_records(self, window: memoryview, headers: BatchHeaders, position: int) -> tuple[Stairs, BatchTimes]:
        pieces = [
            find_stairs(sections, headers, self._running)
            for sections in self.sections.iter_sections(window, headers, position)
        ]
        return _join_stairs([stairs for stairs, _ in pieces]), _join_times([times for _, times in pieces])

    def _run_over_headers(
        self, window: memoryview, headers: BatchHeaders, position: int
    ) -> tuple[Int64Column, BoolColumn]:
        counts = (headers.record_count > 0) & (headers.last_offset >= self.counted_from_offset)
        values = np.where(counts, headers.max_timestamp_ms, _LOWEST)
        for cut in np.flatnonzero(counts & (headers.base_offset < self.counted_from_offset)).tolist():
            # Its header counts records before the offset too: the one batch whose records have to be looked at.
            own = RunningMaximum(counted_from_offset=self.counted_from_offset)
            one = headers.slice(cut, cut + 1)
            for sections in self.sections.iter_sections(window, one, position):
                find_stairs(sections, one, own)
            counts[cut], values[cut] = own.is_known, own.timestamp_ms if own.is_known else _LOWEST
        if self._running.is_known:
            values = np.concatenate(([self._running.timestamp_ms], values))
            counts = np.concatenate(([True], counts))
        running, has_running = np.maximum.accumulate(values), np.logical_or.accumulate(counts)
        if len(running) and has_running[-1]:
            self._running.timestamp_ms, self._running.is_known = int(running[-1]), True
        return running[-len(headers) or len(running) :], has_running[-len(headers) or len(running) :]

    def _count_markers(self, window: memoryview, headers: BatchHeaders, position: int) -> Int64Column:
        """Returns the offsets of the abort markers."""
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


@dataclass(slots=True, kw_only=True)
class _Totals:
    """What adds up over the windows."""

    batch_count: int = 0
    control_batch_count: int = 0
    record_count: int = 0
    abort_marker_count: int = 0
    commit_marker_count: int = 0
    base_offset: int = -1
    last_offset: int = -1
    last_position: int = -1
    last_producer_id: int = -1
    stair_count: int = 0
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    codecs: set[int] = field(default_factory=set)
    open_transactions: OpenTransactions = field(default_factory=OpenTransactions)
    largest_batch_ms: int = int(_LOWEST)
    largest: tuple[int, int] | None = None
    smallest_ms: int | None = None
    last_stair_offset: int | None = None

    def add(self, headers: BatchHeaders, times: BatchTimes | None, stairs: Stairs) -> None:
        if not self.batch_count:
            self.base_offset = int(headers.base_offset[0])
        self.batch_count += len(headers)
        if headers.has_any(CONTROL | TRANSACTIONAL):
            self.control_batch_count += int(headers.is_control.sum())
            self.open_transactions.add(headers)
        self.record_count += int(headers.record_count.sum(dtype=np.int64))
        self.last_offset = int(headers.last_offset[-1])
        self.last_position = int(headers.position[-1])
        self.last_producer_id = -1 if headers.is_control[-1] else int(headers.producer_id[-1])
        self.codecs.update(headers.codec.tolist())
        self.largest_batch_ms = max(self.largest_batch_ms, int(headers.max_timestamp_ms.max()))
        self._add_epochs(headers)
        self.stair_count += len(stairs.offset)
        if len(stairs.offset):
            self.last_stair_offset = int(stairs.offset[-1])
        self._add_times(headers, times)

    def _add_epochs(self, headers: BatchHeaders) -> None:
        before = self.leader_epochs[-1][0] if self.leader_epochs else None
        if before is not None and not (headers.leader_epoch != before).any():
            return
        changes = np.flatnonzero(np.diff(headers.leader_epoch)) + 1
        falls = np.flatnonzero(np.diff(headers.leader_epoch) < 0) + 1
        if int(headers.leader_epoch[0]) < (_NO_LEADER_EPOCH if before is None else before):
            falls = np.array([0])
        if len(falls):
            raise ArchiveError(
                Reason.HEADER_INVALID,
                "leader epoch of a batch is lower than the one before",
                position=int(headers.position[falls[0]]),
                expected=f"epochs of {_NO_LEADER_EPOCH} or more that do not fall",
                found=f"epoch {int(headers.leader_epoch[falls[0]])}",
            )
        for at in ([] if before == int(headers.leader_epoch[0]) else [0]) + changes.tolist():
            self.leader_epochs.append((int(headers.leader_epoch[at]), int(headers.base_offset[at])))

    def _add_times(self, headers: BatchHeaders, times: BatchTimes | None) -> None:
        has_records = headers.record_count > 0
        if not has_records.any():
            return
        if times is None:
            largest = int(headers.max_timestamp_ms[has_records].max())
            if self.largest is None or largest > self.largest[0]:
                self.largest = (largest, -1)
            return
        values = np.where(has_records, times.largest_ms, _LOWEST)
        first = int(np.argmax(values))
        if self.largest is None or int(values[first]) > self.largest[0]:
            self.largest = (int(values[first]), int(times.largest_offset[first]))
        smallest = int(times.smallest_ms[has_records].min())
        self.smallest_ms = smallest if self.smallest_ms is None else min(self.smallest_ms, smallest)

    def summary(self, counted_max_ms: int | None, depth: IndexDepth) -> SegmentSummary:
        is_decoded = depth is IndexDepth.RECORD
        return SegmentSummary(
            batch_count=self.batch_count,
            control_batch_count=self.control_batch_count,
            record_count=self.record_count,
            abort_marker_count=self.abort_marker_count,
            commit_marker_count=self.commit_marker_count,
            base_offset=self.base_offset,
            last_offset=self.last_offset,
            leader_epochs=tuple(self.leader_epochs),
            max_timestamp_ms=self.largest[0] if self.largest else None,
            max_timestamp_offset=self.largest[1] if self.largest and is_decoded else None,
            min_timestamp_ms=self.smallest_ms,
            counted_max_timestamp_ms=counted_max_ms,
            counted_max_timestamp_offset=self.last_stair_offset,
            largest_batch_timestamp_ms=self.largest_batch_ms,
            stair_count=self.stair_count,
            codecs=tuple(CODEC_NAMES[codec] for codec in sorted(self.codecs)),
            open_transactions=dict(self.open_transactions.first_offsets),
            ended_producers=frozenset(self.open_transactions.ended),
            last_position=self.last_position,
            last_producer_id=self.last_producer_id,
        )


def _require_reach(headers: BatchHeaders, start_offset: int) -> None:
    """Kafka rolls a log before an offset is further from its start than its indexes can say (an int32)."""
    furthest = start_offset + INT32_MAX
    if int(headers.last_offset[-1]) > furthest:
        # They ascend.
        at = int(np.searchsorted(headers.last_offset, furthest, side="right"))
        raise ArchiveError(
            Reason.HEADER_INVALID,
            "batch lies further behind the segment's start than a segment reaches",
            position=int(headers.position[at]),
            expected=f"offset {furthest} at most",
            found=f"offset {int(headers.last_offset[at])}",
        )


def _control_sections(
    reader: SectionReader, window: memoryview, headers: BatchHeaders, control: Int64Column, position: int
) -> Iterator[tuple[RecordSections, int]]:
    """The records of each control batch, one at a time."""
    for index in control.tolist():
        one = headers.slice(index, index + 1)
        for sections in reader.iter_sections(window, one, position):
            yield sections, index


def _shifted(column: npt.NDArray[_Scalar], before: int | bool) -> npt.NDArray[_Scalar]:
    """Each entry's predecessor; the first one's is `before`."""
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
