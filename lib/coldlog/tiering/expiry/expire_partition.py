"""Delete the expired segments of one partition.

First the deletions are planned (`tiering.rules.expiry`): what an earlier run left unfinished, what has expired, objects
that belong to no segment. Then the run does this, in this order, each step durable before the next one:

1. Move the log start in the table `tier_partitions`. From then on no reader may read what is deleted next, also
   below a log start that was supplied.
2. For each segment: append the event DELETE_SEGMENT_STARTED, delete its objects, append DELETE_SEGMENT_FINISHED.
3. Delete the objects that belong to no segment.

If a run is killed anywhere, the next one continues: a deletion that has begun is planned again, whatever the retention.
So is the deletion of an abandoned copy: its state is STARTED, no lease of the copy task is held, and it is older than
the retry interval. If the schedule does not show that the copy began under one of its leases, the copy must be as old
as an orphan. Any other STARTED segment is being copied; it ends the walk, as in Kafka.

If the events are in a cluster's own topic, a partition with segments of another broker is left alone (NOT_OURS): that
broker expires what it tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from coldlog.archive.layouts.local_tiered_storage import name_directory
from coldlog.archive.stores.object_writer import WritableStore
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError
from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.event_logs import KnownEventLog
from coldlog.tiering.expiry.expiry_state import LogSources
from coldlog.tiering.expiry.orphans import Orphan, OrphanKind, find_orphans
from coldlog.tiering.expiry.unfinished_uploads import UnfinishedUploads
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.expiry import (
    ExpiredSegment,
    ExpiryPlan,
    ExpiryReason,
    HeldBack,
    LogState,
    Retention,
    plan_expiry,
)
from coldlog.tiering.rules.remote_segments import RemoteSegment
from coldlog.tiering.rules.schedule import ScheduledPartition
from coldlog.tiering.rules.segment_copy import SegmentCopier
from coldlog.tiering.tier_partitions import TierPartitions

_UNLIMITED = Retention()
_STARTED, _FINISHED, _DELETING, _DELETED = RemoteLogSegmentState


class ExpiryOutcome(StrEnum):
    """How the work on a partition ended. RETRIABLE: an error that the next run may not have. NOT_OURS: another broker
    tiers it. NOT_DUE: its time has not come, or another run holds it. FOLLOWED: this host is only a follower."""

    DONE = "done"
    PLANNED = "planned"
    RETRIABLE = "retriable"
    DAMAGED = "damaged"
    REFUSED = "refused"
    NOT_OURS = "not_ours"
    NOT_DUE = "not_due"
    FOLLOWED = "followed"

    @property
    def is_failure(self) -> bool:
        """True if an operator has to look."""
        return self in (ExpiryOutcome.RETRIABLE, ExpiryOutcome.DAMAGED, ExpiryOutcome.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedSegment:
    """A segment to delete, the reason, and its size. The reason `copy_unfinished` does not exist in Kafka."""

    start_offset: int
    end_offset: int
    segment_id: str
    size_bytes: int
    reason: str


@dataclass(slots=True, kw_only=True)
class PartitionExpiry:
    """A partition, and the result of its expiry. `planned` and `orphans` are all that is to be deleted; the counts say
    what was deleted. `why` explains `outcome`."""

    partition: TopicIdPartition
    planned: tuple[DeletedSegment, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    waiting_orphan_count: int = 0
    unexplained: tuple[str, ...] = ()
    log_start_offset: int | None = None
    held_back: HeldBack | None = None
    deleted_count: int = 0
    deleted_bytes: int = 0
    removed_object_count: int = 0
    outcome: ExpiryOutcome = ExpiryOutcome.DONE
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRules:
    """See the settings. `retentions` are those of single topics."""

    retention: Retention = _UNLIMITED
    retentions: Mapping[str, Retention] = field(default_factory=dict)
    retry_interval_ms: int = 30_000
    orphan_min_age_ms: int = 86_400_000
    passes_future_timestamps: bool = False
    is_dry_run: bool = False
    deletes_of_others: bool = True
    """False: leave a partition alone if another broker announced segments of it."""

    def retention_of(self, topic: str) -> Retention:
        """Return the retention of a topic: its own, or the one of all topics."""
        return self.retentions.get(topic, self.retention)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExpirer:
    """Expires partitions; threads of a process share it. `find_copy` returns a partition's entry in the schedule of
    copies as it is now. `absent` are partitions that should be in this archive and are not, with the reason.
    `current_topic_ids` are those of the newest topic with each name."""

    archive: WritableStore
    events: KnownEventLog
    copier: SegmentCopier
    partitions: TierPartitions
    sources: LogSources
    rules: ExpiryRules
    clock: Clock
    log_starts: Mapping[TopicIdPartition, int]
    current_topic_ids: Mapping[tuple[str, int], str]
    find_copy: Callable[[TopicIdPartition], ScheduledPartition | None]
    absent: Mapping[TopicIdPartition, str]
    uploads: UnfinishedUploads

    def run(self, work: PartitionExpiry) -> None:
        """Delete what has expired, and note the result in `work`."""
        try:
            if work.partition in self.absent:
                raise RetriableError(self.absent[work.partition])
            work.outcome = self._expire(work)
        except RetriableError as failed:
            work.outcome, work.why = ExpiryOutcome.RETRIABLE, failed.text_with_notes
        except ArchiveError as wrong:
            # A copy at the same time adds objects, and a deletion of that copy removes them.
            is_changing = wrong.reason is Reason.OBJECT_MISSING and self._has_changed(work)
            work.outcome = ExpiryOutcome.RETRIABLE if is_changing else ExpiryOutcome.DAMAGED
            work.why = wrong.text_with_notes
        except ColdlogError as refused:
            work.outcome, work.why = ExpiryOutcome.REFUSED, refused.text_with_notes

    def _expire(self, work: PartitionExpiry) -> ExpiryOutcome:
        partition, entry = work.partition, None
        segments = self.events.segments_of(partition)
        if any(each.state is _STARTED for each in segments):
            # Keep this order: a copy that ended before the lease was looked up is then in the events.
            entry = self.find_copy(partition)
            self.events.refresh()
            segments = self.events.segments_of(partition)
        other = next((each for each in segments if self._is_of_another(each)), None)
        if other is not None:
            work.why = f"broker {other.broker_id} tiers this partition and expires it"
            return ExpiryOutcome.NOT_OURS
        unfinished, being_copied = self._judge_started(segments, entry)
        log, plan = self._plan(partition, segments, unfinished, being_copied)
        start = self._log_start(partition, log, plan)
        work.log_start_offset, work.held_back = start, plan.held_back
        deletions = self._list_deletions(segments, unfinished, plan)
        work.planned = tuple(_deleted(segment, reason) for segment, reason in deletions.values())
        self._find_foreign(work, being_copied)
        if self.rules.is_dry_run:
            return ExpiryOutcome.PLANNED
        if start is not None:
            self.copier.require(partition)
            self.partitions.move_log_start(partition, since=self.log_starts.get(partition, 0), to=start)
        for segment, _ in deletions.values():
            if segment.state is _STARTED and not self._is_unfinished(segment):
                continue
            self.copier.delete(segment)
            work.deleted_count += 1
            work.deleted_bytes += segment.size_bytes
        for orphan in work.orphans:
            self.copier.require(partition)
            self._remove(orphan)
            work.removed_object_count += 1
        return ExpiryOutcome.DONE

    def _remove(self, orphan: Orphan) -> None:
        if orphan.upload is None:
            self.archive.delete(orphan.name)
        else:
            self.uploads.abort(orphan.upload)

    def _is_of_another(self, segment: RemoteSegment) -> bool:
        is_other = segment.broker_id != self.copier.broker_id and segment.state is not _DELETED
        return is_other and not self.rules.deletes_of_others

    def _judge_started(
        self, segments: tuple[RemoteSegment, ...], entry: ScheduledPartition | None
    ) -> tuple[list[RemoteSegment], frozenset[str]]:
        """Return the abandoned copies, and the ids of the copies that may still go on. `entry` is the partition's entry
        in the schedule of copies, read before the segments."""
        started, now_ms = [each for each in segments if each.state is _STARTED], self.clock.now_ms()
        is_held = entry is not None and entry.is_held(now_ms)
        unfinished = [
            segment
            for segment in started
            if not is_held and now_ms - segment.event_timestamp_ms > self._least_age_ms(segment, entry)
        ]
        unfinished_ids = {segment.segment_id.segment_id for segment in unfinished}
        return unfinished, frozenset(segment.segment_id.segment_id for segment in started) - unfinished_ids

    def _least_age_ms(self, started: RemoteSegment, entry: ScheduledPartition | None) -> int:
        """Return from which age on a copy counts as abandoned. The schedule shows it for a copy that began under one of
        its leases, if this lease has expired or ended with a failure. A copy job without the schedule may still run."""
        begun_ms = started.event_timestamp_ms
        is_known_to_schedule = entry is not None and (
            (entry.lease is not None and begun_ms < entry.lease.expires_ms)
            or (entry.failed_ms is not None and begun_ms <= entry.failed_ms)
        )
        return self.rules.retry_interval_ms if is_known_to_schedule else self.rules.orphan_min_age_ms

    def _plan(
        self,
        partition: TopicIdPartition,
        segments: tuple[RemoteSegment, ...],
        unfinished: list[RemoteSegment],
        being_copied: frozenset[str],
    ) -> tuple[LogState, ExpiryPlan]:
        unfinished_ids = {segment.segment_id for segment in unfinished}
        considered = [segment for segment in segments if segment.segment_id not in unfinished_ids]
        log = self.sources.find(
            partition,
            considered,
            advanced_to=self.log_starts.get(partition, 0),
            being_copied=being_copied,
            is_current=self.current_topic_ids.get((partition.topic, partition.partition)) == partition.topic_id,
        )
        plan = plan_expiry(
            considered,
            log,
            self.rules.retention_of(partition.topic),
            now_ms=self.clock.now_ms(),
            passes_future_timestamps=self.rules.passes_future_timestamps,
        )
        return log, plan

    def _log_start(self, partition: TopicIdPartition, log: LogState, plan: ExpiryPlan) -> int | None:
        """Return the new log start, None if it stays. It is after all segments that the walk deletes. That includes
        segments below a supplied log start, because other readers may not know that one."""
        below = (each.segment.end_offset + 1 for each in plan.expired if each.reason is ExpiryReason.LOG_START)
        start = max(log.expired_before, plan.log_start_offset or 0, *below)
        return start if start != self.log_starts.get(partition, 0) else None

    def _list_deletions(
        self, segments: tuple[RemoteSegment, ...], unfinished: list[RemoteSegment], plan: ExpiryPlan
    ) -> dict[str, tuple[RemoteSegment, str]]:
        """Return what to delete by segment id, in order. A deletion that has begun is always included."""
        begun = [
            ExpiredSegment(segment=each, reason=ExpiryReason.DELETION_UNFINISHED)
            for each in segments
            if each.state is _DELETING
        ]
        found = {each.segment_id.segment_id: (each, "copy_unfinished") for each in unfinished}
        for expired in (*begun, *plan.expired):
            found.setdefault(expired.segment.segment_id.segment_id, (expired.segment, expired.reason.value))
        return found

    def _find_foreign(self, work: PartitionExpiry, being_copied: frozenset[str]) -> None:
        partition, rules = work.partition, self.rules
        uploads = self.uploads.below(name_directory(partition))
        foreign = find_orphans(self.archive, partition, self.events.segments_of(partition), uploads)
        if foreign.orphans:
            # Objects of a copy that began meanwhile belong to its segment: read its events before judging.
            self.events.refresh()
            known = {each.segment_id.segment_id for each in self.events.segments_of(partition) if not each.is_deleted}
            foreign = replace(foreign, orphans=tuple(each for each in foreign.orphans if not _belongs(each, known)))
        retention, now_ms = rules.retention_of(partition.topic), self.clock.now_ms()
        explains_orphans = self.events.is_complete and not foreign.is_finished_log_missing
        due = tuple(
            each
            for each in foreign.orphans
            if each.is_due(retention, now_ms=now_ms, min_age_ms=rules.orphan_min_age_ms)
            and each.segment_id not in being_copied
            and (explains_orphans or each.kind is not OrphanKind.ORPHAN)
        )
        work.orphans, work.unexplained = due, foreign.unexplained
        work.waiting_orphan_count = len(foreign.orphans) - len(due)

    def _is_unfinished(self, segment: RemoteSegment) -> bool:
        """True if the copy is still unfinished. Its writer may have finished it after the lease had ended."""
        self.events.refresh()
        now = {each.segment_id: each.state for each in self.events.segments_of(segment.segment_id.topic_id_partition)}
        return now.get(segment.segment_id) is _STARTED

    def _has_changed(self, work: PartitionExpiry) -> bool:
        before = self.events.segments_of(work.partition)
        self.events.refresh()
        return self.events.segments_of(work.partition) != before


def _deleted(segment: RemoteSegment, reason: str) -> DeletedSegment:
    return DeletedSegment(
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        segment_id=segment.segment_id.segment_id,
        size_bytes=segment.size_bytes,
        reason=reason,
    )


def _belongs(orphan: Orphan, known: Set[str]) -> bool:
    """True if the object belongs to an existing segment. An unfinished file never does, whatever its name says."""
    return orphan.kind not in (OrphanKind.TEMPORARY, OrphanKind.UPLOAD) and orphan.segment_id in known


def iter_reasons(work: PartitionExpiry) -> Iterator[tuple[str, int, int]]:
    """Yield reason, segment count and bytes of what is planned, in the order of deletion."""
    totals: dict[str, tuple[int, int]] = {}
    for segment in work.planned:
        count, size_bytes = totals.get(segment.reason, (0, 0))
        totals[segment.reason] = count + 1, size_bytes + segment.size_bytes
    for reason, (count, size_bytes) in totals.items():
        yield reason, count, size_bytes
