"""Find which bytes of which log answer a fetch.

The rules are Kafka's for a read of the remote tier. A slice begins with the first batch that ends at or after the
offset. It has whole batches of one segment up to `max_bytes`, but always the first one. The offset may be inside that
batch, or in no batch (compaction). At sidecar depth a slice has whole intervals, of which the reader takes the batches
that are asked for. After a segment's last batch the next segment follows. Readers of committed records
get nothing from the last stable offset on, and an error from the first offset of a transaction on that may have been
aborted in a gap.

Offsets below the log start, after the end, and in no served segment are OFFSET_OUT_OF_RANGE. Offsets of a quarantined
segment or of a hole are CORRUPT_MESSAGE; so is the end of the archive if a quarantined segment, a hole or a segment
that is gone begins there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coldlog.archive.stores.without_waiting import check_may_wait
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.model.transactions import AbortedTransaction
from coldlog.records.aborted_transactions import NOTHING_ABORTED, AbortedTransactions
from coldlog.records.fetch.archive_tables import ArchivedPartition, ArchiveTables
from coldlog.records.source.archived_log import BatchPlaces, ServedSegment
from coldlog.records.source.data_loss import LostEnd

_END = np.iinfo(np.int64).max
_MOST_COMPARED = 10_000
"""Aborted transactions that an event loop compares: some ten microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Consecutive batches of one log to read at once, which records count, and at which offset a reader continues.

    For a segment at sidecar depth these are intervals until the log is read (`interval_slices`)."""

    request: FetchRequest
    served: ServedSegment
    batches: BatchPlaces
    bounds: RecordBounds
    aborted: AbortedTransactions
    next_offset: int
    ends: PartitionEnds

    @property
    def position(self) -> int:
        """Return where the slice begins in the log."""
        return int(self.batches.position[0])

    @property
    def size_bytes(self) -> int:
        """Return its bytes of the log."""
        return int(self.batches.position[-1] + self.batches.size_bytes[-1]) - self.position

    def overlapping_aborts(self) -> list[AbortedTransaction]:
        """Return, to readers of committed records, the aborted transactions that overlap the batches."""
        last_offset = min(int(self.batches.last_offset[-1]), self.bounds.to_offset)
        return self.aborted.between(int(self.batches.base_offset[0]), last_offset).rows()

    def first_batches(self, count: int) -> LogSlice:
        """Return the same slice with only so many batches."""
        fewer = self.batches.slice(0, count)
        return replace(self, batches=fewer, next_offset=int(fewer.last_offset[-1]) + 1)


def plan_slice(tables: ArchiveTables, request: FetchRequest) -> LogSlice | FetchAnswer:
    """Return what is to be read, or the answer if there is nothing to read."""
    archived = tables.partition(request.topic, request.partition)
    if archived is None:
        return FetchFailure(
            error=FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            message=f"the archive has no partition {request.topic}-{request.partition}",
        )
    ends, offset = archived.ends, request.offset
    if not ends.log_start_offset <= offset < ends.end_offset:
        return _outside(tables, archived, request)
    until = ends.readable_end(is_committed=request.is_committed)
    undecided = archived.undecided if request.is_committed else ()
    for begin, end in undecided:
        if begin <= offset <= end and offset < until:
            return _undecided(tables, archived, request, begin, end)
    until = min([until, *(begin for begin, _ in undecided if offset < begin)])
    number = archived.find_number(offset)
    while offset < until:
        if number < 0 or archived.segments[number].to_offset < offset:
            return _unserved(tables, archived, request, offset, number)
        found = _plan_in_segment(tables, archived, request, archived.segments[number], until)
        if isinstance(found, LogSlice):
            return found
        offset, number = found, archived.find_number(found)
    return FetchedRecords(records=(), next_offset=offset, ends=ends, read_bytes=0)


def range_text(ends: PartitionEnds) -> str:
    """Describe the offsets that can be fetched, for messages."""
    if ends.log_start_offset >= ends.end_offset:
        return f"the archive has no offsets, and ends at {ends.end_offset}"
    return f"the archive has offsets {ends.log_start_offset} to {ends.end_offset - 1}"


def starting_at(ends: PartitionEnds, offset: int) -> PartitionEnds:
    """Return ends whose log starts at the offset, because everything before it is missing."""
    return replace(ends, log_start_offset=offset, last_stable_offset=max(offset, ends.last_stable_offset))


def _plan_in_segment(
    tables: ArchiveTables, archived: ArchivedPartition, request: FetchRequest, served: ServedSegment, until: int
) -> LogSlice | int:
    """Return the slice, or the offset at which to continue if the segment has no further batch."""
    batches = tables.batches(served)
    last = min(served.to_offset, until - 1)
    first = int(np.searchsorted(batches.last_offset, request.offset))
    stop = int(np.searchsorted(batches.base_offset, last, side="right"))
    if first >= stop:
        return last + 1
    within = batches.slice(first, stop)
    until_bytes = min(int(within.position[0]) + request.max_bytes, _END)
    begun = within.slice(0, int(np.searchsorted(within.position, until_bytes, side="right")))
    count = max(1, int(np.searchsorted(begun.end, until_bytes, side="right")))
    chosen = within.slice(0, count)
    is_all = first + count == stop
    return LogSlice(
        request=request,
        served=served,
        batches=chosen,
        bounds=RecordBounds(from_offset=max(request.offset, served.from_offset), to_offset=last),
        aborted=_aborted(tables, archived, chosen, last) if request.is_committed else NOTHING_ABORTED,
        next_offset=last + 1 if is_all else int(chosen.last_offset[-1]) + 1,
        ends=archived.ends,
    )


def _aborted(
    tables: ArchiveTables, archived: ArchivedPartition, chosen: BatchPlaces, last_offset: int
) -> AbortedTransactions:
    """Return the aborted transactions that may have records in the batches; all of the partition are looked at."""
    aborted = tables.aborted(archived)
    if len(aborted) > _MOST_COMPARED:
        check_may_wait()
    return aborted.between(int(chosen.base_offset[0]), last_offset)


def _outside(tables: ArchiveTables, archived: ArchivedPartition, request: FetchRequest) -> FetchAnswer:
    """Answer for an offset below the log start, or at or after the end."""
    ends = archived.ends
    if request.offset >= ends.end_offset:
        quarantined = tables.find_quarantined(archived, ends.end_offset, request.offset)
        if quarantined is not None:
            return FetchFailure(
                error=FetchErrorCode.CORRUPT_MESSAGE,
                message=f"{request}: {range_text(ends)}; segment {quarantined.segment_id}, which begins at offset "
                f"{quarantined.start_offset}, is in quarantine: {quarantined.why}",
                ends=ends,
            )
        if archived.segments and archived.segments[-1].end_position is not None:
            return _in_hole(archived, request, len(archived.segments) - 1, ends.end_offset)
        if archived.lost_end is not None and archived.lost_end.has(request.offset):
            return _at_lost_end(archived, request, archived.lost_end)
    if request.offset == ends.end_offset:
        return FetchedRecords(records=(), next_offset=request.offset, ends=ends, read_bytes=0)
    return FetchFailure(
        error=FetchErrorCode.OFFSET_OUT_OF_RANGE,
        message=f"{request}: {range_text(ends)}",
        ends=ends,
    )


def _at_lost_end(archived: ArchivedPartition, request: FetchRequest, lost_end: LostEnd) -> FetchFailure:
    """Answer for an offset that the archive had and has lost at its end. The log has it, so it is not out of range: a
    consumer must not reset its position."""
    first, until = lost_end
    lost = f"{first} and later ones" if until is None else f"{first} to {until - 1}"
    return FetchFailure(
        error=FetchErrorCode.CORRUPT_MESSAGE,
        message=f"{request}: {range_text(archived.ends)}; offsets {lost} are lost: they are in no served segment "
        "(coldlog.archive_problems says why)",
        ends=archived.ends,
    )


def _undecided(
    tables: ArchiveTables, archived: ArchivedPartition, request: FetchRequest, begin: int, end: int
) -> FetchFailure:
    """Answer readers of committed records for an offset before a gap."""
    gap = _unserved(tables, archived, request, end + 1, archived.find_number(end))
    message = f"{gap.message}; records from {begin} on may belong to a transaction that was aborted there"
    return replace(gap, message=message)


def _unserved(
    tables: ArchiveTables, archived: ArchivedPartition, request: FetchRequest, offset: int, before: int
) -> FetchFailure:
    """Answer for an offset between served segments; `before` is the number of the segment before it."""
    segments = archived.segments
    from_offset = segments[before].from_offset + 1 if before >= 0 else 0
    quarantined = tables.find_quarantined(archived, from_offset, offset)
    following = segments[before + 1].from_offset if before + 1 < len(segments) else archived.ends.end_offset
    advice = f"the next archived offset is {following}"
    # Nothing below the first served segment can be read, whatever the log start says.
    ends = archived.ends if before >= 0 else starting_at(archived.ends, following)
    if quarantined is not None:
        return FetchFailure(
            error=FetchErrorCode.CORRUPT_MESSAGE,
            message=f"{request}: segment {quarantined.segment_id}, which begins at offset "
            f"{quarantined.start_offset}, is in quarantine: {quarantined.why}; {advice}",
            ends=ends,
            resume_offset=following,
        )
    is_after_part = before >= 0 and segments[before].end_position is not None
    if is_after_part or (before + 1 < len(segments) and segments[before + 1].position > 0):
        return replace(_in_hole(archived, request, before, following), ends=ends)
    return FetchFailure(
        error=FetchErrorCode.OFFSET_OUT_OF_RANGE,
        message=f"{request}: {range_text(ends)}, and no served segment has {offset}; {advice} "
        "(coldlog.archive_problems says why)",
        ends=ends,
        resume_offset=following,
    )


def _in_hole(archived: ArchivedPartition, request: FetchRequest, before: int, following: int) -> FetchFailure:
    """Answer for an offset that a damaged log has lost, after the part with the number `before`."""
    is_after_part = before >= 0 and archived.segments[before].end_position is not None
    part = archived.segments[before if is_after_part else before + 1]
    position = part.end_position if is_after_part else 0
    return FetchFailure(
        error=FetchErrorCode.CORRUPT_MESSAGE,
        message=f"{request}: the log of segment {part.segment.segment_id} is damaged from byte {position} on "
        f"(coldlog.segments.holes says how); the next archived offset is {following}",
        ends=archived.ends,
        resume_offset=following,
    )
