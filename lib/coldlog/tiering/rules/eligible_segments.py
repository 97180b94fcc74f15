"""eligible_segments: which segments of a log are to be copied next?

As Kafka's RLMCopyTask.candidateLogSegments has it: not the active segment; one that ends below the last stable offset
(the next one begins at or below it), because the tier holds nothing that may be taken back or is undecided; the
earliest first, and of one partition one by one, so that what is copied has no gap at its end.

A segment is passed over where the offsets from the log start on are covered by segments that were copied once, as far
as they follow the lineage of the log's leaders (`leader_epoch_lineage`): what a deposed leader copied beyond its end is
copied again. One that is covered in part is copied whole, as Kafka does. Kafka starts behind the highest offset of the
lineage that was copied; here a gap below that is closed too. A segment that was deleted after it was copied counts
while nothing before it is left in the tier, or what has expired would be copied anew for as long as it is local. Expiry
takes the earliest first: a segment that is missing behind one that is there was lost otherwise, and is copied again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coldlog.index.leader_epoch_lineage import LeaderEpochLineage
from coldlog.tiering.rules.remote_segments import RemoteSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """What a log directory says of a partition: base offsets of its segments, ascending, the last of the active one."""

    base_offsets: tuple[int, ...]
    log_start_offset: int
    last_stable_offset: int
    lineage: LeaderEpochLineage


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleSegment:
    """A segment to copy, and where the one behind it begins."""

    base_offset: int
    next_offset: int


def plan_copies(log: LocalLog, remote: Iterable[RemoteSegment]) -> list[EligibleSegment]:
    """The segments to copy, the earliest first."""
    covered = _covered_ranges(log.lineage, remote)
    closed = zip(log.base_offsets[:-1], log.base_offsets[1:], strict=True)
    return [
        EligibleSegment(base_offset=base, next_offset=following)
        for base, following in closed
        if log.log_start_offset < following <= log.last_stable_offset
        and not _is_covered(max(base, log.log_start_offset), following, covered)
    ]


def _covered_ranges(lineage: LeaderEpochLineage, remote: Iterable[RemoteSegment]) -> list[tuple[int, int]]:
    """Disjoint ranges of offsets, the end not among them, ascending."""
    found: list[tuple[int, int]] = []
    is_some_left = False
    for each in sorted((each for each in remote if each.was_copied), key=lambda each: each.start_offset):
        last = lineage.find_last_offset_within(each.leader_epochs, each.end_offset)
        if last is None or last < each.start_offset or (each.is_deleted and is_some_left):
            continue
        is_some_left |= not each.is_deleted
        if found and each.start_offset <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], last + 1)
        else:
            found.append((each.start_offset, last + 1))
    return found


def _is_covered(start: int, end: int, covered: Sequence[tuple[int, int]]) -> bool:
    return any(first <= start and end <= behind for first, behind in covered)
