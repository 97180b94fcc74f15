"""Find which segments of a log are to be copied next.

The rule is that of Kafka's RLMCopyTask.candidateLogSegments. The active segment is not copied. A segment must end below
the last stable offset (the next segment begins at or below it), because the tier holds nothing that may be truncated or
is undecided. The earliest is copied first, and only one of a partition at a time, so that the copied part has no gap.

A segment is skipped if earlier copies cover its offsets from the log start on, as far as these copies follow the
lineage of the log's leaders (`leader_epoch_lineage`). What a deposed leader copied after its end is copied again. A
segment that is covered in part is copied whole, as in Kafka. Kafka starts after the highest copied offset of the
lineage; this rule also closes a gap below it.

Expired segments are not copied again while they are still local: nothing below the log start that expiry has set is
copied. All other deleted segments are, for example a copy that was cleaned up although it had just been finished. If
that log start is not known, a deleted segment counts as covered while the tier has nothing before it, because expiry
deletes the earliest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from coldlog.index.leader_epoch_lineage import LeaderEpochLineage
from coldlog.tiering.rules.remote_segments import RemoteSegment
from coldlog.tiering.rules.valid_log_start import find_valid_log_start


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLog:
    """The log directory's view of a partition. Base offsets ascend; the last one is that of the active segment."""

    base_offsets: tuple[int, ...]
    log_start_offset: int
    last_stable_offset: int
    lineage: LeaderEpochLineage


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleSegment:
    """A segment to copy, and the base offset of the next one."""

    base_offset: int
    next_offset: int


def plan_copies(
    log: LocalLog, remote: Sequence[RemoteSegment], find_log_start: Callable[[], int] | None = None
) -> list[EligibleSegment]:
    """Return the segments to copy, the earliest first. `find_log_start` returns the log start that expiry has set. It
    is asked only if a segment may have expired; None: it is not known."""
    if find_log_start is None:
        return _plan_uncovered(log, remote)
    existing = [segment for segment in remote if not segment.is_deleted]
    planned = _plan_uncovered(log, existing)
    last_deleted = max((each.end_offset for each in remote if each.is_deleted and each.was_copied), default=-1)
    if not planned or last_deleted < planned[0].base_offset:
        return planned
    log_start = max(log.log_start_offset, find_valid_log_start(find_log_start(), remote, log.lineage))
    return _plan_uncovered(replace(log, log_start_offset=log_start), existing)


def _plan_uncovered(log: LocalLog, remote: Iterable[RemoteSegment]) -> list[EligibleSegment]:
    covered = _covered_ranges(log.lineage, remote)
    closed = zip(log.base_offsets[:-1], log.base_offsets[1:], strict=True)
    return [
        EligibleSegment(base_offset=base, next_offset=following)
        for base, following in closed
        if log.log_start_offset < following <= log.last_stable_offset
        and not _is_covered(max(base, log.log_start_offset), following, covered)
    ]


def _covered_ranges(lineage: LeaderEpochLineage, remote: Iterable[RemoteSegment]) -> list[tuple[int, int]]:
    """Return disjoint ranges of offsets, half-open and ascending."""
    found: list[tuple[int, int]] = []
    has_remaining = False
    for segment in sorted((s for s in remote if s.was_copied), key=lambda segment: segment.start_offset):
        last = lineage.find_last_offset_within(segment.leader_epochs, segment.end_offset)
        if last is None or (segment.is_deleted and has_remaining):
            continue
        has_remaining |= not segment.is_deleted
        if found and segment.start_offset <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], last + 1)
        else:
            found.append((segment.start_offset, last + 1))
    return found


def _is_covered(start: int, end: int, covered: Sequence[tuple[int, int]]) -> bool:
    return any(first <= start and end <= covered_end for first, covered_end in covered)
