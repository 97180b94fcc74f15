"""Divide segments into commits and tasks.

Segments keep their order of topic, partition and start offset, so that each file of an index table covers a short
range. Commits and tasks are consecutive segments in this order, with about equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coldlog.archive.layouts.layout import ListedSegment, SegmentFileKind
from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.tables.definitions.segments import listed_segment, required_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWork:
    """A segment to read.

    Running maxima and stairs count records from `count_from_offset` on. Announced values are None if no event is known.
    `is_last`: no listed segment of its directory begins after it. `is_log_damaged`: the log was found damaged, so it is
    read at every depth.
    """

    segment: ListedSegment
    log_modified_ms: int
    count_from_offset: int
    replaces_build_numbers: tuple[int, ...]
    announced_size_bytes: int | None = None
    announced_end_offset: int | None = None
    announced_max_timestamp_ms: int | None = None
    announced_leader_epochs: tuple[EpochStart, ...] = ()
    is_last: bool = False
    is_log_damaged: bool = False

    @property
    def log_bytes(self) -> int:
        log = self.segment.find_object(SegmentFileKind.LOG)
        return log.size_bytes if log else 0

    @staticmethod
    def from_row(row: dict[str, object]) -> SegmentWork:
        """Make it from a row of `segments` with the columns count_from_offset and is_last added."""
        return SegmentWork(
            segment=listed_segment(row),
            log_modified_ms=required_integer(row["log_modified_ms"]),
            count_from_offset=required_integer(row["count_from_offset"]),
            replaces_build_numbers=_build_numbers(row),
            announced_size_bytes=_known_integer(row.get("announced_size_bytes")),
            announced_end_offset=_known_integer(row.get("announced_end_offset")),
            announced_max_timestamp_ms=_known_integer(row.get("announced_max_timestamp_ms")),
            announced_leader_epochs=_epoch_starts(row.get("announced_leader_epochs")),
            is_last=row.get("is_last") is True,
            is_log_damaged=row.get("is_log_damaged") is True,
        )


def plan_commits(work: Sequence[SegmentWork], max_bytes: int) -> list[list[SegmentWork]]:
    """Split `work` into runs of at most `max_bytes` of log; a larger segment becomes a run alone."""
    commits: list[list[SegmentWork]] = []
    room = 0
    for segment in work:
        if not commits or segment.log_bytes > room:
            commits.append([])
            room = max_bytes
        commits[-1].append(segment)
        room -= segment.log_bytes
    return commits


def plan_tasks(work: Sequence[SegmentWork], task_count: int) -> list[list[SegmentWork]]:
    """Split `work` into at most `task_count` runs of about equal bytes; no run is empty."""
    total = sum(_cost(each) for each in work)
    tasks: list[list[SegmentWork]] = []
    done = 0
    for segment in work:
        if not tasks or done * task_count >= total * len(tasks):
            tasks.append([])
        tasks[-1].append(segment)
        done += _cost(segment)
    return tasks


_OPENING_COST_BYTES = 1 << 20
"""The cost of opening a segment's files, as bytes that could be read in the same time."""


def _cost(work: SegmentWork) -> int:
    return work.log_bytes + _OPENING_COST_BYTES


def _build_numbers(row: dict[str, object]) -> tuple[int, ...]:
    """List the newest build, and earlier builds whose rows still exist."""
    earlier = row.get("superseded_build_numbers") or []
    newest = _known_integer(row["build_number"])
    return (*earlier, *([] if newest is None else [newest]))  # type: ignore[misc]  # an Arrow list column


def _epoch_starts(entries: object) -> tuple[EpochStart, ...]:
    return tuple((entry["leader_epoch"], entry["start_offset"]) for entry in entries or ())  # type: ignore[attr-defined]


def _known_integer(value: object) -> int | None:
    return None if value is None else required_integer(value)
