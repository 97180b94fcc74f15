"""Read the records of a slice of a log, with one ranged read.

The batches are checked as the build checks them, and must be those that the index names. Control batches are skipped,
and for readers of committed records also the batches of aborted transactions. If a batch is damaged, the batches before
it are returned; the next fetch begins at the damaged batch and gets the error. So a reader gets as far as Kafka's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.stores.without_waiting import check_may_wait
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.batch_cutting import cut_record_batch
from coldlog.formats.kafka.indexed_batches import are_indexed_batches
from coldlog.formats.kafka.record_batch import BatchHeaders, read_batch_headers
from coldlog.formats.kafka.record_columns import (
    ByteColumn,
    HeaderColumn,
    RecordBounds,
    RecordColumns,
    WantedFields,
    read_record_columns,
)
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.changed_logs import replaced_batch, require_leader_epoch, shorter_log
from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.model.fetch import (
    FetchAnswer,
    FetchedRecord,
    FetchedRecords,
    FetchErrorCode,
    FetchFailure,
    TimestampType,
)
from coldlog.records.aborted_transactions import AbortedTransactions
from coldlog.records.fetch.interval_slices import PassedSlice, find_batches
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.fetch.stored_slices import CheckedRanges, StoredRange, expected_epochs, find_stored
from coldlog.records.segment_windows import of_segment

_EVERYTHING = WantedFields(key=True, value=True, headers=True)
_Headers = tuple[tuple[str, bytes | None], ...]
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Whole batches as the log has them, one after another, and the slice that they are. Only the last batch may have
    been written anew, without the records after the slice's bounds. With `stored` they are these bytes of a file, and
    there are no `pieces`."""

    pieces: tuple[memoryview, ...]
    log_slice: LogSlice
    stored: StoredRange | None = None

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the batches have."""
        return self.log_slice.size_bytes if self.stored is not None else sum(len(piece) for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedSlice:
    """A slice whose first batch is damaged, and what is wrong."""

    log_slice: LogSlice
    wrong: ArchiveError


def read_slice(
    layout: ArchiveLayout, limits: DecodeLimits, log_slice: LogSlice
) -> FetchAnswer | PassedSlice | DamagedSlice:
    """Return the records, or the damage. Raise `ArchiveError(OBJECT_MISSING)` for a missing log, and the store's
    errors."""

    def read(window: memoryview, sound: LogSlice, read_bytes: int) -> FetchedRecords:
        window = window[: sound.size_bytes]
        records = tuple(
            iter_records(
                window,
                _read_headers(window, limits, sound),
                position=sound.position,
                bounds=sound.bounds,
                aborted=sound.aborted,
                limits=limits,
            )
        )
        return FetchedRecords(
            records=records,
            next_offset=sound.next_offset,
            ends=sound.ends,
            read_bytes=read_bytes,
            aborted_transactions=tuple(sound.overlapping_aborts()),
        )

    return _read_sound(layout, limits, log_slice, read)


def read_batches(
    layout: ArchiveLayout, limits: DecodeLimits, log_slice: LogSlice, checked: CheckedRanges | None = None
) -> FetchedBatches | PassedSlice | DamagedSlice:
    """Return the batches as the log has them, or the damage. No record is decoded, but for those of a last batch
    that ends after the slice's bounds. With `checked` they may be bytes of a file. Raise as `read_slice` does."""
    stored = None if checked is None else find_stored(layout, limits, log_slice, checked)
    if stored is not None:
        return FetchedBatches(pieces=(), log_slice=log_slice, stored=stored)
    check_may_wait()

    def read(window: memoryview, sound: LogSlice, _: int) -> FetchedBatches:
        window, last_offset = window[: sound.size_bytes], sound.bounds.to_offset
        if int(sound.batches.last_offset[-1]) <= last_offset and _are_indexed(window, limits, sound):
            return FetchedBatches(pieces=(window,), log_slice=sound)
        headers = _read_headers(window, limits, sound)
        if int(headers.last_offset[-1]) <= last_offset:
            return FetchedBatches(pieces=(window,), log_slice=sound)
        last = headers.where(np.arange(len(headers)) == len(headers) - 1)
        start = int(last.position[0]) - sound.position
        cut = cut_record_batch(window, last, sound.position, last_offset, limits)
        return FetchedBatches(pieces=(window[:start], memoryview(cut)), log_slice=sound)

    return _read_sound(layout, limits, log_slice, read)


