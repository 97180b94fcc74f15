"""Run the job expire_segments: build its options from the settings, and print the result.

The exit code is 1 if a partition failed. Segments that are held back, objects that belong to no segment and names that
cannot be explained are reported, but do not fail the run.

Refused (`UsageError`): a retention file with values that are not numbers, an archive that coldlog does not write, an
event log that a broker keeps or that does not exist (without events every object of an archive would be an orphan).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from coldlog.archive.metadata_log_writer import has_marker
from coldlog.archive.open_archive import directory_of
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.brokers.kafka_client import open_cluster
from coldlog.errors import UsageError
from coldlog.model.layout_names import LayoutName
from coldlog.runtime.console import Stage, counted, human_bytes
from coldlog.runtime.followed_settings import following_settings
from coldlog.runtime.job import PlainJob
from coldlog.runtime.open_layout import decode_limits
from coldlog.runtime.settings import MetadataSource, Settings
from coldlog.tables.delta.run_rows import RunBesideWriters, run_beside_writers
from coldlog.tiering.event_logs import KnownEventLog, ReadableEventLog
from coldlog.tiering.expiry.expire_partition import ExpiryOutcome, ExpiryRules, PartitionExpiry, iter_reasons
from coldlog.tiering.expiry.expire_segments import ExpireOptions, ExpirySummary, Tier, expire_segments
from coldlog.tiering.expiry.expiry_state import LogSources
from coldlog.tiering.expiry.supplied_log_starts import ask_brokers, read_log_start_offsets
from coldlog.tiering.rules.expiry import Retention
from coldlog.tiering.system_clock import SystemClock
from coldlog.tiering.tier_assignments import read_csv
from coldlog.tiering.tier_partitions import TierPartitions
from coldlog.tiering.tier_settings import (
    NOTHING_DUE,
    listed,
    open_schedule,
    open_tier_archive,
    opened_events,
    read_assignments,
)

_SHOWN = 20


def expire(job: PlainJob) -> int:
    """Delete what has expired. Return 1 if a partition failed, else 0."""
    settings, clock = job.settings, SystemClock()
    options = expire_options(settings, is_dry_run=job.arguments.dry_run)
    _require_log(settings)
    schedule = open_schedule(settings, clock, ignores_times=job.arguments.all, is_required=True)
    assert schedule is not None
    archive = open_tier_archive(settings, may_begin=False)
    leased = None if options.rules.is_dry_run else schedule
    with (
        following_settings(job) as followed,
        _recorded(job) as run,
        opened_events(settings, archive, runs_alone=None, job="expire_segments", schedule=leased) as events,
        job.console.stage("expire") as stage,
    ):
        sources = LogSources(
            archive=archive,
            limits=decode_limits(settings),
            directories=tuple(directory_of(each) for each in listed(settings.copy.log_directories or "")),
            supplied_log_starts=_supplied_log_starts(settings, events),
            takes_log_starts_of_directories=settings.expire.log_start_of_directories,
        )
        tier = Tier(
            archive=archive,
            events=events,
            sources=sources,
            schedule=schedule,
            partitions=TierPartitions.below(schedule.table.uri, clock),
            clock=clock,
        )
        summary = expire_segments(tier, options, lambda: followed.current.expire.threads)
        run.figures, run.error = summary.figures, summary.error
        _report(summary, stage, options.rules)
    _show(job, summary, options.rules)
    return int(bool(summary.error))


def _recorded(job: PlainJob) -> AbstractContextManager[RunBesideWriters]:
    """Record the run in `job_runs`, but not a dry one: that is a question."""
    if job.arguments.dry_run:
        return nullcontext(RunBesideWriters())
    return run_beside_writers(job.settings, job.console, "expire_segments")


def expire_options(settings: Settings, *, is_dry_run: bool) -> ExpireOptions:
    """Build the options of expiry from the settings."""
    expire = settings.expire
    if settings.archive.layout is not LayoutName.LOCAL_TIERED_STORAGE:
        raise UsageError(
            f"archive.layout = {settings.archive.layout}: expire_segments deletes only from local_tiered_storage. "
            "A plugin or broker expires what it has tiered"
        )
    if settings.copy.broker_id < 0:
        raise UsageError("broker.id is not set: give --set broker.id=N, the broker id of the segment events")
    return ExpireOptions(
        broker_id=settings.copy.broker_id,
        rules=ExpiryRules(
            retention=Retention(retention_ms=expire.retention_ms, retention_bytes=expire.retention_bytes),
            retentions={} if expire.retentions is None else read_retentions(directory_of(expire.retentions)),
            retry_interval_ms=settings.tier.retry_interval_ms,
            orphan_min_age_ms=expire.orphan_min_age_ms,
            passes_future_timestamps=expire.pass_future_timestamps,
            is_dry_run=is_dry_run,
            deletes_of_others=settings.metadata.source is not MetadataSource.TOPIC,
        ),
        assignments=read_assignments(settings),
        threads=expire.threads,
    )


def read_retentions(path: str) -> Mapping[str, Retention]:
    """Read the retention of single topics from a CSV file topic,retention_ms,retention_bytes."""
    found: dict[str, Retention] = {}
    for number, row in read_csv(path, ("topic", "retention_ms", "retention_bytes"), "expire.retentions"):
        try:
            retention = Retention(retention_ms=int(row["retention_ms"]), retention_bytes=int(row["retention_bytes"]))
        except ValueError as wrong:
            raise UsageError(f"{path}, line {number}: expected numbers, -1 for no limit: {row}") from wrong
        if not row["topic"] or row["topic"] in found or min(retention.retention_ms, retention.retention_bytes) < -1:
            raise UsageError(f"{path}, line {number}: expected each topic once, and numbers of -1 or more: {row}")
        found[row["topic"]] = retention
    return found


def _require_log(settings: Settings) -> None:
    """Refuse a directory without an event log of copy_segments; this job does not begin one."""
    metadata = settings.metadata
    if metadata.source is not MetadataSource.LOG_SEGMENTS or metadata.uri is None or is_s3_uri(metadata.uri):
        return
    directory = directory_of(metadata.uri)
    if not has_marker(directory):
        raise UsageError(
            f"{directory} has no event log of copy_segments: correct metadata.uri. If a broker wrote the log there, "
            "that broker expires its own segments"
        )


def _supplied_log_starts(settings: Settings, events: ReadableEventLog) -> dict[tuple[str, int], int]:
    """Return the log starts of the file and of the brokers, the higher one where both have one. Brokers are asked only
    if a setting says so: a broker without tiered storage moves its log start by its own retention, which would expire
    the tier too."""
    supplied, found = settings.log_start_offsets, dict[tuple[str, int], int]()
    if supplied.uri is not None:
        found.update(read_log_start_offsets(directory_of(supplied.uri)))
    if supplied.bootstrap_servers is not None and settings.expire.log_start_of_brokers:
        cluster = open_cluster(
            supplied.bootstrap_servers, settings.metadata.timeout_ms, settings.metadata.client_config
        )
        for place, offset in ask_brokers(cluster, KnownEventLog(events).current_topic_ids()).log_starts.items():
            found[place] = max(offset, found.get(place, 0))
    return found


def _report(summary: ExpirySummary, stage: Stage, rules: ExpiryRules) -> None:
    planned = [segment for each in summary.partitions for segment in each.planned]
    if rules.is_dry_run:
        stage.add(
            counted(len(planned), "segment") + " would be deleted", human_bytes(sum(s.size_bytes for s in planned))
        )
    else:
        stage.add(counted(summary.deleted_count, "segment") + " deleted", human_bytes(summary.deleted_bytes))
    for count, meaning in (
        (sum(len(each.orphans) for each in summary.partitions), "objects that belong to no segment"),
        (sum(each.waiting_orphan_count for each in summary.partitions), "such objects kept for now"),
        (sum(each.outcome is ExpiryOutcome.NOT_DUE for each in summary.partitions), "partitions not due, or held"),
        (sum(each.outcome.is_failure for each in summary.partitions), "partitions failed"),
    ):
        if count:
            stage.add(f"{count} {meaning}")


def _show(job: PlainJob, summary: ExpirySummary, rules: ExpiryRules) -> None:
    """Print the plan or its result, then the names that no event explains."""
    rows = [row for each in summary.partitions for row in _rows(each)]
    if rows:
        headers = ["topic", "partition", "segments", "bytes", "reason", "log start", "outcome", "why"]
        job.console.table(headers, rows)
    elif summary.partitions and all(each.outcome is ExpiryOutcome.NOT_DUE for each in summary.partitions):
        job.console.result(NOTHING_DUE)
    else:
        job.console.result("nothing would be deleted" if rules.is_dry_run else "nothing has expired")
    unknown = rules.retentions.keys() - {each.partition.topic for each in summary.partitions}
    if unknown:
        names = ", ".join(sorted(unknown))
        job.console.warn(f"expire.retentions names topics that have no segment in the tier: {names}")
    if summary.why_unlisted:
        job.console.warn(
            "unfinished uploads are left, because they cannot be listed (this needs s3:ListBucketMultipartUploads): "
            f"{summary.why_unlisted}"
        )
    unexplained = [*(summary.unexplained or ()), *(name for each in summary.partitions for name in each.unexplained)]
    if unexplained:
        names = ", ".join(unexplained[:_SHOWN]) + (", ..." if len(unexplained) > _SHOWN else "")
        job.console.warn(f"not touched, because no event names it ({len(unexplained)}): {names}")


def _rows(work: PartitionExpiry) -> list[tuple[object, ...]]:
    place, start = (work.partition.topic, work.partition.partition), work.log_start_offset
    outcome, held = work.outcome.value, work.held_back
    rows: list[tuple[object, ...]] = [
        (*place, count, size_bytes, reason, "" if start is None else start, outcome, work.why)
        for reason, count, size_bytes in iter_reasons(work)
    ]
    for kind in sorted({each.kind for each in work.orphans}):
        sizes = [each.size_bytes for each in work.orphans if each.kind is kind]
        rows.append((*place, "", sum(sizes), f"{len(sizes)} objects: {kind.value}", "", outcome, work.why))
    if held is not None:
        why = (
            f"{counted(held.segment_count, 'segment')} after offset {held.by.start_offset}, "
            f"whose largest timestamp {held.by.max_timestamp_ms} is in the future; use --pass-future-timestamps"
        )
        rows.append((*place, held.segment_count, held.size_bytes, "held back", "", outcome, why))
    if not rows and (work.outcome.is_failure or work.outcome is ExpiryOutcome.NOT_OURS):
        rows.append((*place, 0, 0, "", "", outcome, work.why))
    return rows
