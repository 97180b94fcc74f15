"""End a run of run_pipeline before Spark starts, if it would change nothing.

The last run in `job_runs` that held the warehouse must be one of run_pipeline that succeeded and left a witness
(`witness`). Jobs that run beside writers (`JOBS_BESIDE_WRITERS`) do not count. Under the lock of the warehouse, every
state of the witness is compared with the present one, cheap states first; the archive is listed in this process, but
for directories that follow the metadata topic and are not due (`due_listings`). If all are the same, the run ends with
one commit, its row in `job_runs` with the same witness, and the exit code 0. Otherwise, and in any doubt, the run does
every step and reports what it finds.

A lock that another job holds is an error here already. A lease that was not released is left to Spark, which blocks
late commits of its holder first (`Warehouse.fence`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from coldlog.errors import ColdlogError
from coldlog.indexing.last_run import RUN_PIPELINE, SINCE, find_last_run
from coldlog.indexing.run_log import record_unchanged_run
from coldlog.indexing.scan.listing import ArchiveDigest, DirectoryDigest, digest_archive
from coldlog.indexing.scan.reported_listing import age_in_days, find_report, newer_listing, seen_since
from coldlog.indexing.scan.touched import (
    KeptDigests,
    Touched,
    find_touched,
    keep_digests,
    listed_again,
    may_be_limited,
    not_due,
    read_kept,
    with_seen_times,
)
from coldlog.indexing.sources import ask_live_log_starts, open_event_source
from coldlog.indexing.witness import (
    ARCHIVE,
    EVENTS,
    KEY,
    LOG_STARTS,
    NOTHING,
    REPORTS,
    Witness,
    find_change,
    log_starts_digest,
    may_be_unchanged,
    read_surroundings,
    read_table_states,
    reports_state,
)
from coldlog.runtime.console import Stage, counted
from coldlog.runtime.job import PlainJob
from coldlog.runtime.open_layout import layout_opener
from coldlog.runtime.settings import MetadataSource, Settings
from coldlog.tables.delta.run_rows import now_ms
from coldlog.tables.leases.warehouse_lease import WarehouseLease
from coldlog.tables.leases.warehouse_lock import writing
from coldlog.tiering.expiry.supplied_log_starts import read_log_start_offsets

_NOT_KNOWN = "not known"
_MOST_LISTED = 500_000
"""So many segments are listed in this process although new events make a run necessary."""


class _LeftToSparkError(Exception):
    """The lease must not be released as that of a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOutcome:
    """`exit_code` is that of the run if it has ended. If it must be made, `touched` are the partitions that have
    changed; None: all may have."""

    exit_code: int | None = None
    touched: Touched | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """The archive as it is now, and what the last run found in it."""

    archive: ArchiveDigest
    kept: KeptDigests
    has_report: bool
    """Whether the settings name S3 Inventory reports."""


def end_unchanged_run(job: PlainJob, *, is_full_listing: bool = False) -> PreflightOutcome:
    """End the run if nothing has changed since the last one. `is_full_listing`: list every directory."""
    settings = job.settings
    is_possible = settings.pipeline.skip_unchanged and may_be_unchanged(settings)
    if not is_possible or find_last_run(settings.warehouse_uri) is None:
        return PreflightOutcome()
    started_ms = now_ms()
    try:
        with writing(settings.warehouse_uri, lease_s=settings.warehouse.lease_seconds) as lease:
            if lease is not None and lease.was_abandoned:
                raise _LeftToSparkError
            with job.console.stage("preflight") as stage:
                return _end_if_unchanged(settings, lease, stage, started_ms, is_full_listing=is_full_listing)
    except _LeftToSparkError:
        return PreflightOutcome()


