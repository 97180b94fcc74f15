"""Copy the closed segments of log directories into an archive.

A thread pool of this process copies several partitions at once, each partition in one thread. All threads share the
write quota of one broker. A partition that gives up its place (`copy.fairness`) goes to the end of the queue. No Spark
is used: the quota, the disks and the store limit a copy. With a schedule several processes may copy for one broker;
they share its quota in a table (`shared_quota`).

Internal topics are not copied, as in Kafka.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

from coldlog.archive.layouts.log_directory import find_partition, list_partitions
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.object_writer import WritableStore
from coldlog.errors import ColdlogError, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.model.ids import TopicIdPartition, uuid_text
from coldlog.model.internal_topics import INTERNAL_TOPICS
from coldlog.tiering.copying.copy_partition import CopyOutcome, PartitionCopier, PartitionCopy, identify
from coldlog.tiering.event_logs import KnownEventLog, ReadableEventLog
from coldlog.tiering.present_archive import find_absent, present_archive
from coldlog.tiering.rules.byte_limiter import ByteLimiter
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.copy_quota import CopyQuota, ThrottleReport
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.segment_copy import SegmentCopier
from coldlog.tiering.shared_quota import SharedQuota
from coldlog.tiering.tier_assignments import LEADER_OF_ALL, Assignments
from coldlog.tiering.tier_partitions import TierPartitions
from coldlog.tiering.tier_schedule import TAKEN_PER_THREAD, RunLeases, TierSchedule, TierTask
from coldlog.tiering.work_pool import WorkPool

_NEVER_COPIED = INTERNAL_TOPICS | {METADATA_TOPIC}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """See the settings of the same names; `topics` are patterns with `*` and `?`."""

    broker_id: int
    quota: QuotaConfig
    limits: DecodeLimits
    topics: tuple[str, ...] = ("*",)
    assignments: Assignments = LEADER_OF_ALL
    threads: int = 10
    is_fair: bool = False
    assumes_committed: bool = False
    allows_gaps: bool = False
    shares_events_with_brokers: bool = False
    """True: another broker id in the events may be a broker that copies now, and knows no lease."""
    bytes_per_second_in_segment: int | None = None
    window_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySummary:
    """The result of a run: one entry for each partition, by topic and number, and how long the quota made copies wait.
    `unlisted` are log directories that could not be listed, for example on a failed disk; the others were copied.
    `retried_count` partitions had failed in their last run."""

    partitions: tuple[PartitionCopy, ...]
    throttle: ThrottleReport
    unlisted: tuple[str, ...] = ()
    retried_count: int = 0

    @property
    def error(self) -> str:
        """Return why the run failed; empty: it did not."""
        failed = [each for each in self.partitions if each.outcome.is_failure]
        facts = [f"{len(failed)} partitions failed, the first one: {failed[0].why}"] if failed else []
        facts += [f"{len(self.unlisted)} log directories cannot be listed"] if self.unlisted else []
        return "; ".join(facts)

    @property
    def figures(self) -> dict[str, object]:
        """Return what the run's row of `job_runs` says."""
        throttle = self.throttle
        return {
            "segments": self.copied_count,
            "bytes": self.copied_bytes,
            "waiting_segments": sum(each.waiting_count for each in self.partitions),
            "waits": throttle.waited_count,
            "waited_ms": throttle.waited_ms,
            "longest_throttle_ms": throttle.longest_throttle_ms,
            "gave_up_place": throttle.gave_up_count,
            "partitions": sum(each.outcome is not CopyOutcome.NOT_DUE for each in self.partitions),
            "failed_partitions": sum(each.outcome.is_failure for each in self.partitions),
            "retries": self.retried_count,
        }

    @property
    def copied_count(self) -> int:
        """Return the number of copied segments."""
        return sum(each.copied_count for each in self.partitions)

    @property
    def copied_bytes(self) -> int:
        """Return the log bytes of the copied segments."""
        return sum(each.copied_bytes for each in self.partitions)


def copy_segments(
    directories: Sequence[str],
    archive: WritableStore,
    events: ReadableEventLog,
    options: CopyOptions,
    clock: Clock,
    schedule: TierSchedule | None = None,
    threads: Callable[[], int] | None = None,
) -> CopySummary:
    """Copy what is eligible in these log directories of one broker: of all partitions or, with a schedule, of those
    that are due. `threads` is asked while it runs how many partitions are copied at once; None: `options.threads`."""
    listed, unlisted = _list_work(directories, options.topics)
    work = [p for p in listed if options.assignments.is_leader(p.topic, p.partition)]
    leases = None if schedule is None else _take_leases(schedule, work, options.threads)
    limit = options.bytes_per_second_in_segment
    quota, stopping = CopyQuota(options.quota, clock, _shared_quota(options, clock, schedule)), threading.Event()
    try:
        # Read the events after taking the leases: then the events of earlier runs on these partitions are known.
        known = KnownEventLog(events)
        archive = present_archive(archive, known, options.broker_id)
        copier = PartitionCopier(
            absent=find_absent(archive, known, options.broker_id),
            copier=SegmentCopier(
                archive=archive,
                events=known,
                clock=clock,
                new_id=random_uuid,
                broker_id=options.broker_id,
                limiter=None if limit is None else ByteLimiter(limit, clock),
                require=_nothing if leases is None else leases.require,
            ),
            events=known,
            quota=quota,
            limits=options.limits,
            window_bytes=options.window_bytes,
            is_fair=options.is_fair,
            assumes_committed=options.assumes_committed,
            allows_gaps=options.allows_gaps,
            stopping=stopping,
            keep_leases=_no_leases if leases is None else leases.keep,
            cleans_up_others=leases is not None and not options.shares_events_with_brokers,
            find_log_start=None if schedule is None else _log_starts_of(schedule, clock),
        )
        due = [partition for partition in work if partition.outcome is not CopyOutcome.NOT_DUE]
        if leases is not None:
            order: dict[TopicIdPartition | None, int] = {p: position for position, p in enumerate(leases.partitions)}
            # A partition without a topic id is in no schedule; it runs first, and is held back at once.
            due.sort(key=lambda partition: order.get(partition.topic_id_partition, -1))
        _run_all(
            copier, due, threads or (lambda: options.threads), leases, {each.topic_id_partition: each for each in work}
        )
    finally:
        if leases is not None:
            leases.close()
    retried_count = 0 if leases is None else leases.retried_count
    return CopySummary(partitions=tuple(work), throttle=quota.report(), unlisted=unlisted, retried_count=retried_count)


