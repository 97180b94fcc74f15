"""Decide which offsets each segment of a partition serves.

Uploads may overlap: a copy and its retry, or segments of a deposed leader and of its successor. At most one segment
serves an offset. The rule, over the usable segments of one partition in the order of their start offsets:

1. Of two segments with the same start offset, the one with the higher last leader epoch is taken, then the longer one,
   then the one with the greater segment id; the other is `duplicate`.
2. A segment inside an already taken segment, without a higher epoch, is `duplicate`.
3. A segment that begins inside an already taken segment, without a lower epoch, cuts that segment: from this offset on,
   the new leader's log replaces its predecessor's.
4. A segment whose first leader epoch is lower than the last taken epoch is `older_leader_epoch`: epochs never decrease
   along a log, so a deposed leader wrote the segment. Epoch -1 is unknown and not compared.
5. Where two segments overlap and one of them has lost more offsets there, because its log is damaged, the other one
   serves these offsets, if neither has to serve on both sides of it. This holds for segments of the same lineage:
   others may have other records at these offsets.
6. A segment that ends before the log start offset is `below_log_start`; a segment that contains the log start offset
   serves from there on.

Kafka has the same result: it removes segments that a later upload covers from RemoteLogLeaderEpochState. For this it
uses the order of the events, which a listing does not have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

NO_LEADER_EPOCH = -1


class NotServedReason(StrEnum):
    """Why a segment answers no lookup; the `not_served_reason` column of `segments`."""

    DUPLICATE = "duplicate"
    OLDER_LEADER_EPOCH = "older_leader_epoch"
    BELOW_LOG_START = "below_log_start"
    OUTSIDE_LINEAGE = "outside_lineage"
    NOT_INDEXED = "not_indexed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A usable segment: its offsets (inclusive, up to where it leaves the lineage), and the first and last leader epoch
    of these offsets. `lost`: ranges of them (inclusive) that its log has lost, if it is known to be of the lineage."""

    segment_id: str
    start_offset: int
    end_offset: int
    first_leader_epoch: int
    last_leader_epoch: int
    lost: tuple[tuple[int, int], ...] = ()

    def count_lost(self, first: int, last: int) -> int:
        """Count the lost offsets between `first` and `last`."""
        return sum(max(0, min(to, last) - max(begin, first) + 1) for begin, to in self.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRange:
    """The offsets that one segment serves, `from_offset` to `to_offset` inclusive, or the reason why it serves none."""

    segment: Candidate
    from_offset: int
    to_offset: int
    reason: NotServedReason | None = None


def plan_served_ranges(segments: Iterable[Candidate], log_start_offset: int | None) -> list[ServedRange]:
    """One `ServedRange` per segment, in the order of start offsets; at most one of them serves a given offset."""
    taken: list[ServedRange] = []
    not_served: list[ServedRange] = []
    for segment in sorted(segments, key=_preference):
        last = taken[-1] if taken else None
        filled = None if last is None else _fill(last, segment)
        if filled is not None:
            taken[-1:] = [each for each in filled if each.reason is None]
            not_served += [each for each in filled if each.reason is not None]
            continue
        reason = _reason_against(last, segment)
        if reason is not None:
            not_served.append(_not_served(segment, reason))
            continue
        first = segment.start_offset
        if last is not None and last.to_offset >= first:
            del taken[-1]
            first = max(first, last.from_offset)
            if first > last.from_offset:
                taken.append(replace(last, to_offset=first - 1))
            else:  # it was to fill what an earlier one has lost
                not_served.append(_not_served(last.segment, NotServedReason.DUPLICATE))
        taken.append(ServedRange(segment=segment, from_offset=first, to_offset=segment.end_offset))
    started = [_from_log_start(served, log_start_offset) for served in taken]
    return sorted(started + not_served, key=lambda served: (served.segment.start_offset, served.segment.segment_id))


def count_gaps(ranges: Iterable[ServedRange]) -> int:
    """The number of served ranges that do not begin directly after the previous one."""
    served = [r for r in ranges if r.reason is None]
    return sum(after.from_offset != before.to_offset + 1 for before, after in pairwise(served))


def _preference(segment: Candidate) -> tuple[int, int, int, tuple[int, ...]]:
    """The sort key: start offsets ascend; of segments with the same start offset, the one to take is first."""
    greatest_id_first = tuple(-ord(character) for character in segment.segment_id)
    return segment.start_offset, -segment.last_leader_epoch, -segment.end_offset, greatest_id_first


def _reason_against(last: ServedRange | None, segment: Candidate) -> NotServedReason | None:
    if last is None:
        return None
    if last.segment.start_offset == segment.start_offset:
        return NotServedReason.DUPLICATE
    epochs_known = NO_LEADER_EPOCH not in (segment.first_leader_epoch, last.segment.last_leader_epoch)
    is_higher = epochs_known and segment.last_leader_epoch > last.segment.last_leader_epoch
    if segment.end_offset <= last.to_offset and not is_higher:
        return NotServedReason.DUPLICATE
    if epochs_known and segment.first_leader_epoch < last.segment.last_leader_epoch and not _continues(last, segment):
        return NotServedReason.OLDER_LEADER_EPOCH
    return None


def _continues(last: ServedRange, segment: Candidate) -> bool:
    """The segment overlaps the last taken one and does not end in a lower epoch. Then it may begin in an earlier epoch
    than the one in which the other ends, because the log does too."""
    return segment.start_offset <= last.to_offset and segment.last_leader_epoch >= last.segment.last_leader_epoch


def _fill(last: ServedRange, segment: Candidate) -> list[ServedRange] | None:
    """Divide two overlapping segments so that the one that has lost less there serves the offsets of both; None if it
    cannot, or already does."""
    first, end = max(segment.start_offset, last.from_offset), min(last.to_offset, segment.end_offset)
    lost, lost_by_last = segment.count_lost(first, end), last.segment.count_lost(first, end)
    added = ServedRange(segment=segment, from_offset=first, to_offset=segment.end_offset)
    if first > end or lost == lost_by_last:
        return None
    if segment.end_offset > last.to_offset:
        return None if lost < lost_by_last else [last, replace(added, from_offset=end + 1)]
    if lost > lost_by_last:
        return None
    if first > last.from_offset:
        return [replace(last, to_offset=first - 1), added] if end == last.to_offset else None
    rest = replace(last, from_offset=end + 1)
    return [added, rest if end < last.to_offset else _not_served(last.segment, NotServedReason.DUPLICATE)]


def _not_served(segment: Candidate, reason: NotServedReason) -> ServedRange:
    return ServedRange(segment=segment, from_offset=segment.start_offset, to_offset=segment.end_offset, reason=reason)


def _from_log_start(served: ServedRange, log_start_offset: int | None) -> ServedRange:
    if log_start_offset is None or served.from_offset >= log_start_offset:
        return served
    if served.to_offset < log_start_offset:
        return replace(served, reason=NotServedReason.BELOW_LOG_START)
    return replace(served, from_offset=log_start_offset)
