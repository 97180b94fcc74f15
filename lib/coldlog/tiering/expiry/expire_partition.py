"""expire_partition: how are the expired segments of one partition deleted?

First it is planned (`tier.expiry`): what a run before left, what is expired, what belongs to nothing. Then, in this
order, each step durable before the next one:

1. The log start moves on, in the table `tier_partitions`: from then on nobody is to read what is deleted next, be it
   below a log start that was supplied.
2. Each segment: event DELETE_SEGMENT_STARTED, its objects, event DELETE_SEGMENT_FINISHED.
3. Objects that belong to nothing.

A run that is cut anywhere is gone on with by the next one: a deletion that was begun is planned again whatever the
retention says. So are copies that nobody finishes: STARTED, no lease of the copy's task is held, and older than the
retry interval; where the schedule does not tell that they were begun under its leases, older than an orphan must be.
Any other STARTED segment is being copied, which ends the walk, as in Kafka.

Not ours: where events are those of a cluster's own topic, a partition of which another broker has copied segments is
left alone, because that broker expires what it tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from coldlog.archive.stores.object_writer import WritableStore
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError
from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.event_logs import KnownEventLog
from coldlog.tiering.expiry.expiry_state import LogSources
from coldlog.tiering.expiry.orphans import Orphan, OrphanKind, find_orphans
from coldlog.tiering.expiry.tier_partitions import TierPartitions
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.expiry import ExpiredSegment, ExpiryPlan, ExpiryReason, HeldBack, Retention, plan_expiry
from coldlog.tiering.rules.remote_segments import RemoteSegment
from coldlog.tiering.rules.schedule import ScheduledPartition
from coldlog.tiering.rules.segment_copy import SegmentCopier

_UNLIMITED = Retention()
_STARTED, _FINISHED, _DELETING, _DELETED = RemoteLogSegmentState


class ExpiryOutcome(StrEnum):
    """How the work on a partition ended: done, or as planned in a dry run; by an error that may be gone in the next
    run; by damage; by a refusal; or it did not begin, because another broker tiers it, its time has not come or
    another run holds it, or this host only follows."""

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
        """Somebody has to look."""
        return self in (ExpiryOutcome.RETRIABLE, ExpiryOutcome.DAMAGED, ExpiryOutcome.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedSegment:
    """A segment that expires, why, and its size in bytes; `copy_unfinished` is no reason of Kafka's."""

    start_offset: int
    end_offset: int
    segment_id: str
    size_bytes: int
    reason: str


