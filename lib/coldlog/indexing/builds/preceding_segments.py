"""Find the transactions that are open at the start of a segment without a producer snapshot.

This is for mirrors, and for segments whose transaction index or producer snapshot is damaged. The earlier segments of
the directory are read, the nearest first: the producer snapshot of a segment that has a sound one, otherwise the
headers of its batches. The search ends when each producer in question has a marker, after which the start of its next
transaction is visible, or at the start of the log. It reads at most `FARTHEST` segments, because a producer that wrote
nothing is never found. Then, and behind a damaged log, the answer is not complete: a longer transaction is taken to
begin with its first batch in the segments that were read. Records in gaps between segments are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, PartitionDirectory, SegmentFileKind
from coldlog.archive.layouts.log_windows import LogFile, iter_log_windows
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.crc import find_crc_mismatch
from coldlog.formats.kafka.producer_snapshot import read_producer_snapshot
from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.limits import DecodeLimits
from coldlog.index.open_transactions import OpenTransactions

FARTHEST = 8


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBefore:
    """The first offsets of the transactions that are open at the start of a segment, by producer id. `is_complete`:
    nothing that was not read can change them."""

    first_offsets: Mapping[int, int] = field(default_factory=dict)
    is_complete: bool = True


def find_open_before(
    layout: ArchiveLayout,
    segment: ListedSegment,
    producer_ids: Collection[int] | None,
    *,
    limits: DecodeLimits,
    window_bytes: int,
) -> OpenBefore:
    """Find the transactions that are open at the start of the segment.

    `producer_ids` are the producers whose state must be found; None: all.
    """
    log = segment.find_object(SegmentFileKind.LOG)
    directory = PartitionDirectory(
        name="" if log is None else log.name.rpartition("/")[0],
        topic=segment.topic,
        topic_id=segment.topic_id,
        partition=segment.partition,
    )
    listed = layout.list_segments(directory).segments
    before = [earlier for earlier in listed if earlier.start_offset < segment.start_offset]
    pieces: list[list[BatchHeaders]] = []
    found = OpenTransactions()
    for earlier in reversed(before[-FARTHEST:]):
        snapshot = _read_snapshot(layout, earlier)
        try:
            if snapshot is None:
                pieces.append(_read_transactional(layout, earlier, limits, window_bytes))
        except ArchiveError:
            return OpenBefore(first_offsets=found.first_offsets, is_complete=False)
        found = OpenTransactions(first_offsets=snapshot or {})
        for piece in reversed(pieces):
            for headers in piece:
                found.add(headers)
        if snapshot is not None or (producer_ids is not None and found.ended.issuperset(producer_ids)):
            return OpenBefore(first_offsets=found.first_offsets)
    return OpenBefore(first_offsets=found.first_offsets, is_complete=len(before) <= FARTHEST)


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


def _read_transactional(
    layout: ArchiveLayout,
    segment: ListedSegment,
    limits: DecodeLimits,
    window_bytes: int,
) -> list[BatchHeaders]:
    """Return the headers of transactional batches; damaged ones raise `ArchiveError`."""
    log = SegmentLog(layout=layout, segment=segment)
    found = []
    for window in iter_log_windows(
        log, log.log_file(is_active=False), from_position=0, limits=limits, window_bytes=window_bytes
    ):
        headers = window.headers
        starts = headers.position - window.position
        if find_crc_mismatch(window.content, starts, headers.size_bytes, headers.crc) is not None:
            raise ArchiveError(Reason.CRC_MISMATCH, "batch does not match its checksum")
        found.append(headers.where(headers.is_transactional))
    return found
