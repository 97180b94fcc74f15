"""Find the offsets that lookups pass over, because no segment serves them.

A lookup finds the first record at or after a time T among the served offsets. The answer is exact if no offset that is
passed over can hold an earlier match. Each range of passed offsets has a bound, the largest timestamp that a record in
it can have. A range whose bound is below T holds no match. There are three kinds of ranges:

1. Between two served segments: whatever is missing. The bound is known if announced segments cover the whole range.
2. Before the first served segment: from the log start, if a user or events say where it is; otherwise from the first
   segment that is not read. A leader epoch checkpoint may be older than the last deletion, so it says nothing here
   (`log_start.start_at_first_segment`).
3. After the last served segment: the segments that are not read yet, or cannot be read.

The bound is the maximum timestamp that the broker announced for a segment. A broker announces the time of the file
instead if no record of the segment has a timestamp of 0 or more (Kafka 4.2, `LogSegment.largestTimestamp`). The time of
the file is then larger than all timestamps, so it is a bound too. Without an event the bound is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadSegment:
    """A copied segment without an index: pending, damaged, incomplete or lost. None: not announced."""

    start_offset: int
    end_offset: int | None
    max_timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnservedRange:
    """Offsets that are passed over, both inclusive. `to_offset` None: the end is unknown. `max_timestamp_bound_ms`
    None: a record in the range can have any timestamp."""

    from_offset: int
    to_offset: int | None
    max_timestamp_bound_ms: int | None

    def reaches_past(self, last_served_offset: int | None) -> bool:
        """Offsets after the last served one are passed over. None: no offset is served."""
        return last_served_offset is None or self.to_offset is None or self.to_offset > last_served_offset


def find_unserved_ranges(
    served: Sequence[tuple[int, int]], unread: Sequence[UnreadSegment], log_start_offset: int | None
) -> list[UnservedRange]:
    """Return the ranges in the order of their offsets.

    `served` are first and last offsets in ascending order. `log_start_offset` is None if it is not certain.
    """
    starts = sorted({segment.start_offset for segment in unread} | {first for first, _ in served})
    ends = {**{first: after - 1 for first, after in pairwise(starts)}, **dict(served)}
    known = sorted((_with_end(segment, ends) for segment in unread), key=lambda segment: segment.start_offset)
    least = 0 if log_start_offset is None else log_start_offset
    known = [segment for segment in known if segment.end_offset is None or segment.end_offset >= least]
    ranges = []
    if served:
        first_unread = max(least, known[0].start_offset) if known else served[0][0]
        ranges.append((first_unread if log_start_offset is None else log_start_offset, served[0][0] - 1))
        ranges += [(before[1] + 1, after[0] - 1) for before, after in pairwise(served)]
        trailing = [segment for segment in known if segment.end_offset is None or segment.end_offset > served[-1][1]]
        after_served: int | None = served[-1][1] + 1
    else:
        trailing, after_served = known, None
    found = [_bounded(first, last, known) for first, last in ranges if first <= last]
    if trailing:
        first = max(least, trailing[0].start_offset) if after_served is None else after_served
        last_offsets = [segment.end_offset for segment in trailing if segment.end_offset is not None]
        is_end_known = len(last_offsets) == len(trailing)
        found.append(_bounded(first, max(last_offsets) if is_end_known else None, known))
    return found


def ranges_with_rising_bounds(ranges: Sequence[UnservedRange], last_served_offset: int | None) -> list[UnservedRange]:
    """Return the ranges whose bound is larger than all before, and the range after the last served offset.

    The first range that can hold a match to T is one of them, for every T. After an unknown bound there is none, except
    the range at the end, which shows that the last served offset is not the last archived one. It gets the bound of the
    range before it if that is larger.
    """
    rising: list[UnservedRange] = []
    for each in ranges:
        bound = each.max_timestamp_bound_ms
        highest = rising[-1].max_timestamp_bound_ms if rising else None
        if bound is None or highest is None or bound > highest:
            rising.append(each)
        if bound is None:
            break
    at_end = [each for each in ranges[-1:] if each.reaches_past(last_served_offset)]
    if at_end and not rising[-1].reaches_past(last_served_offset):
        rising.append(replace(at_end[0], max_timestamp_bound_ms=rising[-1].max_timestamp_bound_ms))
    return rising


def _with_end(segment: UnreadSegment, ends: Mapping[int, int]) -> UnreadSegment:
    """Without an announced end, a segment ends where the next one begins: a log has no gaps between segments. If a
    served one begins at the same offset, they are two uploads of one segment, and end alike."""
    if segment.end_offset is not None:
        return segment
    return replace(segment, end_offset=ends.get(segment.start_offset))


def _bounded(first: int, last: int | None, unread: Sequence[UnreadSegment]) -> UnservedRange:
    """Return the range with the bound of the segments that cover it, `unread` in the order of start offsets."""
    bounds: list[int | None] = []
    covered_to = first - 1
    for segment in unread:
        is_outside = segment.end_offset is not None and segment.end_offset < first
        if is_outside or (last is not None and segment.start_offset > last):
            continue
        if segment.start_offset > covered_to + 1:
            break
        bounds.append(segment.max_timestamp_ms)
        covered_to = covered_to if segment.end_offset is None else max(covered_to, segment.end_offset)
    is_covered = last is not None and covered_to >= last and None not in bounds
    bound = max((bound for bound in bounds if bound is not None), default=None) if is_covered else None
    return UnservedRange(from_offset=first, to_offset=last, max_timestamp_bound_ms=bound)