@dataclass(slots=True, kw_only=True)
class PartitionExpiry:
    """A partition, and what came of its expiry: `planned` segments and objects are all that is to go, the counts what
    went. `why` says what `outcome` does not."""

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
    """False: segments that another broker announced keep their partition as it is."""

    def retention_of(self, topic: str) -> Retention:
        """A topic's own, or that of all."""
        return self.retentions.get(topic, self.retention)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExpirer:
    """What the expiry of all partitions shares; for all threads of a process. `find_copy` gives a partition's entry in
    the schedule of copies as it is now; `absent` partitions are not in this archive though they should be."""

    archive: WritableStore
    events: KnownEventLog
    copier: SegmentCopier
    partitions: TierPartitions
    sources: LogSources
    rules: ExpiryRules
    clock: Clock
    log_starts: Mapping[TopicIdPartition, int]
    find_copy: Callable[[TopicIdPartition], ScheduledPartition | None]
    absent: Mapping[TopicIdPartition, str]

    def run(self, work: PartitionExpiry) -> None:
        """Deletes what is expired; the work says what came of it."""
        try:
            if work.partition in self.absent:
                raise RetriableError(self.absent[work.partition])
            work.outcome = self._expire(work)
        except RetriableError as failed:
            work.outcome, work.why = ExpiryOutcome.RETRIABLE, _told(failed)
        except ArchiveError as wrong:
            # A copy that goes on at the same time puts objects, and one that is deleted takes them away.
            is_changing = wrong.reason is Reason.OBJECT_MISSING and self._has_changed(work)
            work.outcome = ExpiryOutcome.RETRIABLE if is_changing else ExpiryOutcome.DAMAGED
            work.why = _told(wrong)
        except ColdlogError as refused:
            work.outcome, work.why = ExpiryOutcome.REFUSED, _told(refused)

    def _expire(self, work: PartitionExpiry) -> ExpiryOutcome:
        partition, entry = work.partition, None
        segments = self.events.segments_of(partition)
        if any(each.state is _STARTED for each in segments):
            # In this order: what nobody copies now, and was finished before, is announced.
            entry = self.find_copy(partition)
            self.events.refresh()
            segments = self.events.segments_of(partition)
        other = next((each for each in segments if self._is_of_another(each)), None)
        if other is not None:
            work.why = f"broker {other.broker_id} tiers it, and expires what it tiers"
            return ExpiryOutcome.NOT_OURS
        unfinished, being_copied = self._judge_started(segments, entry)
        plan = self._plan(partition, segments, unfinished, being_copied)
        start = self._log_start(partition, plan)
        work.log_start_offset, work.held_back = start, plan.held_back
        deletions = self._list_deletions(segments, unfinished, plan)
        work.planned = tuple(_deleted(segment, reason) for segment, reason in deletions.values())
        self._find_foreign(work, being_copied)
        if self.rules.is_dry_run:
            return ExpiryOutcome.PLANNED
        if start is not None:
            self.copier.require(partition)
            self.partitions.advance(partition, start)
        for segment, _ in deletions.values():
            if segment.state is _STARTED and not self._is_unfinished(segment):
                continue
            self.copier.delete(segment)
            work.deleted_count += 1
            work.deleted_bytes += segment.size_bytes
        for orphan in work.orphans:
            self.copier.require(partition)
            self.archive.delete(orphan.name)
            work.removed_object_count += 1
        return ExpiryOutcome.DONE

    def _is_of_another(self, segment: RemoteSegment) -> bool:
        is_other = segment.broker_id != self.copier.broker_id and segment.state is not _DELETED
        return is_other and not self.rules.deletes_of_others

    def _judge_started(
        self, segments: tuple[RemoteSegment, ...], entry: ScheduledPartition | None
    ) -> tuple[list[RemoteSegment], frozenset[str]]:
        """Copies that nobody finishes, and ids of those that somebody may; `entry` is that of the partition's copies,
        as it was before the segments were."""
        started, now_ms = [each for each in segments if each.state is _STARTED], self.clock.now_ms()
        is_held = entry is not None and entry.is_held(now_ms)
        unfinished = [
            each
            for each in started
            if not is_held and now_ms - each.event_timestamp_ms > self._least_age_ms(each, entry)
        ]
        left = {each.segment_id.segment_id for each in unfinished}
        return unfinished, frozenset(each.segment_id.segment_id for each in started) - left

    def _least_age_ms(self, started: RemoteSegment, entry: ScheduledPartition | None) -> int:
        """Of a copy that nobody goes on with. A schedule tells it of what was begun under a lease of its own: one that
        has ended by itself, or whose end was a failure. A run without the schedule may copy beside it."""
        begun_ms = started.event_timestamp_ms
        is_told = entry is not None and (
            (entry.lease is not None and begun_ms < entry.lease.expires_ms)
            or (entry.failed_ms is not None and begun_ms <= entry.failed_ms)
        )
        return self.rules.retry_interval_ms if is_told else self.rules.orphan_min_age_ms

    def _plan(
        self,
        partition: TopicIdPartition,
        segments: tuple[RemoteSegment, ...],
        unfinished: list[RemoteSegment],
        being_copied: frozenset[str],
    ) -> ExpiryPlan:
        left = {each.segment_id for each in unfinished}
        considered = [each for each in segments if each.segment_id not in left]
        log = self.sources.find(
            partition, considered, advanced_to=self.log_starts.get(partition), being_copied=being_copied
        )
        return plan_expiry(
            considered,
            log,
            self.rules.retention_of(partition.topic),
            now_ms=self.clock.now_ms(),
            passes_future_timestamps=self.rules.passes_future_timestamps,
        )

    def _log_start(self, partition: TopicIdPartition, plan: ExpiryPlan) -> int | None:
        """Behind all that the walk deletes, also below a log start that was supplied, which nobody else may know; None:
        as now."""
        below = (each.segment.end_offset + 1 for each in plan.expired if each.reason is ExpiryReason.LOG_START)
        start = max(plan.log_start_offset or 0, *below, 0)
        return start if start > self.log_starts.get(partition, 0) else None

    def _list_deletions(
        self, segments: tuple[RemoteSegment, ...], unfinished: list[RemoteSegment], plan: ExpiryPlan
    ) -> dict[str, tuple[RemoteSegment, str]]:
        """By segment id, in their order: a deletion that was begun ends whatever the walk meets."""
        begun = [
            ExpiredSegment(segment=each, reason=ExpiryReason.DELETION_UNFINISHED)
            for each in segments
            if each.state is _DELETING
        ]
        found = {each.segment_id.segment_id: (each, "copy_unfinished") for each in unfinished}
        for each in (*begun, *plan.expired):
            found.setdefault(each.segment.segment_id.segment_id, (each.segment, each.reason.value))
        return found

    def _find_foreign(self, work: PartitionExpiry, being_copied: frozenset[str]) -> None:
        partition, rules = work.partition, self.rules
        foreign = find_orphans(self.archive, partition, self.events.segments_of(partition))
        if foreign.orphans:
            # What a copy put that began meanwhile is known behind this, and belongs to it.
            self.events.refresh()
            known = {each.segment_id.segment_id for each in self.events.segments_of(partition) if not each.is_deleted}
            foreign = replace(foreign, orphans=tuple(each for each in foreign.orphans if not _belongs(each, known)))
        retention, now_ms = rules.retention_of(partition.topic), self.clock.now_ms()
        explains_orphans = self.events.is_complete and not foreign.lacks_finished
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
        """Still: whoever slept over the end of its lease may have finished the copy since."""
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
    """To a segment that is there; a file that its writer left of it belongs to nothing all the same."""
    return orphan.kind is not OrphanKind.TEMPORARY and orphan.segment_id in known


def _told(error: ColdlogError) -> str:
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


def iter_reasons(work: PartitionExpiry) -> Iterator[tuple[str, int, int]]:
    """Reason, segments and bytes of what is planned, in the order of deletion."""
    totals: dict[str, tuple[int, int]] = {}
    for each in work.planned:
        count, size_bytes = totals.get(each.reason, (0, 0))
        totals[each.reason] = count + 1, size_bytes + each.size_bytes
    for reason, (count, size_bytes) in totals.items():
        yield reason, count, size_bytes
