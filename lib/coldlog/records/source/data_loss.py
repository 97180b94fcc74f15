"""Report offsets that are asked for, and lost.

These are offsets below the log start, between served segments, and after the end. The log start may also be unknown, so
that records may have been deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from coldlog.errors import UsageError
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.records.source.archived_log import ServedSegment
from coldlog.records.source.log_ends import LogEnds
from coldlog.records.source.options import TopicPartition

_SHOWN = 5
_UNSERVED = "are in no served segment; see coldlog.archive_problems"
LEFT = "left the log directory and are not indexed; if they were archived, run run_pipeline"
_UNDECIDED = "may belong to a transaction that was aborted in offsets which are in no served segment"


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
) -> None:
    """Raise if an offset is not served or, for readers of committed records, not decided."""
    lost: list[tuple[int, int, str]] = []
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
    if lost:
        missing = "; ".join(f"{first} to {end - 1} {why}" for first, end, why in lost[:_SHOWN])
        raise UsageError(
            f"offsets of {place[0]}-{place[1]} are missing: {missing}; {ends.description}; failOnDataLoss=false "
            "reads what there is"
        )


def _why_lost(start: int, until: int, undecided: Sequence[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Explain the offsets that no served segment has."""
    lost = []
    for begin, end in undecided:
        first, stop = max(start, begin), min(until, end + 1)
        if first < stop:
            lost += [(start, first, _UNSERVED), (first, stop, _UNDECIDED)]
            start = stop
    lost.append((start, until, _UNSERVED))
    return [(first, stop, why) for first, stop, why in lost if first < stop]
