"""Read the rows of a task.

The batches of each piece are read in windows and checked as the build checks them. Control batches and those of aborted
transactions are skipped. The rest is decompressed and returned as Arrow batches of some thousand rows. A piece of a log
directory is read in the same way.

Refused (`ArchiveError`): damaged bytes; the error names the partition, the object and the position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.layouts.log_windows import LogWindow
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.kafka.record_columns import RecordBounds, RecordColumns, read_record_columns
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.changed_logs import ExpectedEnds
from coldlog.lookups.damage.damaged_segments import DamagedSegment, damage_of
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.records.aborted_transactions import NOTHING_ABORTED, AbortedTransactions, aborted_in
from coldlog.records.segment_windows import iter_segment_windows, of_segment
from coldlog.records.source.arrow_rows import RowBuilder, wanted_fields
from coldlog.records.source.local_logs import iter_local_batches
from coldlog.records.source.read_tasks import ReadTask, SegmentPiece

_WINDOW_BYTES = 4 << 20
_MIN_ROWS = 8192
_MIN_BYTES = 16 << 20
"""Limits the memory when records are large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReader:
    """Reads tasks. `count_bytes` is called with the bytes of logs that each read added; `nulls_timestamps` is of
    `RowBuilder`. `report` is called with damage before it is raised."""

    layout: ArchiveLayout
    limits: DecodeLimits
    columns: tuple[str, ...]
    nulls_timestamps: bool
    count_bytes: Callable[[int], None]
    local: LogDirectoryTier | None = None
    report: Callable[[DamagedSegment], None] | None = None

    def iter_rows(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows by offset, in Arrow batches of at least `_MIN_ROWS` or `_MIN_BYTES`, except the last."""
        waiting: list[pa.RecordBatch] = []
        row_count = size_bytes = 0
        for batch in self._iter_batches(task):
            waiting.append(batch)
            row_count += batch.num_rows
            # Arrow counts the bytes of each column anew, so each batch is asked once.
            size_bytes += batch.nbytes
            if row_count >= _MIN_ROWS or size_bytes >= _MIN_BYTES:
                yield _concatenated(waiting)
                waiting, row_count, size_bytes = [], 0, 0
        if waiting:
            yield _concatenated(waiting)

    def _iter_batches(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        rows = RowBuilder(
            topic=task.topic,
            partition=task.partition,
            columns=self.columns,
            nulls_timestamps=self.nulls_timestamps,
        )
        sections = SectionReader(limits=self.limits)
        for piece in task.pieces:
            for records in self._iter_archived(piece, task.aborted, sections):
                try:
                    yield rows.build(records)
                except ArchiveError as unfit:  # for Spark; the bytes are sound
                    raise of_segment(unfit, piece.segment) from unfit
        for window, bounds, aborted in self._iter_local(task):
            for records in self._iter_records(window, bounds, aborted, sections):
                yield rows.build(records)

    def _iter_archived(
        self, piece: SegmentPiece, aborted: AbortedTransactions, sections: SectionReader
    ) -> Iterator[RecordColumns]:
        """Iterate over the records of a piece. Damage is reported, and raised with its segment."""
        try:
            for window in self._iter_windows(piece):
                yield from self._iter_records(window, piece.bounds, aborted, sections)
        except ArchiveError as wrong:
            damage = damage_of(piece.segment, piece.build_number, wrong)
            if damage is not None and self.report is not None:
                self.report(damage)
            raise of_segment(wrong, piece.segment) from wrong

    def _iter_records(
        self, window: LogWindow, bounds: RecordBounds, aborted: AbortedTransactions, sections: SectionReader
    ) -> Iterator[RecordColumns]:
        headers = window.headers
        is_wanted = _is_wanted(headers, bounds) & ~_is_aborted(headers, aborted)
        if not is_wanted.any():
            return
        taken = headers if is_wanted.all() else headers.where(is_wanted)
        for section in sections.iter_sections(window.content, taken, window.position):
            records = read_record_columns(section, taken, bounds, wanted_fields(self.columns))
            if len(records):
                yield records

    def _iter_local(self, task: ReadTask) -> Iterator[tuple[LogWindow, RecordBounds, AbortedTransactions]]:
        if task.local is None or self.local is None:
            return
        for found in iter_local_batches(self.local, task.topic, task.partition, task.local):
            self.count_bytes(len(found.content))
            aborted = aborted_in(found.txn_indexes) if task.local.is_committed else NOTHING_ABORTED
            window = LogWindow(content=found.content, position=int(found.headers.position[0]), headers=found.headers)
            yield window, task.local.bounds, aborted

    def _iter_windows(self, piece: SegmentPiece) -> Iterator[LogWindow]:
        if piece.end_offset is None:
            yield from self._iter_parts(piece)
            return
        expected = ExpectedEnds(offsets=piece.ends, end_offset=piece.end_offset)
        for window in self._iter_parts(piece):
            expected.check(window.headers)
            yield window
        expected.finish(piece.positions[-1] + piece.lengths[-1])

    def _iter_parts(self, piece: SegmentPiece) -> Iterator[LogWindow]:
        for start, length in zip(piece.positions, piece.lengths, strict=True):
            yield from iter_segment_windows(
                self.layout,
                piece.segment,
                start,
                start + length,
                limits=self.limits,
                window_bytes=_WINDOW_BYTES,
                count_bytes=self.count_bytes,
            )


def _is_wanted(headers: BatchHeaders, bounds: RecordBounds) -> npt.NDArray[np.bool_]:
    """Flag the batches that may have a record within the bounds."""
    is_near = (headers.last_offset >= bounds.from_offset) & (headers.base_offset <= bounds.to_offset)
    is_late = headers.max_timestamp_ms >= bounds.from_timestamp_ms
    is_early = ~headers.is_log_append_time | (headers.max_timestamp_ms <= bounds.to_timestamp_ms)
    return is_near & is_late & is_early & ~headers.is_control & (headers.record_count > 0)


def _is_aborted(headers: BatchHeaders, aborted: AbortedTransactions) -> npt.NDArray[np.bool_]:
    if not len(aborted):
        return np.zeros(len(headers), dtype=np.bool_)
    return headers.is_transactional & aborted.hold(headers.producer_id, headers.base_offset)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