def _read_sound(
    layout: ArchiveLayout,
    limits: DecodeLimits,
    log_slice: LogSlice,
    read: Callable[[memoryview, LogSlice, int], _Found],
) -> _Found | PassedSlice | DamagedSlice:
    """Read the slice up to its first damaged batch. `read` gets its bytes and how many were read of the log."""
    if log_slice.served.has_batches:
        window = layout.read_log_range(log_slice.served.segment, log_slice.position, log_slice.size_bytes)
        read_bytes = len(window)
    else:
        try:
            found = find_batches(layout, limits, log_slice)
        except ArchiveError as wrong:
            if wrong.reason is Reason.OBJECT_MISSING:
                raise
            return DamagedSlice(log_slice=log_slice, wrong=wrong)
        if isinstance(found, PassedSlice):
            return found
        window, log_slice, read_bytes = found.window, found.log_slice, found.read_bytes
    while True:
        try:
            return read(window, log_slice, read_bytes)
        except ArchiveError as wrong:
            before = int(np.searchsorted(log_slice.batches.position, wrong.position)) if wrong.position >= 0 else 0
            if not 0 < before < len(log_slice.batches):
                return DamagedSlice(log_slice=log_slice, wrong=wrong)
            log_slice = log_slice.first_batches(before)


def damaged(found: DamagedSlice) -> FetchFailure:
    """Build the answer for a slice whose first batch is damaged, or which cannot be read."""
    log_slice, served, batches = found.log_slice, found.log_slice.served, found.log_slice.batches
    error = of_segment(found.wrong, served.segment)
    resume_offset = min(int(batches.last_offset[0]), served.to_offset) + 1
    where = "the batch has" if served.has_batches else "at sidecar depth this costs"
    return FetchFailure(
        error=FetchErrorCode.CORRUPT_MESSAGE,
        message=f"{log_slice.request}: {error}; {where} offsets {int(batches.base_offset[0])} to "
        f"{int(batches.last_offset[0])}",
        ends=log_slice.ends,
        resume_offset=resume_offset,
    )


def iter_records(
    window: memoryview,
    headers: BatchHeaders,
    *,
    position: int,
    bounds: RecordBounds,
    aborted: AbortedTransactions,
    limits: DecodeLimits,
) -> Iterator[FetchedRecord]:
    """Yield the records within the bounds of the batches of `window`, which begins at `position` of the log. Control
    batches and those of aborted transactions are skipped."""
    is_wanted = ~headers.is_control & (headers.record_count > 0)
    if len(aborted):
        is_wanted &= ~(headers.is_transactional & aborted.hold(headers.producer_id, headers.base_offset))
    if not is_wanted.any():
        return
    taken = headers.where(is_wanted)
    for section in SectionReader(limits=limits).iter_sections(window, taken, position):
        columns = read_record_columns(section, taken, bounds, _EVERYTHING)
        batches = np.searchsorted(taken.base_offset, columns.offset, side="right") - 1
        yield from _records(columns, taken.leader_epoch[batches].tolist())


