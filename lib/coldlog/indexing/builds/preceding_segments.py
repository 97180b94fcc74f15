"""Find the transactions that are open at the start of a segment without a producer snapshot.

This is for mirrors, and for segments whose transaction index or producer snapshot is damaged. The earlier segments of
the directory are read, the nearest first: the producer snapshot of a segment that has a sound one, otherwise the
headers of its batches. In a mirror, a task remembers what the segment leaves open that it has built last. The search
ends when each producer in question has a marker, after which the start of its next transaction is visible,
or at the start of the log. It reads at most `FARTHEST` segments, because a producer that wrote nothing is never found.
Then, and behind a damaged log, the answer is not complete: a longer transaction is taken to
begin with its first batch in the segments that were read. Records in gaps between segments are unknown.

`find_snapshot_before` and `is_directly_before` serve to check a transaction index: the snapshot of the segment before
has every transaction that a segment ends and does not begin, if the one log continues the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coldlog.archive.layouts.layout import (
    ArchiveLayout,
    ListedSegment,
    ListsByName,
    PartitionDirectory,
    SegmentFileKind,
)
from coldlog.archive.layouts.log_windows import LogFile, iter_log_windows
from coldlog.archive.layouts.wrapped_layout import WrappedLayout
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.crc import find_crc_mismatch
from coldlog.formats.kafka.producer_snapshot import read_producer_snapshot
from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.limits import DecodeLimits
from coldlog.index.leader_epoch_lineage import EpochStart, filter_epochs
from coldlog.index.open_transactions import OpenTransactions

FARTHEST = 8
_MOST_REMEMBERED = 16
"""Directories: a partition has as many as replicas were copied."""
_LISTED_BY_NAME = 4
"""So often a directory is listed by name; after that, it is listed whole."""
_DIGITS = *range(4, 19, 2), 19
"""How many of the last digits of an offset vary among the names that are listed. The greatest offset has 19."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLog:
    """The log of a segment as `log_windows` reads it."""

    layout: ArchiveLayout
    segment: ListedSegment

    def log_file(self, *, is_active: bool) -> LogFile:
        """The log file as it was listed."""
        listed = self.segment.find_object(SegmentFileKind.LOG)
        return LogFile(
            name="" if listed is None else listed.name,
            size_bytes=self.layout.log_size_bytes(self.segment),
            base_offset=self.segment.start_offset,
            is_active=is_active,
        )

    def read_range(self, _: str, position: int, length: int) -> memoryview:
        """Read bytes of the log; the name is not used."""
        return self.layout.read_log_range(self.segment, position, length)


@dataclass(slots=True, kw_only=True)
class EarlierSegments:
    """The segments before a segment in its directory.

    Where names begin with offsets, only names near that of the segment are listed: a run has few new segments, and
    their directory may have a million. A task that asks often lists the directory once for all of its segments.
    """

    layout: ArchiveLayout
    limits: DecodeLimits
    window_bytes: int
    _directory: PartitionDirectory | None = field(default=None, init=False)
    _listings: int = field(default=0, init=False)
    """How often `_directory` was listed."""
    _known: _Known | None = field(default=None, init=False)
    _open_after: dict[str, tuple[str, Mapping[int, int]]] = field(default_factory=dict, init=False)
    """By directory: the log of the segment that was remembered last, and what it leaves open."""

    def remember(self, segment: ListedSegment, open_transactions: Mapping[int, int]) -> None:
        """Remember the transactions that a segment leaves open, so that its log is not read again for the next one."""
        name = segment.object_name_of(SegmentFileKind.LOG)
        directory = name.rpartition("/")[0]
        if directory not in self._open_after:
            self._open_after = dict(list(self._open_after.items())[-_MOST_REMEMBERED:])
        self._open_after[directory] = name, open_transactions

    def open_after(self, segment: ListedSegment) -> Mapping[int, int] | None:
        """Return what was remembered of a segment; otherwise what its producer snapshot says, if it has a sound one."""
        name = segment.object_name_of(SegmentFileKind.LOG)
        known = self._open_after.get(name.rpartition("/")[0])
        return known[1] if known is not None and known[0] == name else _read_snapshot(self.layout, segment)

    def before(self, segment: ListedSegment) -> list[ListedSegment]:
        """The last `FARTHEST` + 1 that start before it, in order."""
        log = segment.find_object(SegmentFileKind.LOG)
        directory = PartitionDirectory(
            name="" if log is None else log.name.rpartition("/")[0],
            topic=segment.topic,
            topic_id=segment.topic_id,
            partition=segment.partition,
        )
        if directory != self._directory:
            self._directory, self._listings, self._known = directory, 0, None
        found = None if self._known is None else self._known.before(segment.start_offset)
        if found is None:
            self._known = known = self._list(directory, segment.start_offset)
            self._listings += 1
            found = known.last_before(segment.start_offset)
        return found

    def _list(self, directory: PartitionDirectory, start_offset: int) -> _Known:
        layout = self.layout
        while isinstance(layout, WrappedLayout):  # it lists as the layout within, and only reads in another way
            layout = layout.layout
        if self._listings < _LISTED_BY_NAME and isinstance(layout, ListsByName):
            return _list_before(layout, directory, start_offset)
        return _Known(self.layout.list_segments(directory).segments)

    def iter_headers(self, segment: ListedSegment) -> Iterator[BatchHeaders]:
        """Iterate over the headers of a log, window by window; damaged batches raise `ArchiveError`."""
        log = SegmentLog(layout=self.layout, segment=segment)
        for window in iter_log_windows(
            log, log.log_file(is_active=False), from_position=0, limits=self.limits, window_bytes=self.window_bytes
        ):
            headers = window.headers
            starts = headers.position - window.position
            if find_crc_mismatch(window.content, starts, headers.size_bytes, headers.crc) is not None:
                raise ArchiveError(Reason.CRC_MISMATCH, "batch does not match its checksum")
            yield headers


