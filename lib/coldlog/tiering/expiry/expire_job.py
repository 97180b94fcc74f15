"""expire_job: what does expire_segments take from the settings, and what does it tell people?

A run fails (exit code 1) when a partition failed. What holds segments back, what lies in the archive and belongs to
nothing, and what cannot be explained is told, and fails no run.

Refused (`UsageError`): a retention file that says something else than numbers, an archive that coldlog does not write,
a log of events that a broker keeps, or that is not there: without events everything in an archive would be an orphan.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from coldlog.archive.metadata_log_writer import has_marker
from coldlog.archive.open_archive import directory_of
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.brokers.kafka_client import open_cluster
from coldlog.errors import UsageError
from coldlog.runtime.console import Stage, counted, human_bytes
from coldlog.runtime.job import PlainJob
from coldlog.runtime.open_layout import decode_limits
from coldlog.runtime.settings import ArchiveLayout, MetadataSource, Settings
from coldlog.tiering.event_logs import KnownEventLog, ReadableEventLog
from coldlog.tiering.expiry.expire_partition import ExpiryOutcome, ExpiryRules, PartitionExpiry, iter_reasons
from coldlog.tiering.expiry.expire_segments import ExpireOptions, ExpirySummary, Tier, expire_segments
from coldlog.tiering.expiry.expiry_state import LogSources
from coldlog.tiering.expiry.supplied_log_starts import ask_brokers, read_log_start_offsets
from coldlog.tiering.expiry.tier_partitions import TierPartitions
from coldlog.tiering.rules.expiry import Retention
from coldlog.tiering.system_clock import SystemClock
from coldlog.tiering.tier_assignments import read_csv
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
    """expire_segments: delete what has expired; 1 if a partition failed."""
    settings, clock = job.settings, SystemClock()
    options = expire_options(settings, is_dry_run=job.arguments.dry_run)
    _require_log(settings)
    schedule = open_schedule(settings, clock, ignores_times=job.arguments.all, is_required=True)
    assert schedule is not None
    archive = open_tier_archive(settings, may_begin=False)
    leased = None if options.rules.is_dry_run else schedule
    with (
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
        summary = expire_segments(tier, options)
        _tell(summary, stage, options.rules)
    _show(job, summary, options.rules)
    return int(any(each.outcome.is_failure for each in summary.partitions))


def add_expire_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """`--dry-run` and `--all`."""
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be deleted and why, and delete nothing"
    )
    parser.add_argument(
        "--all", action="store_true", help="process whatever nobody holds, whether its time has come or not"
    )
    parser.add_argument(
        "--pass-future-timestamps",
        action="append_const",
        dest="set",
        const="expire.pass_future_timestamps=true",
        help="delete segments that are later than now too, where those behind them are expired by time",
    )
    return parser


def expire_options(settings: Settings, *, is_dry_run: bool) -> ExpireOptions:
    """The part of the settings that expiry needs."""
    own = settings.expire
    if settings.archive.layout is not ArchiveLayout.LOCAL_TIERED_STORAGE:
        raise UsageError(
            f"archive.layout = {settings.archive.layout}: expire_segments deletes from local_tiered_storage alone; "
            "what a plugin or a broker has tiered it expires itself"
        )
    if settings.copy.broker_id < 0:
        raise UsageError("broker.id is not set: give --set broker.id=N, the number under which segments are announced")
    return ExpireOptions(
        broker_id=settings.copy.broker_id,
        rules=ExpiryRules(
            retention=Retention(retention_ms=own.retention_ms, retention_bytes=own.retention_bytes),
            retentions={} if own.retentions is None else read_retentions(directory_of(own.retentions)),
            retry_interval_ms=settings.tier.retry_interval_ms,
            orphan_min_age_ms=own.orphan_min_age_ms,
            passes_future_timestamps=own.pass_future_timestamps,
            is_dry_run=is_dry_run,
            deletes_of_others=settings.metadata.source is not MetadataSource.TOPIC,
        ),
        assignments=read_assignments(settings),
        threads=own.threads,
    )


def read_retentions(path: str) -> Mapping[str, Retention]:
    """What a CSV file topic,retention_ms,retention_bytes says."""
    found: dict[str, Retention] = {}
    for number, row in read_csv(path, ("topic", "retention_ms", "retention_bytes"), "expire.retentions"):
        try:
            retention = Retention(retention_ms=int(row["retention_ms"]), retention_bytes=int(row["retention_bytes"]))
        except ValueError as wrong:
            raise UsageError(f"{path}, line {number}: numbers are expected, -1 is without end: {row}") from wrong
        if not row["topic"] or row["topic"] in found or min(retention.retention_ms, retention.retention_bytes) < -1:
            raise UsageError(f"{path}, line {number}: each topic once, and numbers from -1 on, are expected: {row}")
        found[row["topic"]] = retention
    return found


def _require_log(settings: Settings) -> None:
    """A log of our own; it is not begun here."""
    own = settings.metadata
    if own.source is not MetadataSource.LOG_SEGMENTS or own.uri is None or is_s3_uri(own.uri):
        return
    directory = directory_of(own.uri)
    if not has_marker(directory):
        raise UsageError(
            f"{directory} holds no log of events that copy_segments has begun: correct metadata.uri. If it is a "
            "broker's, that broker tiers by itself and expires by itself"
        )


def _supplied_log_starts(settings: Settings, events: ReadableEventLog) -> dict[tuple[str, int], int]:
    """The higher one where both tell. The pipeline's brokers are asked only where that is wanted: those that do not
    tier move the log start by their own retention, and the tier would go with it."""
    own, found = settings.log_start_offsets, dict[tuple[str, int], int]()
    if own.uri is not None:
        found.update(read_log_start_offsets(directory_of(own.uri)))
    if own.bootstrap_servers is not None and settings.expire.log_start_of_brokers:
        cluster = open_cluster(own.bootstrap_servers, settings.metadata.timeout_ms, settings.metadata.client_config)
        known = {(each.topic, each.partition): each.topic_id for each in KnownEventLog(events).partitions()}
        for place, offset in ask_brokers(cluster, known).log_starts.items():
            found[place] = max(offset, found.get(place, 0))
    return found


def _tell(summary: ExpirySummary, stage: Stage, rules: ExpiryRules) -> None:
    planned = [segment for each in summary.partitions for segment in each.planned]
    if rules.is_dry_run:
        stage.add(
            counted(len(planned), "segment") + " would be deleted", human_bytes(sum(s.size_bytes for s in planned))
        )
    else:
        stage.add(counted(summary.deleted_count, "segment") + " deleted", human_bytes(summary.deleted_bytes))
    for count, what in (
        (sum(len(each.orphans) for each in summary.partitions), "objects that belong to nothing"),
        (sum(each.waiting_orphan_count for each in summary.partitions), "such objects kept for now"),
        (sum(each.outcome is ExpiryOutcome.NOT_DUE for each in summary.partitions), "partitions not due, or held"),
        (sum(each.outcome.is_failure for each in summary.partitions), "partitions failed"),
    ):
        if count:
            stage.add(f"{count} {what}")


def _show(job: PlainJob, summary: ExpirySummary, rules: ExpiryRules) -> None:
    """The plan, or what became of it; then what nobody can explain."""
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
        job.console.note(f"expire.retentions names topics of which nothing is in the tier: {names}")
    unexplained = [*(summary.unexplained or ()), *(name for each in summary.partitions for name in each.unexplained)]
    if unexplained:
        names = ", ".join(unexplained[:_SHOWN]) + (", ..." if len(unexplained) > _SHOWN else "")
        job.console.note(f"not touched, because no event tells of it ({len(unexplained)}): {names}")


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
            f"{counted(held.segment_count, 'segment')} behind offset {held.by.start_offset}, "
            f"whose largest timestamp {held.by.max_timestamp_ms} is in the future; see --pass-future-timestamps"
        )
        rows.append((*place, held.segment_count, held.size_bytes, "held back", "", outcome, why))
    if not rows and (work.outcome.is_failure or work.outcome is ExpiryOutcome.NOT_OURS):
        rows.append((*place, 0, 0, "", "", outcome, work.why))
    return rows
