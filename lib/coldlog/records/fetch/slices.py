"""slices: which bytes of which log answer a fetch?

By Kafka's rules for a read of the remote tier: from the first batch on that ends at or behind the offset, whole batches
of one segment up to `max_bytes`, the first one however large it is. The offset may lie inside that batch, or in none
(compaction). Behind a segment's last batch the next segment goes on. Readers of committed records get nothing from the
last stable offset on, and an error from the first offset of a transaction on that may have been aborted in a gap.

Offsets below the log start, behind the end, and in no served segment are OFFSET_OUT_OF_RANGE; those that a quarantined
segment holds are CORRUPT_MESSAGE, and so is the end of the archive where a quarantined segment begins there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.records.fetch.archive_tables import ArchivedPartition, ArchiveTables
from coldlog.records.source.archived_log import NOTHING_ABORTED, AbortedTransactions, BatchPlaces, ServedSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Consecutive batches of one log that are read at once, which records count, and where a reader goes on."""

    request: FetchRequest
    served: ServedSegment
    batches: BatchPlaces
    bounds: RecordBounds
    aborted: AbortedTransactions
    next_offset: int
    ends: PartitionEnds

    @property
    def position(self) -> int:
        """Where it begins in the log."""
        return int(self.batches.position[0])

    @property
    def size_bytes(self) -> int:
        """Of the log."""
        return int(self.batches.size_bytes.sum())

    def first_batches(self, count: int) -> LogSlice:
        """The same fetch of that many batches."""
        fewer = self.batches.where(np.arange(len(self.batches)) < count)
        return replace(self, batches=fewer, next_offset=int(fewer.last_offset[-1]) + 1)


def plan_slice(tables: ArchiveTables, request: FetchRequest) -> LogSlice | FetchAnswer:
    """What is to be read; an answer where nothing is."""
    own = tables.partition(request.topic, request.partition)
    if own is None:
        return FetchFailure(
            error=FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            message=f"the archive holds no partition {request.topic}-{request.partition}",
        )
    ends, offset = own.ends, request.offset
    if not ends.log_start_offset <= offset < ends.end_offset:
        return _outside(tables, own, request)
    until = ends.readable_end(is_committed=request.is_committed)
    undecided = own.undecided if request.is_committed else ()
    for begin, end in undecided:
        if begin <= offset <= end and offset < until:
            return _undecided(tables, own, request, begin, end)
    until = min([until, *(begin for begin, _ in undecided if offset < begin)])
    number = own.find_number(offset)
    while offset < until:
        if number < 0 or own.segments[number].to_offset < offset:
            return _unserved(tables, own, request, offset, number)
        found = _plan_in_segment(tables, own, request, own.segments[number], until)
        if isinstance(found, LogSlice):
            return found
        offset, number = found, own.find_number(found)
    return FetchedRecords(records=(), next_offset=offset, ends=ends, read_bytes=0)


def range_text(ends: PartitionEnds) -> str:
    """The offsets that may be asked for, for people."""
    if ends.log_start_offset >= ends.end_offset:
        return f"the archive has no offsets, and ends at {ends.end_offset}"
    return f"the archive has offsets {ends.log_start_offset} to {ends.end_offset - 1}"


def starting_at(ends: PartitionEnds, offset: int) -> PartitionEnds:
    """The same where what lies before the offset is gone."""
    return replace(ends, log_start_offset=offset, last_stable_offset=max(offset, ends.last_stable_offset))


def _plan_in_segment(
    tables: ArchiveTables, own: ArchivedPartition, request: FetchRequest, served: ServedSegment, until: int
) -> LogSlice | int:
    """The slice, or the offset to go on at where no batch of the segment is left."""
    batches = tables.batches(served)
    last = min(served.to_offset, until - 1)
    first = int(np.searchsorted(batches.last_offset, request.offset))
    stop = int(np.searchsorted(batches.base_offset, last, side="right"))
    if first >= stop:
        return last + 1
    sizes = np.cumsum(batches.size_bytes[first:stop])
    count = max(1, int(np.searchsorted(sizes, request.max_bytes, side="right")))
    numbers = np.arange(len(batches))
    chosen = batches.where((numbers >= first) & (numbers < first + count))
    is_all = first + count == stop
    return LogSlice(
        request=request,
        served=served,
        batches=chosen,
        bounds=RecordBounds(from_offset=max(request.offset, served.from_offset), to_offset=last),
        aborted=(
            tables.aborted(own).between(int(chosen.base_offset[0]), last) if request.is_committed else NOTHING_ABORTED
        ),
        next_offset=last + 1 if is_all else int(chosen.last_offset[-1]) + 1,
        ends=own.ends,
    )


def _outside(tables: ArchiveTables, own: ArchivedPartition, request: FetchRequest) -> FetchAnswer:
    """Of an offset below the log start, or at the end or behind it."""
    ends = own.ends
    if request.offset >= ends.end_offset:
        quarantined = tables.find_quarantined(own, ends.end_offset, request.offset)
        if quarantined is not None:
            return FetchFailure(
                error=FetchErrorCode.CORRUPT_MESSAGE,
                message=f"{request}: {range_text(ends)}; segment {quarantined.segment_id}, which begins at offset "
                f"{quarantined.start_offset}, is in quarantine: {quarantined.why}",
                ends=ends,
            )
    if request.offset == ends.end_offset:
        return FetchedRecords(records=(), next_offset=request.offset, ends=ends, read_bytes=0)
    return FetchFailure(
        error=FetchErrorCode.OFFSET_OUT_OF_RANGE,
        message=f"{request}: {range_text(ends)}",
        ends=ends,
    )


def _undecided(
    tables: ArchiveTables, own: ArchivedPartition, request: FetchRequest, begin: int, end: int
) -> FetchFailure:
    """Of an offset before a gap, for readers of committed records."""
    gap = _unserved(tables, own, request, end + 1, own.find_number(end))
    told = f"{gap.message}; records from {begin} on may belong to a transaction that was aborted there"
    return replace(gap, message=told)


def _unserved(
    tables: ArchiveTables, own: ArchivedPartition, request: FetchRequest, offset: int, before: int
) -> FetchFailure:
    """Of an offset between served segments; `before` is the number of the one before it."""
    from_offset = own.segments[before].from_offset + 1 if before >= 0 else 0
    quarantined = tables.find_quarantined(own, from_offset, offset)
    following = own.segments[before + 1].from_offset if before + 1 < len(own.segments) else own.ends.end_offset
    behind = f"archived offsets go on at {following}"
    # Below the first segment that is left, nobody can read what the log is said to begin with.
    ends = own.ends if before >= 0 else starting_at(own.ends, following)
    if quarantined is not None:
        return FetchFailure(
            error=FetchErrorCode.CORRUPT_MESSAGE,
            message=f"{request}: segment {quarantined.segment_id}, which begins at offset "
            f"{quarantined.start_offset}, is in quarantine: {quarantined.why}; {behind}",
            ends=ends,
            resume_offset=following,
        )
    return FetchFailure(
        error=FetchErrorCode.OFFSET_OUT_OF_RANGE,
        message=f"{request}: {range_text(ends)}, and no served segment has {offset}; {behind} "
        "(coldlog.archive_problems says why)",
        ends=ends,
        resume_offset=following,
    )
