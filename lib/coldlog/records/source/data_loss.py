"""Report offsets that are asked for, and lost.

These are offsets below the log start, between served segments, and after the end. A reading up to `latest` also asks
for the end of the log that the archive had and has lost. The log start may also be unknown, so that records may have
been deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coldlog.errors import UsageError
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.records.source.archived_log import ArchivedLogs, ServedSegment
from coldlog.records.source.log_ends import LogEnds
from coldlog.records.source.options import TopicPartition

_SHOWN = 5
_UNSERVED = "are in no served segment; see coldlog.archive_problems"
LEFT = "left the log directory and are not indexed; if they were archived, run run_pipeline"
_UNDECIDED = "may belong to a transaction that was aborted in offsets which are in no served segment"

_Lost = tuple[int, int | None, str]
"""The first lost offset, the one after the last (None: it is not known), and why."""


class LostEnd(NamedTuple):
    """Offsets at the end of the log that are lost: the first, and the one after the last; None: it is not known."""

    first: int
    until: int | None

    def between(self, start: int, last: int) -> LostEnd | None:
        """Return those of them between the offsets, both inclusive; None if there are none."""
        first = max(start, self.first)
        if first > last or (self.until is not None and first >= self.until):
            return None
        return LostEnd(first, None if self.until is None else min(self.until, last + 1))

    def has(self, offset: int) -> bool:
        """Return whether the offset is one of them."""
        return offset >= self.first and (self.until is None or offset < self.until)


def require_known_start(place: TopicPartition, facts: PartitionFacts) -> None:
    """Raise if records that were deleted cannot be told from the others."""
    if not facts.is_log_start_known:
        raise UsageError(
            f"records of {place[0]}-{place[1]} may have been deleted: the newest leader epoch checkpoint is damaged, "
            f"so the log starts at offset {facts.first_offset} or later; run the pipeline when there is a newer "
            "segment, or supply the log start by log_start_offsets.uri; failOnDataLoss=false reads all records"
        )


def require_all(
    place: TopicPartition,
    start: int,
    until: int,
    segments: Sequence[ServedSegment],
    ends: LogEnds,
    undecided: Sequence[tuple[int, int]],
    lost_end: LostEnd | None,
) -> None:
    """Raise if an offset is not served or, for readers of committed records, not decided; or if the end is lost."""
    lost = _find_lost(start, until, segments, ends, undecided)
    if lost_end is not None:
        lost.append((*lost_end, _UNSERVED))
    if lost:
        raise UsageError(_missing_text(place, lost, ends))


def _find_lost(
    start: int, until: int, segments: Sequence[ServedSegment], ends: LogEnds, undecided: Sequence[tuple[int, int]]
) -> list[_Lost]:
    lost: list[_Lost] = []
    after_end = "are not archived" if ends.local_first is None else "are not in the log yet"
    if ends.is_open:
        after_end = "are after a transaction that is open where the archive ends"
        if ends.local_first is not None:
            after_end = "are after a transaction that is open"
    if start < ends.first:
        lost.append((start, min(until, ends.first), "are below the log start"))
    at = max(start, ends.first)
    for segment in segments:
        lost += _why_lost(at, segment.from_offset, undecided)
        at = max(at, segment.to_offset + 1)
    lost += _why_lost(at, min(until, ends.end, ends.archive_end), undecided)
    if ends.gap is not None and max(start, ends.gap[0]) < min(until, ends.end, ends.gap[1]):
        lost.append((max(start, ends.gap[0]), min(until, ends.end, ends.gap[1]), LEFT))
    if until > max(start, ends.end):
        lost.append((max(start, ends.end), until, after_end))
    return lost


def lost_end_text(place: TopicPartition, lost_end: LostEnd, ends: LogEnds) -> str:
    """Describe the end of the log that is lost, as an error says it."""
    return _missing_text(place, [(*lost_end, _UNSERVED)], ends)


def find_lost_end(logs: ArchivedLogs, place: TopicPartition, facts: PartitionFacts) -> LostEnd | None:
    """Return the offsets after the archive's end that it had and has lost: of segments that cannot be read, or of a
    damaged log."""
    if facts.log_end_offset == facts.local_start_offset:
        return None
    end = max(facts.first_offset, facts.local_start_offset)
    lost = [
        (max(first, end), last)
        for first, last in logs.lost_segments(*place, facts.topic_id)
        if (first if last is None else last) >= end
    ]
    served = logs.served_segments(*place, facts.topic_id)
    if served and served[-1].end_position is not None and served[-1].to_offset < end:
        lost.append((end, None))
    if not lost:
        return None
    lasts = [last for _, last in lost if last is not None]
    return LostEnd(min(first for first, _ in lost), max(lasts) + 1 if len(lasts) == len(lost) else None)


def _missing_text(place: TopicPartition, lost: Sequence[_Lost], ends: LogEnds) -> str:
    missing = "; ".join(
        f"{first} {'and later ones' if end is None else f'to {end - 1}'} {why}" for first, end, why in lost[:_SHOWN]
    )
    return (
        f"offsets of {place[0]}-{place[1]} are missing: {missing}; {ends.description}; failOnDataLoss=false reads what "
        "there is"
    )


def _why_lost(start: int, until: int, undecided: Sequence[tuple[int, int]]) -> list[_Lost]:
    """Explain the offsets that no served segment has."""
    lost: list[tuple[int, int, str]] = []
    for begin, end in undecided:
        first, stop = max(start, begin), min(until, end + 1)
        if first < stop:
            lost += [(start, first, _UNSERVED), (first, stop, _UNDECIDED)]
            start = stop
    lost.append((start, until, _UNSERVED))
    return [(first, stop, why) for first, stop, why in lost if first < stop]
