"""Decide whether the log start that expiry has set is still one of the partition's log.

Expiry moves the log start to the end of the segment that it deletes. If a replica is elected uncleanly whose log ends
before that, it writes new records at lower offsets. Kafka keeps the log start with each replica, so they are in its
log. The log start of the tier has to move back to where the log left the deleted segments.

All records of a later leader epoch are after those of the earlier ones. So a segment is in the log at most up to the
first offset of the next later epoch of the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from coldlog.index.leader_epoch_lineage import LeaderEpochLineage
from coldlog.tiering.rules.remote_segments import RemoteSegment


def find_valid_log_start(log_start: int, segments: Iterable[RemoteSegment], lineage: LeaderEpochLineage) -> int:
    """Return the log start, or a lower one if the log has left the segments that end at it. `segments` are those of the
    partition, also the deleted ones; `lineage` is not cut at the log start."""
    deleted = [each for each in segments if each.is_deleted and each.was_copied]
    ends = [_end_in_log(each, lineage) for each in deleted]
    is_left = any(each.end_offset + 1 == log_start for each in deleted) and log_start not in ends
    return min(log_start, max(ends)) if is_left else log_start


def _end_in_log(segment: RemoteSegment, lineage: LeaderEpochLineage) -> int:
    """Return the offset after the last one that may be in the log."""
    following = lineage.find_next(max(epoch for epoch, _ in segment.leader_epochs))
    end = segment.end_offset + 1
    return end if following is None else min(end, following[1])