def _end_if_unchanged(
    settings: Settings, lease: WarehouseLease | None, stage: Stage, started_ms: int, *, is_full_listing: bool
) -> PreflightOutcome:
    uri = settings.warehouse_uri
    last, touched, listed = find_last_run(uri), None, None
    try:
        if last is None:
            change: str | None = "the last run"
        else:
            change, listed = _find_change(settings, last.witness, stage, is_full_listing=is_full_listing)
            if change is not None and listed is not None and settings.log_start_offsets.bootstrap_servers is None:
                touched = find_touched(listed.kept, last.witness, listed.archive)
    except ColdlogError as in_doubt:
        change, touched = f"not known ({in_doubt})", None
    if last is not None and change is None:
        summary = {SINCE: last.full_run_id, KEY: last.witness}
        if record_unchanged_run(uri, lease, RUN_PIPELINE, started_ms, summary):
            stage.add("nothing has changed since the last run")
            if listed is not None:
                _keep_times(uri, listed)
            return PreflightOutcome(exit_code=0)
        change = "job_runs"
    stage.facts[:] = [f"changed: {change}"]
    return PreflightOutcome(touched=touched)


def _find_change(
    settings: Settings, witness: Witness, stage: Stage, *, is_full_listing: bool
) -> tuple[str | None, _Listed | None]:
    """Return the first thing of the witness that has changed, and what was listed if nothing else has changed than the
    archive and the metadata topic."""
    changed, began_ms = None, now_ms()
    kept = read_kept(settings.warehouse_uri, witness[ARCHIVE])
    report = None if is_full_listing else find_report(settings)
    if report is None:
        known = not_due(kept, began_ms, _full_listing_hours(settings, is_full_listing=is_full_listing))
    else:
        known = seen_since(kept, report)
    for now in _iter_states(settings):
        if change := find_change(witness, now):
            # What new events name is known only when they are read. Tasks list a large archive sooner.
            is_live = settings.log_start_offsets.bootstrap_servers is not None
            if change != EVENTS or is_live or not may_be_limited(kept, known, _MOST_LISTED):
                return change, None
            changed = change
    layout = layout_opener(settings)()
    if report is not None:
        layout = newer_listing(layout, report, kept)
    archive = listed_again(digest_archive(layout, known), kept, known, began_ms)
    archive = with_seen_times(archive, layout, began_ms, lambda directory: directory.name not in known)
    known_count = sum(each.directory.name in known for each in archive.directories)
    partitions = counted(len(archive.directories), "partition")
    if known_count:
        others = "follow the metadata topic" if report is None else f"were seen since {report.shown_time}"
        stage.add(partitions, f"{len(archive.directories) - known_count} listed, the others {others}")
    else:
        stage.add(partitions, counted(archive.totals.segments, "segment") + " listed")
    if report is not None and (days := age_in_days(report, began_ms)):
        stage.add(f"this report is {days} days old")
    listed = _Listed(archive=archive, kept=kept, has_report=report is not None)
    return changed or find_change(witness, {ARCHIVE: archive.digest}), listed


def _full_listing_hours(settings: Settings, *, is_full_listing: bool) -> float:
    # A table may lack events, and get them behind those that were read. So it does not say which directories changed.
    is_full_listing |= settings.metadata.source is MetadataSource.TABLE
    return 0.0 if is_full_listing else settings.scan.full_listing_hours


def _keep_times(uri: str, listed: _Listed) -> None:
    """Store which directories were listed. If that fails, they are listed again."""

    def times(digests: Iterable[DirectoryDigest]) -> dict[str, tuple[int | None, int | None]]:
        # Without reports, the table is not written in every run only to say that it has listed.
        return {each.directory.name: (each.listed_ms, each.seen_ms if listed.has_report else None) for each in digests}

    before = times(listed.kept.values())
    if before and before != times(listed.archive.directories):
        with suppress(ColdlogError):
            keep_digests(uri, listed.archive)


def _iter_states(settings: Settings) -> Iterator[Witness]:
    """Yield everything that a witness names but the archive, cheap states first."""
    yield read_surroundings(settings)
    yield {REPORTS: reports_state(settings.warehouse_uri)}
    yield read_table_states(settings.warehouse_uri)
    supplied = settings.log_start_offsets.uri
    log_starts = {} if supplied is None else read_log_start_offsets(supplied)
    yield {LOG_STARTS: log_starts_digest(log_starts, ask_live_log_starts(settings))}
    source = open_event_source(settings)
    yield {EVENTS: NOTHING if source is None else source.digest() or _NOT_KNOWN}
