"""Find the transactions that are open at the start of a segment without a producer snapshot.

This is for mirrors, and for segments whose transaction index or producer snapshot is damaged. The earlier segments of
the directory are read, the nearest first: the producer snapshot of a segment that has a sound one, otherwise the
headers of its batches. The search ends when each producer in question has a marker, after which the start of its next
transaction is visible, or at the start of the log. It reads at most `FARTHEST` segments, because a producer that wrote
nothing is never found. Then, and behind a damaged log, the answer is not complete: a longer transaction is taken to
begin with its first batch in the segments that were read. Records in gaps between segments are unknown.

`find_snapshot_before` and `is_directly_before` serve to check a transaction index: the snapshot of the segment before
has every transaction that a segment ends and does not begin, if the one log continues the other.
"""

from __future__ import annotations

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
_LISTED_BY_NAME = 4
"""Of a directory, the segments before so many are listed by name. Before one more, it is listed whole."""
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
    _asked: int = field(default=0, init=False)
    """How often the segments of `_directory` were asked for."""
    _listed: tuple[ListedSegment, ...] | None = field(default=None, init=False)

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
            self._directory, self._asked, self._listed = directory, 0, None
        self._asked += 1
        lists_by_name = _unwrapped(self.layout)
        if self._asked <= _LISTED_BY_NAME and isinstance(lists_by_name, ListsByName):
            return _list_before(lists_by_name, directory, segment.start_offset)
        if self._listed is None:
            self._listed = tuple(self.layout.list_segments(directory).segments)
        return _last_before(self._listed, segment.start_offset)

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


def _unwrapped(layout: ArchiveLayout) -> ArchiveLayout:
    """The layout that lists: the others only read in another way."""
    while isinstance(layout, WrappedLayout):
        layout = layout.layout
    return layout


def _list_before(layout: ListsByName, directory: PartitionDirectory, start_offset: int) -> list[ListedSegment]:
    """List names that have the first digits of the offset, or of the one before that in these digits, and fewer digits
    until enough segments are found."""
    found: list[ListedSegment] = []
    for digits in _DIGITS:
        block = start_offset // 10**digits
        beginnings = [f"{each:0{20 - digits}d}" for each in range(max(0, block - 1), block + 1)]
        found = _last_before(layout.list_named(directory, beginnings).segments, start_offset)
        if len(found) > FARTHEST or block <= 1:
            break
    return found


def _last_before(listed: Sequence[ListedSegment], start_offset: int) -> list[ListedSegment]:
    return [each for each in listed if each.start_offset < start_offset][-FARTHEST - 1 :]


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
    layout, before = earlier_segments.layout, earlier_segments.before(segment)
    pieces: list[list[BatchHeaders]] = []
    found = OpenTransactions()
    for earlier in reversed(before[-FARTHEST:]):
        snapshot = _read_snapshot(layout, earlier)
        try:
            if snapshot is None:
                pieces.append(_read_transactional(earlier_segments, earlier))
        except ArchiveError:
            return OpenBefore(first_offsets=found.first_offsets, is_complete=False)
        found = OpenTransactions(first_offsets=snapshot or {})
        for piece in reversed(pieces):
            for headers in piece:
                found.add(headers)
        if snapshot is not None or (producer_ids is not None and found.ended.issuperset(producer_ids)):
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
