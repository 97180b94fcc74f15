"""copy_job: what does copy_segments take from the settings, and what does it tell people?

Events go to the log at `metadata.uri` or, with `metadata.source=topic`, to the metadata topic of a cluster. A run fails
(exit code 1) when a partition failed; one that is held back is told and fails no run. With `tier.scheduled`, and
wherever a schedule is kept in the warehouse already, partitions are processed when they are due.
"""

from __future__ import annotations

import argparse

from coldlog.archive.open_archive import directory_of
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.errors import UsageError
from coldlog.runtime.console import Stage, counted, human_bytes, human_duration
from coldlog.runtime.job import PlainJob
from coldlog.runtime.open_layout import decode_limits
from coldlog.runtime.settings import ArchiveLayout, Settings
from coldlog.tiering.copying.copy_partition import CopyOutcome
from coldlog.tiering.copying.copy_segments import CopyOptions, CopySummary, copy_segments
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.system_clock import SystemClock
from coldlog.tiering.tier_settings import (
    NOTHING_DUE,
    listed,
    open_schedule,
    open_tier_archive,
    opened_events,
    read_assignments,
)


def copy(job: PlainJob, clock: Clock | None = None) -> int:
    """copy_segments: copy what is eligible; 1 if a partition failed."""
    settings, clock = job.settings, clock or SystemClock()
    options, directories = copy_options(settings), _log_directories(settings)
    schedule = open_schedule(settings, clock, ignores_times=job.arguments.all, is_required=False)
    archive = open_tier_archive(settings)
    alone = schedule is None
    with (
        opened_events(settings, archive, runs_alone=alone, job="copy_segments", schedule=schedule) as events,
        job.console.stage("copy") as stage,
    ):
        summary = copy_segments(directories, archive, events, options, clock, schedule)
        _tell(summary, stage)
    _show(job, summary)
    return int(bool(summary.unlisted) or any(each.outcome.is_failure for each in summary.partitions))


def add_copy_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """`--all`."""
    parser.add_argument(
        "--all",
        action="store_true",
        help="with a schedule: process what nobody holds, whether its time has come or not",
    )
    return parser


def copy_options(settings: Settings) -> CopyOptions:
    """The part of the settings that a copy needs."""
    own, index = settings.copy, settings.index
    if settings.archive.layout is not ArchiveLayout.LOCAL_TIERED_STORAGE:
        raise UsageError(f"archive.layout = {settings.archive.layout}: copy_segments writes local_tiered_storage alone")
    if own.broker_id < 0:
        raise UsageError(
            "broker.id is not set: give --set broker.id=N, the number under which segments are announced; no copier of "
            "another broker's directories, and no broker that tiers by itself, may have it"
        )
    return CopyOptions(
        broker_id=own.broker_id,
        quota=QuotaConfig(
            bytes_per_second=own.max_bytes_per_second,
            window_count=own.quota_window_num,
            window_ms=own.quota_window_size_seconds * 1000,
        ),
        limits=decode_limits(settings),
        topics=listed(own.topics),
        assignments=read_assignments(settings),
        threads=own.threads,
        is_fair=own.fairness,
        assumes_committed=own.assume_committed,
        allows_gaps=own.allow_gaps,
        bytes_per_second_in_segment=own.upload_bytes_per_second or None,
        window_bytes=index.window_bytes,
    )


def _log_directories(settings: Settings) -> list[str]:
    named = listed(settings.copy.log_directories or "")
    if not named:
        raise UsageError("copy.log_directories is not set: give --set copy.log_directories=/var/kafka-logs")
    if any(is_s3_uri(each) for each in named):
        raise UsageError("copy.log_directories must be directories of this machine: a broker's log.dirs, or mirrors")
    return [directory_of(each) for each in named]


def _tell(summary: CopySummary, stage: Stage) -> None:
    stage.add(counted(summary.copied_count, "segment") + " copied", human_bytes(summary.copied_bytes))
    cleaned = sum(each.cleaned_count for each in summary.partitions)
    if cleaned:
        stage.add(f"{counted(cleaned, 'unfinished copy', 'unfinished copies')} deleted")
    throttle = summary.throttle
    if throttle.waited_count or throttle.gave_up_count:
        stage.add(f"throttled {human_duration(throttle.waited_ms / 1000)} in {throttle.waited_count} waits")
        stage.add(f"{throttle.gave_up_count} times a place given up")
    later = sum(each.outcome is CopyOutcome.NOT_DUE for each in summary.partitions)
    if later:
        stage.add(f"{counted(later, 'partition')} not due, or held by another run")
    failed = sum(each.outcome.is_failure for each in summary.partitions)
    if failed:
        stage.add(f"{counted(failed, 'partition')} failed")
    if summary.unlisted:
        stage.add(f"{len(summary.unlisted)} log directories cannot be listed")


def _show(job: PlainJob, summary: CopySummary) -> None:
    """The partitions of which something is to be told."""
    rows = [
        (
            each.topic,
            each.partition,
            each.copied_count,
            each.copied_bytes,
            each.waiting_count,
            each.outcome.value,
            each.why,
        )
        for each in summary.partitions
        if each.copied_count or each.waiting_count or each.outcome not in (CopyOutcome.DONE, CopyOutcome.NOT_DUE)
    ]
    if rows:
        job.console.table(["topic", "partition", "copied", "bytes", "waiting", "outcome", "why"], rows)
    else:
        job.console.result(_why_nothing(job.settings, summary))
    for directory in summary.unlisted:
        job.console.note(f"log directory {directory} cannot be listed: is it mounted? nothing of it is copied")


def _why_nothing(settings: Settings, summary: CopySummary) -> str:
    own = settings.copy
    if not summary.partitions:
        led = "" if settings.tier.assignments is None else " that tier.assignments lets this host lead"
        return f"no partition of copy.topics = {own.topics}{led} lies in {own.log_directories}"
    if all(each.outcome is CopyOutcome.NOT_DUE for each in summary.partitions):
        return NOTHING_DUE
    return "nothing to copy"
