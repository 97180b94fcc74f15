"""Find the batches of a slice of a log that is indexed at sidecar depth.

The tables name intervals of the log, so the batches are known only when it is read. They must be those that the index
describes: every batch has its checksum, and batches end at the offsets between which the intervals lie. An interval is
larger than a window if a follower fetched it at once; then it is read window by window up to the offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.record_batch import BatchHeaders, WindowHeaders, read_batch_headers
from coldlog.formats.limits import DecodeLimits
from coldlog.index.changed_logs import ExpectedEnds, shorter_log
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.source.archived_log import BatchPlaces

_WINDOW_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedSlice:
    """A slice in which no batch has the offset or a later one: the segment ends before its announced end."""

    log_slice: LogSlice
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSlice:
    """A slice with its batches, their bytes, and how many bytes of the log were read for them."""

    log_slice: LogSlice
    window: memoryview
    read_bytes: int


def find_batches(layout: ArchiveLayout, limits: DecodeLimits, log_slice: LogSlice) -> FoundSlice | PassedSlice:
    """Return the slice with its batches, up to the first damaged one.

    Raise `ArchiveError` if there is no sound batch to return, or if these are not the batches of the intervals.
    """
    segment, end = log_slice.served.segment, log_slice.position + log_slice.size_bytes
    intervals = log_slice.batches
    ends = {*intervals.last_offset.tolist()} - {log_slice.served.end_offset}
    ends |= {int(intervals.base_offset[0]) - 1} if log_slice.position else set()
    expected = ExpectedEnds(offsets=ends, end_offset=log_slice.served.end_offset)
    position, next_offset, needed, read_bytes = log_slice.position, segment.start_offset, 0, 0
    while position < end:
        size = min(max(_WINDOW_BYTES, log_slice.request.max_bytes, needed), end - position)
        window = layout.read_log_range(segment, position, size)
        read_bytes += len(window)
        if len(window) < size:
            raise shorter_log(position + len(window), f"{size} bytes from byte {position} on", f"{len(window)} bytes")
        read, wrong = _read_sound(
            window, position=position, next_offset=next_offset, is_last=position + size == end, limits=limits
        )
        headers, following, needed = read.headers, position + read.consumed_bytes, read.needed_bytes
        is_open = wrong is not None or position + size < end
        if is_open and len(headers):
            # The offsets of a batch are certain only if the next one follows: the last one is read again with it.
            following = int(headers.position[-1])
            needed = size + _WINDOW_BYTES if len(headers) == 1 else 0
            headers = headers.slice(0, len(headers) - 1)
        expected.check(headers)
        wanted = _wanted(headers, log_slice)
        if len(wanted):
            return _cut(window, wanted, log_slice, position, read_bytes)
        if wrong is not None:
            raise wrong
        if len(headers):
            next_offset = int(headers.last_offset[-1]) + 1
        position = following
    expected.finish(log_slice.position)
    return PassedSlice(log_slice=log_slice, read_bytes=read_bytes)


def _read_sound(
    window: memoryview, *, position: int, next_offset: int, is_last: bool, limits: DecodeLimits
) -> tuple[WindowHeaders, ArchiveError | None]:
    """Return the batches before the first damaged one, and the damage."""
    options = {"position": position, "next_offset": next_offset, "max_batch_bytes": limits.max_batch_bytes}
    try:
        return read_batch_headers(window, is_last=is_last, **options), None
    except ArchiveError as wrong:
        sound = window[: max(0, wrong.position - position)]
        return read_batch_headers(sound, is_last=True, **options), wrong


def _wanted(headers: BatchHeaders, log_slice: LogSlice) -> BatchHeaders:
    """Return the batches with the offset or later ones that the slice may have, at least one and up to `max_bytes`."""
    last = min(int(log_slice.batches.last_offset[-1]), log_slice.bounds.to_offset)
    is_wanted = headers.last_offset >= log_slice.request.offset
    # A batch may reach beyond the bounds, but not beyond the last interval: that one is the next slice's.
    is_wanted &= (headers.base_offset <= last) & (headers.last_offset <= log_slice.batches.last_offset[-1])
    first = int(np.argmax(is_wanted)) if len(headers) else 0
    sizes = np.cumsum(headers.size_bytes[first:])
    count = max(1, int(np.searchsorted(sizes, log_slice.request.max_bytes, side="right")))
    return headers.where(is_wanted & (np.arange(len(headers)) < first + count))


def _cut(window: memoryview, headers: BatchHeaders, log_slice: LogSlice, position: int, read_bytes: int) -> FoundSlice:
    batches = BatchPlaces(
        base_offset=headers.base_offset,
        last_offset=headers.last_offset,
        position=headers.position,
        size_bytes=headers.size_bytes.astype(np.int64),
        max_timestamp_ms=headers.max_timestamp_ms,
        min_timestamp_ms=np.full(len(headers), -(1 << 63)),
    )
    begin = int(batches.position[0]) - position
    until = min(int(batches.last_offset[-1]), log_slice.bounds.to_offset) + 1
    found = replace(log_slice, batches=batches, next_offset=until)
    return FoundSlice(log_slice=found, window=window[begin : begin + found.size_bytes], read_bytes=read_bytes)
