"""Find where the log of a partition starts, from all that its archive knows of it.

The log start offset is the highest one of three sources: what a user supplied, the ends of segments that were deleted,
and the first leader epoch of the newest checkpoint. If the newest copied segment has lost its checkpoint, the log may
start later than that. A checkpoint is as old as the upload of its segment: if the first segment that is known begins
after its first leader epoch, what was before it was deleted since then, as far as anybody can know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage
from coldlog.index.segment_facts import SegmentFacts
from coldlog.index.served_ranges import NO_LEADER_EPOCH
from coldlog.index.unserved_ranges import UnservedRange


class LogStartSource(StrEnum):
    """The source of a log start offset; the `log_start_source` column of `partition_metadata`."""

    SUPPLIED = "supplied"
    DELETED_SEGMENTS = "deleted_segments"
    LEADER_EPOCHS = "leader_epochs"
    CHECKPOINT_LOST = "checkpoint_lost"
    """The log starts there or later: the checkpoint that would tell is damaged."""
    FIRST_SEGMENT = "first_segment"
    """Nothing is known of the offsets from the first leader epoch to there: they were deleted, or are lost."""


@dataclass(frozen=True, slots=True)
class LogStart:
    """The log start offset of a partition, and its source."""

    offset: int
    source: LogStartSource


def find_log_start(
    members: Sequence[SegmentFacts], supplied: int | None, checkpoint: Sequence[EpochStart]
) -> LogStart | None:
    """The highest log start offset of all sources.

    Before a broker deletes a segment, it increases the log start offset to the segment's end. Of a segment that leaves
    the lineage, because a deposed leader wrote it, only the part within the lineage counts: a broker deletes it when
    its epochs are no longer in the checkpoint (deleteLogSegmentsDueToLeaderEpochCacheTruncation), so the log starts
    after that part, and maybe before the segment's end. With the log start offset a broker also moves the first leader
    epoch of the checkpoint (truncateFromStart). That epoch does not count if earlier records have no leader epoch (an
    old message format).
    """
    lineage = LeaderEpochLineage.of(checkpoint)
    found = [] if supplied is None else [LogStart(supplied, LogStartSource.SUPPLIED)]
    found += [
        LogStart(last_offset + 1, LogStartSource.DELETED_SEGMENTS)
        for member in members
        if member.is_deleted and (last_offset := _last_offset_of_log(lineage, member)) is not None
    ]
    if lineage.entries and not any(_has_no_epochs(member) for member in members):
        found.append(LogStart(lineage.entries[0][1], LogStartSource.LEADER_EPOCHS))
    highest = max(found, key=lambda start: start.offset, default=None)
    newest = _newest_copied(members)
    if newest is None or not newest.hides_log_start:
        return highest
    if highest is None:
        first = min((member.start_offset for member in members if member.is_usable), default=newest.start_offset)
        return LogStart(first, LogStartSource.CHECKPOINT_LOST)
    return (
        highest
        if highest.source is LogStartSource.SUPPLIED
        else replace(highest, source=LogStartSource.CHECKPOINT_LOST)
    )


def _last_offset_of_log(lineage: LeaderEpochLineage, member: SegmentFacts) -> int | None:
    """The last offset up to which a segment has records of the log; None if it has none. If its first epoch has ended
    before it, the end of this epoch: `indexing.publish.settled_deletions` relies on it."""
    if not lineage.entries:
        return member.end_offset
    return lineage.find_end_within(member.leader_epochs, member.end_offset)


def start_at_first_segment(
    log_start: LogStart | None, first_served: int | None, members: Iterable[SegmentFacts]
) -> LogStart | None:
    """Return the log start, moved to the first segment that is known if only a checkpoint says that it is before it.

    Known are the segments that serve, and the ones that should but are not read: pending, damaged or lost.
    """
    if log_start is None or first_served is None or log_start.source is not LogStartSource.LEADER_EPOCHS:
        return log_start
    unread = [member for member in members if member.is_unread and not 0 <= member.end_offset < log_start.offset]
    first = min([first_served, *(member.start_offset for member in unread)])
    return log_start if first <= log_start.offset else LogStart(first, LogStartSource.FIRST_SEGMENT)


def _has_no_epochs(member: SegmentFacts) -> bool:
    return member.is_usable and any(epoch == NO_LEADER_EPOCH for epoch, _ in member.leader_epochs)


def epochs_without_checkpoint(
    members: Iterable[SegmentFacts], checkpoint: Sequence[EpochStart]
) -> Iterator[EpochStart]:
    """Yield the epochs after the newest checkpoint, from the batches of segments whose own checkpoint is lost, and from
    the events of segments that are lost themselves: the leader epoch of a log never goes back."""
    newest = checkpoint[-1][0] if checkpoint else None
    for member in sorted(members, key=lambda each: (each.start_offset, each.segment_id)):
        is_without = member.is_unread or (member.is_usable and member.hides_log_start)
        if is_without and newest is not None:
            for epoch, offset in member.leader_epochs:
                if epoch > newest:
                    yield epoch, offset
                    newest = epoch


def hidden_log_start(members: Iterable[SegmentFacts], log_start: LogStart | None) -> list[UnservedRange]:
    """Return the offsets in which the log may start, if the newest checkpoint is lost and no user supplied the start.

    Records below the log start were deleted: an answer there is not exact, and neither is one after them.
    """
    newest = _newest_copied(members)
    if newest is None or log_start is None or log_start.source is not LogStartSource.CHECKPOINT_LOST:
        return []
    first = log_start.offset
    last = newest.end_offset if newest.end_offset >= first else None
    return [UnservedRange(from_offset=first, to_offset=last, max_timestamp_bound_ms=None)]


def _newest_copied(members: Iterable[SegmentFacts]) -> SegmentFacts | None:
    copied = [member for member in members if member.is_usable or member.is_unread]
    return max(copied, key=lambda member: (member.start_offset, member.end_offset, member.segment_id), default=None)