@dataclass(frozen=True, slots=True)
class _Known:
    """Segments of a directory, in order: all that start from offset `first` on and before `end`."""

    segments: Sequence[ListedSegment]
    first: int = 0
    end: int = 1 << 63

    def before(self, start_offset: int) -> list[ListedSegment] | None:
        """As `EarlierSegments.before`; None if it is not known."""
        found = self.last_before(start_offset) if start_offset <= self.end else []
        return found if len(found) > FARTHEST or (self.first == 0 and start_offset <= self.end) else None

    def last_before(self, start_offset: int) -> list[ListedSegment]:
        """The last of them."""
        end = bisect_left(self.segments, start_offset, key=lambda each: each.start_offset)
        return list(self.segments[max(0, end - FARTHEST - 1) : end])


def _list_before(layout: ListsByName, directory: PartitionDirectory, start_offset: int) -> _Known:
    """List names that have the first digits of the offset, or of one some steps before it, and fewer digits until
    enough segments are found."""
    known = _Known(())
    for digits in _DIGITS:
        before = max(0, start_offset - 10 ** (digits - 1))
        blocks = sorted({before // 10**digits, start_offset // 10**digits})
        beginnings = [f"{block:0{20 - digits}d}" for block in blocks]
        listed = layout.list_named(directory, beginnings).segments
        known = _Known(listed, blocks[0] * 10**digits, (blocks[-1] + 1) * 10**digits)
        if known.before(start_offset) is not None:
            break
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBefore:
    """The first offsets of the transactions that are open at the start of a segment, by producer id. `is_complete`:
    nothing that was not read can change them."""

    first_offsets: Mapping[int, int] = field(default_factory=dict)
    is_complete: bool = True


def find_open_before(
    earlier_segments: EarlierSegments,
    segment: ListedSegment,
    producer_ids: Collection[int] | None,
) -> OpenBefore:
    """Find the transactions that are open at the start of the segment.

    `producer_ids` are the producers whose state must be found; None: all.
    """
    before = earlier_segments.before(segment)
    pieces: list[list[BatchHeaders]] = []
    found = OpenTransactions()
    for earlier in reversed(before[-FARTHEST:]):
        snapshot = earlier_segments.open_after(earlier)
        try:
            if snapshot is None:
                pieces.append(_read_transactional(earlier_segments, earlier))
        except ArchiveError:
            return OpenBefore(first_offsets=found.first_offsets, is_complete=False)
        found = OpenTransactions(first_offsets=dict(snapshot or {}))
        for piece in reversed(pieces):
            for headers in piece:
                found.add(headers)
        is_found = producer_ids is not None and found.ended.issuperset(producer_ids)
        # What is open where a segment without a transactional batch begins is open at its end.
        if snapshot is not None or (is_found and any(len(headers) for piece in pieces for headers in piece)):
            return OpenBefore(first_offsets=found.first_offsets)
    return OpenBefore(first_offsets=found.first_offsets, is_complete=len(before) <= FARTHEST)


def find_snapshot_before(earlier_segments: EarlierSegments, segment: ListedSegment) -> dict[int, int] | None:
    """Return the first offsets of transactions that are open at the end of the segment listed before this one.

    None if there is none, or it has no sound snapshot.
    """
    before = earlier_segments.before(segment)
    return _read_snapshot(earlier_segments.layout, before[-1]) if before else None


def is_directly_before(
    earlier_segments: EarlierSegments, segment: ListedSegment, lineage: Collection[EpochStart]
) -> bool:
    """Whether the log listed before this one ends where this one starts, with the leader epochs of its `lineage`.

    Otherwise records are missing between them, or another leader uploaded the earlier one.
    """
    before, entries = earlier_segments.before(segment), filter_epochs(lineage)
    if not before or not entries:
        return False
    epochs, starts = np.array(entries, dtype=np.int64).T
    end_offset = -1
    try:
        for headers in earlier_segments.iter_headers(before[-1]):
            entry = np.searchsorted(starts, headers.base_offset, side="right") - 1
            is_earlier = (entry < 0) & (headers.leader_epoch < epochs[0])
            if not (is_earlier | (headers.leader_epoch == epochs[np.maximum(entry, 0)])).all():
                return False
            end_offset = int(headers.last_offset[-1]) + 1
    except ArchiveError:
        return False
    return end_offset == segment.start_offset


def _read_snapshot(layout: ArchiveLayout, segment: ListedSegment) -> dict[int, int] | None:
    """Return the first offsets of open transactions; None without a sound snapshot."""
    kind = SegmentFileKind.PRODUCER_SNAPSHOT
    try:
        if not layout.has_file(segment, kind):
            return None
        entries = read_producer_snapshot(layout.read_small_file(segment, kind)).entries
    except ArchiveError:
        return None  # the segment has its own outcome, which says so
    return {entry.producer_id: entry.current_txn_first_offset for entry in entries if entry.has_open_transaction}


def _read_transactional(earlier_segments: EarlierSegments, segment: ListedSegment) -> list[BatchHeaders]:
    """Return the headers of transactional batches; damaged ones raise `ArchiveError`."""
    return [headers.where(headers.is_transactional) for headers in earlier_segments.iter_headers(segment)]
