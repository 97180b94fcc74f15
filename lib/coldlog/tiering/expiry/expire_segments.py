"""Delete the expired segments of the tier, partition by partition.

Expiry runs in a process and a thread pool of its own. It never waits for copying or for the copy quota. The events name
the partitions. This host expires the partitions that it leads, when they are due by the schedule and its leases. For
all its partitions, also those that it follows, it then writes the earliest and the latest offset in the tier to
`tier_partitions` (Kafka's step 3). Offsets below the earliest are no longer served after scan_segments and
materialize_metadata; maintain_tables removes their index rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout, name_directory
from coldlog.archive.stores.object_writer import WritableStore
from coldlog.errors import RetriableError, UsageError
from coldlog.model.ids import TopicIdPartition
from coldlog.tiering.event_logs import KnownEventLog, ReadableEventLog
from coldlog.tiering.expiry.expire_partition import ExpiryOutcome, ExpiryRules, PartitionExpirer, PartitionExpiry
from coldlog.tiering.expiry.expiry_state import LogSources
from coldlog.tiering.expiry.unfinished_uploads import UnfinishedUploads, list_unfinished_uploads
from coldlog.tiering.present_archive import find_absent, present_archive
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.segment_copy import SegmentCopier
from coldlog.tiering.tier_assignments import LEADER_OF_ALL, Assignments
from coldlog.tiering.tier_partitions import RemoteOffsets, TierPartitions
from coldlog.tiering.tier_schedule import TAKEN_PER_THREAD, RunLeases, TierSchedule, TierTask
from coldlog.tiering.work_pool import WorkPool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOptions:
    """See the settings of the same names."""

    broker_id: int
    rules: ExpiryRules
    assignments: Assignments = LEADER_OF_ALL
    threads: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySummary:
    """The result of a run: one entry for each partition that the events name. `unexplained` are names in the archive's
    root that no event explains; they are not touched. It is None if the archive did not answer. `why_unlisted`: why
    unfinished uploads could not be listed. `retried_count` partitions had failed in their last run."""

    partitions: tuple[PartitionExpiry, ...]
    unexplained: tuple[str, ...] | None
    why_unlisted: str = ""
    retried_count: int = 0

    @property
    def error(self) -> str:
        """Return why the run failed; empty: it did not."""
        failed = [each for each in self.partitions if each.outcome.is_failure]
        return f"{len(failed)} partitions failed, the first one: {failed[0].why}" if failed else ""

    @property
    def figures(self) -> dict[str, object]:
        """Return what the run's row of `job_runs` says."""
        return {
            "segments": self.deleted_count,
            "bytes": self.deleted_bytes,
            "objects": sum(each.removed_object_count for each in self.partitions),
            "partitions": sum(
                each.outcome not in (ExpiryOutcome.NOT_DUE, ExpiryOutcome.FOLLOWED) for each in self.partitions
            ),
            "failed_partitions": sum(each.outcome.is_failure for each in self.partitions),
            "retries": self.retried_count,
        }

    @property
    def deleted_count(self) -> int:
        """Return the number of deleted segments."""
        return sum(each.deleted_count for each in self.partitions)

    @property
    def deleted_bytes(self) -> int:
        """Return the log bytes of the deleted segments."""
        return sum(each.deleted_bytes for each in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The stores and tables that a run works on."""

    archive: WritableStore
    events: ReadableEventLog
    sources: LogSources
    schedule: TierSchedule
    partitions: TierPartitions
    clock: Clock


def expire_segments(tier: Tier, options: ExpireOptions, threads: Callable[[], int] | None = None) -> ExpirySummary:
    """Delete what has expired of the partitions that are due. A dry run takes no lease and writes nothing. `threads` is
    asked while it runs how many partitions are expired at once; None: `options.threads`."""
    size = threads or (lambda: options.threads)
    known = KnownEventLog(tier.events)
    archive = present_archive(tier.archive, known, options.broker_id)
    tier = replace(tier, archive=archive, sources=replace(tier.sources, archive=archive))
    named = [p for p in known.partitions() if options.assignments.is_assigned(p.topic, p.partition)]
    work = [PartitionExpiry(partition=partition) for partition in named]
    for expiry in work:
        if not options.assignments.is_leader(expiry.partition.topic, expiry.partition.partition):
            expiry.outcome = ExpiryOutcome.FOLLOWED
    uploads, retried_count = list_unfinished_uploads(archive), 0
    led = [expiry for expiry in work if expiry.outcome is not ExpiryOutcome.FOLLOWED]
    if options.rules.is_dry_run:
        _run_all(lambda: _expirer(tier, known, options, None, uploads), led, size, None)
    else:
        by_partition = {expiry.partition: expiry for expiry in led}
        at_most = options.threads * TAKEN_PER_THREAD
        leases = tier.schedule.take_due(TierTask.EXPIRE, by_partition.keys(), at_most=at_most)
        try:
            for expiry in led:
                expiry.outcome = ExpiryOutcome.NOT_DUE
            due = [by_partition[partition] for partition in leases.partitions]
            _run_all(lambda: _expirer(tier, known, options, leases, uploads), due, size, leases, by_partition)
        finally:
            leases.close()
        retried_count = leases.retried_count
        _retrieve(tier, known, work)
    return ExpirySummary(
        partitions=tuple(work),
        unexplained=_list_unexplained(tier.archive, known.partitions()),
        why_unlisted=uploads.why_unlisted,
        retried_count=retried_count,
    )


def _expirer(
    tier: Tier, known: KnownEventLog, options: ExpireOptions, leases: RunLeases | None, uploads: UnfinishedUploads
) -> PartitionExpirer:
    """Make the expirer after the leases are taken, so that it knows the events and log starts of earlier runs."""
    known.refresh()
    return PartitionExpirer(
        archive=tier.archive,
        absent=find_absent(tier.archive, known, options.broker_id),
        uploads=uploads,
        events=known,
        copier=SegmentCopier(
            archive=tier.archive,
            events=known,
            clock=tier.clock,
            new_id=_no_id,
            broker_id=options.broker_id,
            require=_nothing if leases is None else leases.require,
        ),
        partitions=tier.partitions,
        sources=tier.sources,
        rules=options.rules,
        clock=tier.clock,
        log_starts=tier.partitions.log_starts(),
        current_topic_ids=known.current_topic_ids(),
        find_copy=lambda partition: tier.schedule.entries(TierTask.COPY).get(partition),
    )


def _run_all(
    make_expirer: Callable[[], PartitionExpirer],
    work: Sequence[PartitionExpiry],
    threads: Callable[[], int],
    leases: RunLeases | None,
    by_partition: Mapping[TopicIdPartition, PartitionExpiry] = MappingProxyType({}),
) -> None:
    """Run the work, then take and run more partitions that are due."""
    with WorkPool[PartitionExpiry](threads, "coldlog-expire") as pool:
        pool.add(make_expirer().run, work)
        while pool.unfinished_count:
            ended = pool.wait()
            if leases is None:
                continue
            leases.keep()
            for expiry in ended:
                leases.end(expiry.partition, expiry.why if expiry.outcome.is_failure else None)
            if more := leases.refill(pool.unfinished_count):
                pool.add(make_expirer().run, [by_partition[p] for p in more])


def _retrieve(tier: Tier, known: KnownEventLog, work: Iterable[PartitionExpiry]) -> None:
    """Write the tier's offsets also for partitions that were not due: another host may have copied to them."""
    log_starts = tier.partitions.log_starts()
    tier.partitions.retrieve(
        {
            each.partition: RemoteOffsets.of(known.segments_of(each.partition), log_starts.get(each.partition))
            for each in work
        }
    )


def _list_unexplained(archive: WritableStore, known: Iterable[TopicIdPartition]) -> tuple[str, ...] | None:
    names = {name_directory(each) for each in known}
    try:
        listing = LocalTieredStorageLayout(store=archive).list_partition_directories()
    except RetriableError:
        # The result of each partition says why.
        return None
    unknown = [each.name for each in listing.directories if each.name not in names]
    return (*unknown, *(each.name for each in listing.unrecognized))


def _no_id() -> str:
    raise UsageError("expiry never copies a segment")


def _nothing(_: TopicIdPartition) -> None:
    """A dry run needs no lease."""
