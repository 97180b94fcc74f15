"""Decide which remote segments of a partition may be deleted now, and what holds back the others.

The rule is Kafka's RLMExpirationTask.cleanupExpiredRemoteLogSegments, step by step. The walk visits the epochs of the
log's lineage (without empty ones), and for each epoch its segments by start offset, the longest of equal ones first:

1. A segment that is being copied ends the walk.
2. A segment whose deletion has begun is deleted again, and the walk continues. A deleted segment is skipped.
3. If all epochs of a segment are the lineage's first or older, and it ends before the log start: delete (LOG_START).
4. Otherwise, if it is within the lineage by Kafka's rule: delete if its largest timestamp is lower (strictly,
   KAFKA-20091) than now - retention.ms (TIME), else if all of it is in the excess over retention.bytes (SIZE). The
   excess counts finished segments within the lineage, and bytes that are only local. A segment deleted by time reduces
   the excess.
5. The first segment that is within the lineage and not deleted ends the walk. One outside the lineage does not.

The log start moves to the end of the last segment that is deleted by time or size. After the walk, segments are deleted
whose epochs are all older than the log's oldest (OLDER_EPOCHS): an unclean election left them.

So one segment with a timestamp in the future holds back all segments after it. The plan names it (`held_back`) if a
segment after it would be deleted by time. With `passes_future_timestamps` it is deleted too: a segment that is later
than now counts as expired (FUTURE_TIMESTAMP) if the next segment with a possible timestamp is expired by time, because
its own records are even older.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.remote_segments import RemoteSegment

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class ExpiryReason(StrEnum):
    """Why a segment is deleted."""

    DELETION_UNFINISHED = "deletion_unfinished"
    LOG_START = "log_start"
    TIME = "time"
    FUTURE_TIMESTAMP = "future_timestamp"
    SIZE = "size"
    OLDER_EPOCHS = "older_epochs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A topic's `retention.ms` and `retention.bytes`; below 0: no limit, as in Kafka."""

    retention_ms: int = -1
    retention_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The state of the log itself. `epochs` are its leader epoch checkpoint, unchanged. `only_local_bytes` are the
    bytes of segments that are not in the tier."""

    epochs: tuple[EpochStart, ...]
    log_start_offset: int
    log_end_offset: int
    only_local_bytes: int = 0
    being_copied: Set[str] = field(default_factory=frozenset)
    """Segment ids of unfinished copies."""
    expired_before: int = 0
    """The log start that expiry has set, as far as it is still valid (`valid_log_start`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredSegment:
    """A segment to delete."""

    segment: RemoteSegment
    reason: ExpiryReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """`by` is later than now and ends the walk. The counts are of the segments after it that are expired by time."""

    by: RemoteSegment
    segment_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan:
    """Segments in the order of deletion. `log_start_offset` must be set before anything is deleted; None: it stays."""

    expired: tuple[ExpiredSegment, ...]
    log_start_offset: int | None
    held_back: HeldBack | None


def plan_expiry(
    segments: Iterable[RemoteSegment],
    log: LogState,
    retention: Retention,
    *,
    now_ms: int,
    passes_future_timestamps: bool = False,
) -> ExpiryPlan:
    """Decide what to delete of a partition's segments, which may be in any order."""
    known = [each for each in segments if each.state is not _DELETED]
    walk = _Walk(
        segments=known,
        log=log,
        lineage=LeaderEpochLineage.of(log.epochs),
        cleanup_until_ms=_cleanup_until_ms(retention, now_ms),
        now_ms=now_ms,
        passes_future_timestamps=passes_future_timestamps,
    )
    walk.in_order = walk.list_in_order()
    walk.excess_bytes = walk.find_excess_bytes(retention)
    walk.run()
    walk.expire_older_epochs()
    return ExpiryPlan(
        expired=tuple(walk.expired.values()), log_start_offset=walk.log_start_offset, held_back=walk.held_back
    )


def _cleanup_until_ms(retention: Retention, now_ms: int) -> int | None:
    until_ms = now_ms - retention.retention_ms
    return None if retention.retention_ms < 0 or until_ms < 0 else until_ms


@dataclass(slots=True, kw_only=True)
class _Walk:
    segments: list[RemoteSegment]
    log: LogState
    lineage: LeaderEpochLineage
    cleanup_until_ms: int | None
    now_ms: int
    passes_future_timestamps: bool
    in_order: list[RemoteSegment] = field(default_factory=list)
    excess_bytes: int = 0
    expired: dict[str, ExpiredSegment] = field(default_factory=dict)
    log_start_offset: int | None = None
    held_back: HeldBack | None = None

    def find_excess_bytes(self, retention: Retention) -> int:
        """Return by how many bytes the log, local and remote, exceeds its retention.bytes."""
        if retention.retention_bytes < 0:
            return 0
        counted = {
            _id_of(each): each.size_bytes for each in self.in_order if each.state is _FINISHED and self._is_within(each)
        }
        return max(0, self.log.only_local_bytes + sum(counted.values()) - retention.retention_bytes)

    def run(self) -> None:
        """Walk as in steps 1 to 5."""
        for at, segment in enumerate(self.in_order):
            if _id_of(segment) in self.log.being_copied:
                return
            if _id_of(segment) in self.expired:
                continue
            reason = self._reason(segment, at)
            if reason is not None:
                self._expire(segment, reason)
            elif self._is_within(segment):
                self.held_back = self._find_held_back(segment, at)
                return

    def expire_older_epochs(self) -> None:
        """Expire segments whose epochs are all older than the log's oldest."""
        oldest = min((epoch for epoch, _ in self.log.epochs), default=None)
        for segment in sorted(self.segments, key=_place_of):
            is_older = oldest is not None and all(epoch < oldest for epoch, _ in segment.leader_epochs)
            is_busy = _id_of(segment) in self.expired or _id_of(segment) in self.log.being_copied
            if is_older and not is_busy:
                self.expired[_id_of(segment)] = ExpiredSegment(segment=segment, reason=ExpiryReason.OLDER_EPOCHS)

    def list_in_order(self) -> list[RemoteSegment]:
        """Return the segments in the order of the walk; a segment once for each of its epochs."""
        by_epoch: dict[int, list[RemoteSegment]] = {epoch: [] for epoch, _ in self.lineage.entries}
        for segment in sorted(self.segments, key=_place_of):
            for epoch in by_epoch.keys() & {epoch for epoch, _ in segment.leader_epochs}:
                by_epoch[epoch].append(segment)
        return [segment for epoch, _ in self.lineage.entries for segment in by_epoch[epoch]]

    def _reason(self, segment: RemoteSegment, at: int) -> ExpiryReason | None:
        if segment.state is _DELETING:
            return ExpiryReason.DELETION_UNFINISHED
        if self._is_below_log_start(segment):
            return ExpiryReason.LOG_START
        if not self._is_within(segment):
            return None
        if self._is_too_old(segment):
            return ExpiryReason.TIME
        if self.excess_bytes and segment.size_bytes <= self.excess_bytes:
            return ExpiryReason.SIZE
        if self.passes_future_timestamps and self._is_future(segment) and self._is_next_too_old(at):
            return ExpiryReason.FUTURE_TIMESTAMP
        return None

    def _expire(self, segment: RemoteSegment, reason: ExpiryReason) -> None:
        self.expired[_id_of(segment)] = ExpiredSegment(segment=segment, reason=reason)
        if reason in (ExpiryReason.TIME, ExpiryReason.SIZE, ExpiryReason.FUTURE_TIMESTAMP):
            self.excess_bytes = max(0, self.excess_bytes - segment.size_bytes)
            self.log_start_offset = max(self.log_start_offset or 0, segment.end_offset + 1)

    def _is_below_log_start(self, segment: RemoteSegment) -> bool:
        is_old = all(epoch <= self.lineage.first_epoch for epoch, _ in segment.leader_epochs)
        return is_old and segment.end_offset < self.log.log_start_offset

    def _is_within(self, segment: RemoteSegment) -> bool:
        return self.lineage.is_within(segment.leader_epochs, segment.end_offset, self.log.log_end_offset)

    def _is_too_old(self, segment: RemoteSegment) -> bool:
        return self.cleanup_until_ms is not None and segment.max_timestamp_ms < self.cleanup_until_ms

    def _is_future(self, segment: RemoteSegment) -> bool:
        return segment.max_timestamp_ms > self.now_ms

    def _is_next_too_old(self, at: int) -> bool:
        """True if the first later segment with a possible timestamp is expired by time."""
        possible = (segment for segment in self._finished_after(at) if not self._is_future(segment))
        following = next(possible, None)
        return following is not None and self._is_too_old(following)

    def _find_held_back(self, segment: RemoteSegment, at: int) -> HeldBack | None:
        if not self._is_future(segment):
            return None
        held = {_id_of(later): later.size_bytes for later in self._finished_after(at) if self._is_too_old(later)}
        return HeldBack(by=segment, segment_count=len(held), size_bytes=sum(held.values())) if held else None

    def _finished_after(self, at: int) -> Iterator[RemoteSegment]:
        later = islice(self.in_order, at + 1, None)
        return (segment for segment in later if segment.state is _FINISHED and self._is_within(segment))


def _id_of(segment: RemoteSegment) -> str:
    return segment.segment_id.segment_id


def _place_of(segment: RemoteSegment) -> tuple[int, bool, int, str]:
    """Return the place in the walk. Of segments with the same start, Kafka visits the one that readers get first: a
    finished one, and the longest, because it has replaced the others."""
    return segment.start_offset, segment.state is _STARTED, -segment.end_offset, _id_of(segment)