def _log_starts_of(schedule: TierSchedule, clock: Clock) -> Callable[[TopicIdPartition], int]:
    """Return the function that looks up a log start as expiry has set it now. Expiry uses the same warehouse."""
    partitions = TierPartitions.below(schedule.table.uri, clock)
    return lambda partition: partitions.log_starts().get(partition, 0)


def _shared_quota(options: CopyOptions, clock: Clock, schedule: TierSchedule | None) -> SharedQuota | None:
    """Return the shared quota if there is a schedule: then several runs may copy for one broker at once."""
    if schedule is None or options.quota.is_unlimited:
        return None
    return SharedQuota.below(schedule.table.uri, options.broker_id, options.quota.bytes_per_second, clock)


def _take_leases(schedule: TierSchedule, work: Sequence[PartitionCopy], threads: int) -> RunLeases:
    """Take leases of due partitions; those without a lease are NOT_DUE until they are taken. A partition without a
    topic id is in no schedule, and is not copied."""
    for copy in work:
        store = LocalStore(root=copy.directory, uri=copy.directory)
        # If it fails here, it fails again when it is processed, and is reported then.
        with suppress(ColdlogError):
            found = find_partition(store, copy.topic, copy.partition)
            copy.topic_id_partition = None if found is None else identify(store, found)
    assigned = {p for copy in work if (p := copy.topic_id_partition) is not None}
    leases = schedule.take_due(TierTask.COPY, assigned, at_most=threads * TAKEN_PER_THREAD)
    taken = set(leases.partitions)
    for copy in work:
        if copy.topic_id_partition is not None and copy.topic_id_partition not in taken:
            copy.outcome = CopyOutcome.NOT_DUE
    return leases


def _nothing(_: TopicIdPartition) -> None:
    """Accept: no lease is needed."""


def _no_leases() -> None:
    """Renew nothing: there is no lease."""


def random_uuid() -> str:
    """Make a random id as Kafka's Uuid.randomUuid does: version 4, and its text never begins with a dash."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80
        text = uuid_text(bytes(raw))
        if not text.startswith("-"):
            return text


def _list_work(directories: Sequence[str], topics: Sequence[str]) -> tuple[list[PartitionCopy], tuple[str, ...]]:
    """Return the partitions, and the directories that cannot be listed. Raise `UsageError` if none can be listed."""
    found: dict[tuple[str, int], str] = {}
    unlisted: dict[str, ColdlogError] = {}
    for directory in directories:
        try:
            places = list_partitions(LocalStore(root=directory, uri=directory))
        except ColdlogError as failed:
            unlisted[directory] = failed
            continue
        for place in places:
            if place[0] in _NEVER_COPIED or not any(fnmatchcase(place[0], pattern) for pattern in topics):
                continue
            if place in found:
                raise UsageError(
                    f"{place[0]}-{place[1]} is in {found[place]} and in {directory}, but a broker has a partition only "
                    "once. Copy the log directories of each broker in a separate run"
                )
            found[place] = directory
    if len(unlisted) == len(directories):
        directory, why = next(iter(unlisted.items()))
        raise UsageError(
            f"log directory {directory} cannot be listed: check the mount and copy.log_directories"
        ) from why
    work = [
        PartitionCopy(directory=directory, topic=topic, partition=partition)
        for (topic, partition), directory in sorted(found.items())
    ]
    return work, tuple(unlisted)


def _run_all(
    copier: PartitionCopier,
    work: Sequence[PartitionCopy],
    threads: Callable[[], int],
    leases: RunLeases | None,
    by_partition: Mapping[TopicIdPartition | None, PartitionCopy],
) -> None:
    """Run the work; a partition that gave up its place continues after the waiting ones. Then take more that is due."""
    with WorkPool[PartitionCopy](threads, "coldlog-copy") as pool:
        try:
            pool.add(copier.run, work)
            while pool.unfinished_count:
                ended = pool.wait()
                copier.keep_leases()
                for copy in ended:
                    if copy.outcome is CopyOutcome.GAVE_UP_PLACE:
                        pool.add(copier.run, [copy])
                    elif leases is not None and copy.topic_id_partition is not None:
                        is_over = copy.outcome in (CopyOutcome.DONE, CopyOutcome.HELD_BACK)
                        leases.end(copy.topic_id_partition, None if is_over else copy.why or copy.outcome.value)
                more = () if leases is None else leases.refill(pool.unfinished_count)
                if more:
                    # Read the events after taking the leases, as for the first ones.
                    copier.events.refresh()
                pool.add(copier.run, [by_partition[p] for p in more])
        except BaseException:
            # Threads that copy finish their segment; no other segment is begun.
            copier.stopping.set()
            raise
