"""expiry: which remote segments of a partition may be deleted now, and why not the others?

Kafka's RLMExpirationTask.cleanupExpiredRemoteLogSegments, step by step. The walk goes through the epochs of the log's
lineage (without empty ones), in each through the segments that have the epoch, by start offset:

1. A segment that is being copied now ends the walk.
2. One whose deletion was begun is deleted again, and the walk goes on; a deleted one is passed over.
3. All its epochs are the lineage's first or older, and it ends before the log start: delete (LOG_START).
4. Otherwise, if it is within the lineage by Kafka's rule: delete if its largest timestamp is lower (strictly,
   KAFKA-20091) than now - retention.ms (TIME), else if all of it is in the excess over retention.bytes (SIZE). The
   excess counts finished segments within the lineage, and what is local alone; a segment that time deletes reduces it.
5. The first segment that is within the lineage and is not deleted ends the walk. What is not within it does not.

The log start moves behind the last segment that time or size deletes. Behind the walk segments are deleted all of whose
epochs are older than the log's oldest (OLDER_EPOCHS): what an unclean election left.

So one segment with a timestamp in the future holds all behind it. A plan names it (`held_back`), if a segment behind it
would be deleted by time. `passes_future_timestamps` takes it along: then a segment that is later than now counts as
expired (FUTURE_TIMESTAMP) if the next one with a time that can be is expired by time, for its records are older yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.remote_segments import RemoteSegment

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
    """A topic's `retention.ms` and `retention.bytes`; below 0: without end, as in Kafka."""

    retention_ms: int = -1
    retention_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What is known of the log itself. `epochs` are its leader epoch checkpoint as it is; `only_local_bytes` those of
    segments that are not in the tier."""

    epochs: tuple[EpochStart, ...]
    log_start_offset: int
    log_end_offset: int
    only_local_bytes: int = 0
    being_copied: Set[str] = field(default_factory=frozenset)
    """Segment ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredSegment:
    """A segment to delete."""

    segment: RemoteSegment
    reason: ExpiryReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """`by` is later than now and ends the walk; so many segments behind it, of so many bytes, are expired by time."""

    by: RemoteSegment
    segment_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPlan:
    """In the order of deletion. `log_start_offset` is where the log has to begin before anything is deleted; None: as
    now."""

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
    """What is to be deleted of a partition's segments, in any order."""
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
        """By how much the log, local and remote, is larger than it may be."""
        if retention.retention_bytes < 0:
            return 0
        counted = {
            _id_of(each): each.size_bytes for each in self.in_order if each.state is _FINISHED and self._is_within(each)
        }
        return max(0, self.log.only_local_bytes + sum(counted.values()) - retention.retention_bytes)

    def run(self) -> None:
        """Steps 1 to 5."""
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
        """What belongs to no epoch of the log any more."""
        oldest = min((epoch for epoch, _ in self.log.epochs), default=None)
        for segment in sorted(self.segments, key=_place_of):
            is_older = oldest is not None and all(epoch < oldest for epoch, _ in segment.leader_epochs)
            is_busy = _id_of(segment) in self.expired or _id_of(segment) in self.log.being_copied
            if is_older and not is_busy:
                self.expired[_id_of(segment)] = ExpiredSegment(segment=segment, reason=ExpiryReason.OLDER_EPOCHS)

    def list_in_order(self) -> list[RemoteSegment]:
        """Each segment once for each of its epochs."""
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
        if self.passes_future_timestamps and self._is_future(segment) and self._is_older_than_behind(at):
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

    def _is_older_than_behind(self, at: int) -> bool:
        """The first segment behind it whose time can be is expired by time."""
        possible = (each for each in self._finished_behind(at) if not self._is_future(each))
        following = next(possible, None)
        return following is not None and self._is_too_old(following)

    def _find_held_back(self, segment: RemoteSegment, at: int) -> HeldBack | None:
        if not self._is_future(segment):
            return None
        held = {_id_of(each): each.size_bytes for each in self._finished_behind(at) if self._is_too_old(each)}
        return HeldBack(by=segment, segment_count=len(held), size_bytes=sum(held.values())) if held else None

    def _finished_behind(self, at: int) -> Iterator[RemoteSegment]:
        behind = islice(self.in_order, at + 1, None)
        return (each for each in behind if each.state is _FINISHED and self._is_within(each))


def _id_of(segment: RemoteSegment) -> str:
    return segment.segment_id.segment_id


def _place_of(segment: RemoteSegment) -> tuple[int, str]:
    return segment.start_offset, _id_of(segment)