def _are_indexed(window: memoryview, limits: DecodeLimits, log_slice: LogSlice) -> bool:
    """Whether the bytes are the slice's batches, all sound. This is faster than to read all fields of the headers."""
    batches = log_slice.batches
    return are_indexed_batches(
        window,
        position=log_slice.position,
        next_offset=log_slice.served.segment.start_offset,
        max_batch_bytes=limits.max_batch_bytes,
        positions=batches.position,
        sizes=batches.size_bytes,
        base_offsets=batches.base_offset,
        last_offsets=batches.last_offset,
        leader_epochs=expected_epochs(log_slice.served.leader_epochs, batches.base_offset),
    )


def _read_headers(window: memoryview, limits: DecodeLimits, log_slice: LogSlice) -> BatchHeaders:
    """Read the headers of the slice's batches, and check that they are the indexed ones."""
    batches = log_slice.batches
    if len(window) < log_slice.size_bytes:
        ends = batches.position + batches.size_bytes - log_slice.position
        cut = int(np.searchsorted(ends, len(window), side="right"))
        raise shorter_log(
            int(batches.position[cut]),
            f"{log_slice.size_bytes} bytes from byte {log_slice.position} on",
            f"{len(window)} bytes",
        )
    headers = read_batch_headers(
        window,
        position=log_slice.position,
        next_offset=log_slice.served.segment.start_offset,
        is_last=True,
        max_batch_bytes=limits.max_batch_bytes,
    ).headers
    indexed, found = (
        np.stack((each.position, each.base_offset, each.last_offset))[:, : min(len(headers), len(batches))]
        for each in (batches, headers)
    )
    is_other = (indexed != found).any(axis=0)
    if len(headers) != len(batches) or is_other.any():
        at = int(np.argmax(is_other)) if is_other.any() else min(len(headers), len(batches)) - 1
        raise replaced_batch(
            int(batches.position[at]),
            f"offsets {int(batches.base_offset[at])} to {int(batches.last_offset[at])}",
            f"offsets {int(headers.base_offset[at])} to {int(headers.last_offset[at])}",
        )
    _require_leader_epochs(headers, log_slice.served.leader_epochs)
    return headers


def _require_leader_epochs(headers: BatchHeaders, epochs: Sequence[EpochStart]) -> None:
    """Raise `ArchiveError` for the first batch with another leader epoch than its segment has there."""
    is_other = headers.leader_epoch != expected_epochs(epochs, headers.base_offset)
    for at in np.flatnonzero(is_other).tolist():
        base_offset, leader_epoch = int(headers.base_offset[at]), int(headers.leader_epoch[at])
        require_leader_epoch(epochs, int(headers.position[at]), base_offset, leader_epoch)


def _records(columns: RecordColumns, leader_epochs: list[int]) -> Iterator[FetchedRecord]:
    assert columns.key is not None
    assert columns.value is not None
    assert columns.headers is not None
    fields = (
        columns.offset.tolist(),
        columns.timestamp_ms.tolist(),
        columns.is_log_append_time.tolist(),
        leader_epochs,
        _contents(columns.key),
        _contents(columns.value),
        _headers(columns.headers),
    )
    for offset, timestamp_ms, is_append_time, leader_epoch, key, value, headers in zip(*fields, strict=True):
        yield FetchedRecord(
            offset=offset,
            timestamp_ms=timestamp_ms,
            timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
            leader_epoch=leader_epoch,
            key=key,
            value=value,
            headers=headers,
        )


def _contents(column: ByteColumn) -> list[bytes | None]:
    content, offsets = column.content.tobytes(), column.offsets.tolist()
    found: list[bytes | None] = [content[start:stop] for start, stop in pairwise(offsets)]
    if column.is_null is not None:
        for at in np.flatnonzero(column.is_null).tolist():
            found[at] = None
    return found


def _headers(column: HeaderColumn) -> list[_Headers]:
    names = [(name or b"").decode("utf-8", "replace") for name in _contents(column.names)]
    pairs = list(zip(names, _contents(column.values), strict=True))
    offsets = column.offsets.tolist()
    return [tuple(pairs[start:stop]) for start, stop in pairwise(offsets)]
