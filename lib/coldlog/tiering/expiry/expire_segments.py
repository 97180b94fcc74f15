"""expire_segments: which segments of the tier have expired? Deletes them, partition by partition.

A pool of its own, in a process of its own: nothing here waits for copying or for its quota. Partitions are those that
the events name; those of which this host is the leader are expired when they are due, by the schedule and its leases.
Of all that this host has to do with, followed ones too, the earliest and the latest offset in the tier are brought to
`tier_partitions` then (Kafka's step 3): what is below the earliest is no longer served when scan_segments and
materialize_metadata have run, and loses its index rows by maintain_tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from types import MappingProxyType

from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout, name_directory
from coldlog.archive.stores.object_writer import WritableStore
from coldlog.errors import RetriableError, UsageError
from coldlog.model.ids import TopicIdPartition
from coldlog.tiering.event_logs import KnownEventLog, ReadableEventLog
from coldlog.tiering.expiry.expire_partition import ExpiryOutcome, ExpiryRules, PartitionExpirer, PartitionExpiry
from coldlog.tiering.expiry.expiry_state import LogSources
from coldlog.tiering.expiry.tier_partitions import RemoteOffsets, TierPartitions
from coldlog.tiering.present_archive import find_absent, present_archive
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.segment_copy import SegmentCopier
from coldlog.tiering.tier_assignments import LEADER_OF_ALL, Assignments
from coldlog.tiering.tier_schedule import TAKEN_PER_THREAD, RunLeases, TierSchedule, TierTask

_TICK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOptions:
    """See the settings of the same names."""

    broker_id: int
    rules: ExpiryRules
    assignments: Assignments = LEADER_OF_ALL
    threads: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySummary:
    """What a run did: a row a partition that the events name. `unexplained` are directories of the archive, and what
    lies beside them, of which no event tells: nothing of them is touched; None: the archive did not answer that."""

    partitions: tuple[PartitionExpiry, ...]
    unexplained: tuple[str, ...] | None

    @property
    def deleted_count(self) -> int:
        """Segments."""
        return sum(each.deleted_count for each in self.partitions)

    @property
    def deleted_bytes(self) -> int:
        """Of logs."""
        return sum(each.deleted_bytes for each in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What a run works on."""

    archive: WritableStore
    events: ReadableEventLog
    sources: LogSources
    schedule: TierSchedule
    partitions: TierPartitions
    clock: Clock


def expire_segments(tier: Tier, options: ExpireOptions) -> ExpirySummary:
    """Deletes what has expired of the partitions that are due; a dry run takes and writes nothing."""
    known = KnownEventLog(tier.events)
    archive = present_archive(tier.archive, known, options.broker_id)
    tier = replace(tier, archive=archive, sources=replace(tier.sources, archive=archive))
    named = [each for each in known.partitions() if options.assignments.is_assigned(each.topic, each.partition)]
    work = [PartitionExpiry(partition=each) for each in named]
    for each in work:
        if not options.assignments.is_leader(each.partition.topic, each.partition.partition):
            each.outcome = ExpiryOutcome.FOLLOWED
    led = [each for each in work if each.outcome is not ExpiryOutcome.FOLLOWED]
    if options.rules.is_dry_run:
        _run_all(lambda: _expirer(tier, known, options, None), led, options.threads, None)
    else:
        places = {each.partition: each for each in led}
        leases = tier.schedule.take_due(TierTask.EXPIRE, places.keys(), at_most=options.threads * TAKEN_PER_THREAD)
        try:
            for each in led:
                each.outcome = ExpiryOutcome.NOT_DUE
            due = [places[each] for each in leases.partitions]
            _run_all(lambda: _expirer(tier, known, options, leases), due, options.threads, leases, places)
        finally:
            leases.close()
        _retrieve(tier, known, work)
    return ExpirySummary(partitions=tuple(work), unexplained=_list_unexplained(tier.archive, known.partitions()))


def _expirer(tier: Tier, known: KnownEventLog, options: ExpireOptions, leases: RunLeases | None) -> PartitionExpirer:
    """Made behind the leases that it works with: it knows what the run before announced, and where logs begin now."""
    known.refresh()
    return PartitionExpirer(
        archive=tier.archive,
        absent=find_absent(tier.archive, known, options.broker_id),
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
        find_copy=lambda partition: tier.schedule.entries(TierTask.COPY).get(partition),
    )


def _run_all(
    make_expirer: Callable[[], PartitionExpirer],
    work: Sequence[PartitionExpiry],
    threads: int,
    leases: RunLeases | None,
    places: Mapping[TopicIdPartition, PartitionExpiry] = MappingProxyType({}),
) -> None:
    """Runs each, then what else is due."""
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="coldlog-expire") as pool:
        expirer = make_expirer()
        under_way: dict[Future[None], PartitionExpiry] = {pool.submit(expirer.run, each): each for each in work}
        try:
            while under_way:
                ended, _ = wait(under_way, timeout=_TICK_S, return_when=FIRST_COMPLETED)
                if leases is not None:
                    leases.keep()
                for future in ended:
                    each = under_way.pop(future)
                    future.result()
                    if leases is not None:
                        leases.end(each.partition, each.why if each.outcome.is_failure else None)
                if leases is not None and (more := leases.refill(len(under_way))):
                    expirer = make_expirer()
                    under_way |= {pool.submit(expirer.run, places[each]): places[each] for each in more}
        except BaseException:
            for future in under_way:
                future.cancel()
            raise


def _retrieve(tier: Tier, known: KnownEventLog, work: Iterable[PartitionExpiry]) -> None:
    """Of a partition that was not due too: another host may have copied to it."""
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
        # Each partition has said why.
        return None
    unknown = [each.name for each in listing.directories if each.name not in names]
    return (*unknown, *(each.name for each in listing.unrecognized))


def _no_id() -> str:
    raise UsageError("expiry copies nothing")


def _nothing(_: TopicIdPartition) -> None:
    """A dry run needs no lease."""
