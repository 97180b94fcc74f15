"""Find slices of logs that can be sent from their file as they are, without a copy.

Every batch is checked before it is sent, as it is when it is read. What was checked once is remembered as long as the
file is the same, was not changed and the tables have the same build of the segment: then the bytes are not read here at
all. The check reads into a small buffer of the thread, which stays in the processor's cache.

A thread that must not wait (`without_waiting`) finds a slice only if its bytes and its file's inode are in memory. It
opens a file only in a directory that another thread has found to be on this machine: elsewhere an open may hang.

A slice is not found so if its log is no file, if its last batch must be cut, if it is small, if many files are open, or
if anything is wrong with it: who reads it in the other way finds out what.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.archive.stores.stored_file import MOST_OPEN, FileState, OwnedDescriptor, StoredFile
from coldlog.archive.stores.without_waiting import may_wait
from coldlog.formats.kafka.indexed_batches import ANY_LEADER_EPOCH, are_indexed_batches
from coldlog.formats.limits import DecodeLimits
from coldlog.index.leader_epoch_lineage import EpochStart, filter_epochs
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.source.archived_log import BatchPlaces, Int64s

_LEAST_BYTES = 32 * 1024
"""A copy of less costs less than an open file."""
_BUFFER_BYTES = 512 * 1024
_MOST_LOGS, _MOST_RANGES = 20_000, 100
_Place = tuple[FileState, int]
"""A file, and the build whose batches it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRange:
    """Bytes of an open file."""

    file: StoredFile
    position: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes

    @property
    def is_in_memory(self) -> bool:
        """Whether the system has these bytes in memory."""
        return self.file.is_in_memory(self.position, self.size_bytes)

    def part(self, begin: int, size_bytes: int) -> StoredRange:
        """Return some of these bytes."""
        return StoredRange(file=self.file, position=self.position + begin, size_bytes=size_bytes)


class CheckedRanges:
    """Which bytes of which logs were checked. Threads share it."""

    def __init__(self) -> None:
        self._ranges: OrderedDict[_Place, list[tuple[int, int]]] = OrderedDict()
        self._local: set[str] = set()
        self._turn = threading.Lock()

    def have(self, place: _Place, begin: int, end: int) -> bool:
        """Whether all bytes from `begin` to before `end` were checked."""
        with self._turn:
            ranges = self._ranges.get(place)
            if ranges is None:
                return False
            self._ranges.move_to_end(place)
            return any(first <= begin and end <= stop for first, stop in ranges)

    def is_local(self, segment: ListedSegment) -> bool:
        """Whether the directory of the log is known to be on a file system of this machine."""
        return (directory := _directory_of(segment)) != "" and directory in self._local

    def learn_local(self, segment: ListedSegment) -> None:
        """Remember that the directory of the log is on a file system of this machine."""
        with self._turn:
            if len(self._local) >= _MOST_LOGS:
                self._local = set()
            self._local.add(_directory_of(segment))

    def add(self, place: _Place, begin: int, end: int) -> None:
        """Remember bytes that were checked."""
        with self._turn:
            ranges = self._ranges.setdefault(place, [])
            apart = [each for each in ranges if each[1] < begin or end < each[0]]
            joined = [(begin, end), *(each for each in ranges if each not in apart)]
            whole = min(first for first, _ in joined), max(stop for _, stop in joined)
            self._ranges[place] = [*apart, whole][-_MOST_RANGES:]
            self._ranges.move_to_end(place)
            if len(self._ranges) > _MOST_LOGS:
                self._ranges.popitem(last=False)


def _directory_of(segment: ListedSegment) -> str:
    """The directory of the log; empty if it is not known."""
    return segment.object_name_of(SegmentFileKind.LOG).rpartition("/")[0]


class _Buffer(threading.local):
    """The memory of one thread for checks."""

    def __init__(self) -> None:
        self.content = np.empty(_BUFFER_BYTES, dtype=np.uint8)


_buffer = _Buffer()


