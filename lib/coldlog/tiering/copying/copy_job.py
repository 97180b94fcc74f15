"""Run the job copy_segments: build its options from the settings, and print the result.

Events are appended to the log at `metadata.uri` or, with `metadata.source=topic`, to the metadata topic of a cluster.
The exit code is 1 if a partition failed. A partition that is held back is reported, but does not fail the run. With
`tier.scheduled`, or if the warehouse already has a schedule, partitions are processed when they are due.
"""

from __future__ import annotations

from coldlog.archive.open_archive import directory_of
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.errors import UsageError
from coldlog.model.layout_names import LayoutName
from coldlog.runtime.console import Stage, counted, human_bytes, human_duration
from coldlog.runtime.followed_settings import following_settings
from coldlog.runtime.job import PlainJob
from coldlog.runtime.open_layout import decode_limits
from coldlog.runtime.settings import MetadataSource, Settings
from coldlog.tables.delta.run_rows import run_beside_writers
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
    """Copy the eligible segments. Return 1 if a partition failed or a log directory cannot be listed, else 0."""
    settings, clock = job.settings, clock or SystemClock()
    options, directories = copy_options(settings), _log_directories(settings)
    schedule = open_schedule(settings, clock, ignores_times=job.arguments.all, is_required=False)
    archive = open_tier_archive(settings)
    alone = schedule is None
    with (
        following_settings(job) as followed,
        run_beside_writers(settings, job.console, "copy_segments") as run,
        opened_events(settings, archive, runs_alone=alone, job="copy_segments", schedule=schedule) as events,
        job.console.stage("copy") as stage,
    ):
        summary = copy_segments(
            directories, archive, events, options, clock, schedule, lambda: followed.current.copy.threads
        )
        run.figures, run.error = summary.figures, summary.error
        _report(summary, stage)
    _show(job, summary)
    return int(bool(summary.error))


def copy_options(settings: Settings) -> CopyOptions:
    """Build the options of a copy from the settings."""
    copying, index = settings.copy, settings.index
    if settings.archive.layout is not LayoutName.LOCAL_TIERED_STORAGE:
        raise UsageError(f"archive.layout = {settings.archive.layout}: copy_segments writes only local_tiered_storage")
    if copying.broker_id < 0:
        raise UsageError(
            "broker.id is not set: give --set broker.id=N, the broker id of the segment events. No other copier and no "
            "broker with tiered storage may use it"
        )
    return CopyOptions(
        broker_id=copying.broker_id,
        quota=QuotaConfig(
            bytes_per_second=copying.max_bytes_per_second,
            window_count=copying.quota_window_num,
            window_ms=copying.quota_window_size_seconds * 1000,
        ),
        limits=decode_limits(settings),
        topics=listed(copying.topics),
        assignments=read_assignments(settings),
        threads=copying.threads,
        is_fair=copying.fairness,
        assumes_committed=copying.assume_committed,
        allows_gaps=copying.allow_gaps,
        shares_events_with_brokers=settings.metadata.source is MetadataSource.TOPIC,
        bytes_per_second_in_segment=copying.upload_bytes_per_second or None,
        window_bytes=index.window_bytes,
    )


def _log_directories(settings: Settings) -> list[str]:
    named = listed(settings.copy.log_directories or "")
    if not named:
        raise UsageError("copy.log_directories is not set: give --set copy.log_directories=/var/kafka-logs")
    if any(is_s3_uri(directory) for directory in named):
        raise UsageError("copy.log_directories must be local directories: a broker's log.dirs, or mirrors of them")
    return [directory_of(directory) for directory in named]


def _report(summary: CopySummary, stage: Stage) -> None:
    stage.add(counted(summary.copied_count, "segment") + " copied", human_bytes(summary.copied_bytes))
    cleaned = sum(each.cleaned_count for each in summary.partitions)
    if cleaned:
        stage.add(f"{counted(cleaned, 'unfinished copy', 'unfinished copies')} deleted")
    throttle = summary.throttle
    if throttle.waited_count or throttle.gave_up_count:
        stage.add(f"throttled {human_duration(throttle.waited_ms / 1000)} in {throttle.waited_count} waits")
        stage.add(f"a partition gave up its place {throttle.gave_up_count} times")
    later = sum(each.outcome is CopyOutcome.NOT_DUE for each in summary.partitions)
    if later:
        stage.add(f"{counted(later, 'partition')} not due, or held by another run")
    failed = sum(each.outcome.is_failure for each in summary.partitions)
    if failed:
        stage.add(f"{counted(failed, 'partition')} failed")
    if summary.unlisted:
        stage.add(f"{len(summary.unlisted)} log directories cannot be listed")


def _show(job: PlainJob, summary: CopySummary) -> None:
    """Print the partitions that were copied, wait or failed."""
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
        job.console.warn(f"log directory {directory} cannot be listed, nothing of it was copied: check the mount")


def _why_nothing(settings: Settings, summary: CopySummary) -> str:
    if not summary.partitions:
        led = "" if settings.tier.assignments is None else ", led by this host according to tier.assignments,"
        return f"no partition of copy.topics = {settings.copy.topics}{led} is in {settings.copy.log_directories}"
    if all(each.outcome is CopyOutcome.NOT_DUE for each in summary.partitions):
        return NOTHING_DUE
    return "nothing to copy"