def find_stored(
    layout: ArchiveLayout, limits: DecodeLimits, log_slice: LogSlice, checked: CheckedRanges
) -> StoredRange | None:
    """Return the slice as bytes of its file; None if it must be read. Raise `ArchiveError(OBJECT_MISSING)` for a
    missing log, and the store's errors."""
    segment, begin, size_bytes = log_slice.served.segment, log_slice.position, log_slice.size_bytes
    if not _may_be_sent(log_slice) or not (may_wait() or checked.is_local(segment)):
        return None
    file = layout.open_log(segment)
    if file is None or begin + size_bytes > file.state.size_bytes:
        return None
    found = StoredRange(file=file, position=begin, size_bytes=size_bytes)
    if may_wait():
        file.announce(begin, size_bytes)
        if file.waits_for_a_disk_only(begin):
            checked.learn_local(segment)
    elif not found.is_in_memory:
        return None
    is_checked = checked.have((file.state, log_slice.served.build_number), begin, begin + size_bytes)
    return found if is_checked or _is_sound(found, limits, log_slice, checked) else None


def _may_be_sent(log_slice: LogSlice) -> bool:
    if not log_slice.served.has_batches or OwnedDescriptor.open_count >= MOST_OPEN:
        return False
    return log_slice.size_bytes >= _LEAST_BYTES and int(log_slice.batches.last_offset[-1]) <= log_slice.bounds.to_offset


def _is_sound(found: StoredRange, limits: DecodeLimits, log_slice: LogSlice, checked: CheckedRanges) -> bool:
    """Check all batches, and remember it."""
    file, served = found.file, log_slice.served
    try:
        if not _are_sound(file, limits, log_slice):
            return False
    except OSError:
        return False  # Who reads it in the other way gets the store's error.
    if file.state.is_settled:
        checked.add((file.state, served.build_number), found.position, found.position + found.size_bytes)
    return True


def _are_sound(file: StoredFile, limits: DecodeLimits, log_slice: LogSlice) -> bool:
    """Check all batches of a slice, as many at a time as the buffer takes."""
    batches, next_offset, first = log_slice.batches, log_slice.served.segment.start_offset, 0
    epochs = log_slice.served.leader_epochs
    while first < len(batches):
        end = batches.position[first] + _BUFFER_BYTES
        stop = max(first + 1, int(np.searchsorted(batches.position + batches.size_bytes, end, side="right")))
        part = batches.slice(first, stop)
        if not _is_sound_part(file, limits, part, next_offset, epochs):
            return False
        first, next_offset = stop, int(part.last_offset[-1]) + 1
    return True


def expected_epochs(epochs: Sequence[EpochStart], base_offsets: Int64s) -> Int64s:
    """Return the leader epoch that each batch of a segment must have. No checksum covers it, and a consumer keeps it
    with its position. Before the first known epoch the first one is expected; `require_leader_epoch` allows earlier."""
    entries = filter_epochs(epochs)
    if not entries:
        return np.full(len(base_offsets), ANY_LEADER_EPOCH, dtype=np.int64)
    numbers, starts = np.array(entries, dtype=np.int64).T
    expected: Int64s = numbers[np.maximum(np.searchsorted(starts, base_offsets, side="right") - 1, 0)]
    return expected


def _is_sound_part(
    file: StoredFile, limits: DecodeLimits, part: BatchPlaces, next_offset: int, epochs: Sequence[EpochStart]
) -> bool:
    position = int(part.position[0])
    size_bytes = int(part.position[-1] + part.size_bytes[-1]) - position
    content = _buffer.content if size_bytes <= _BUFFER_BYTES else np.empty(size_bytes, dtype=np.uint8)
    window = content.data[:size_bytes]
    return file.read_into(window, position) == size_bytes and are_indexed_batches(
        window,
        position=position,
        next_offset=next_offset,
        max_batch_bytes=limits.max_batch_bytes,
        positions=part.position,
        sizes=part.size_bytes,
        base_offsets=part.base_offset,
        last_offsets=part.last_offset,
        leader_epochs=expected_epochs(epochs, part.base_offset),
    )
