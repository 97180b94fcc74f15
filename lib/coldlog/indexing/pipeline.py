"""Run the steps of each indexing job and print what they did.

One job calls one function of this module. The function joins settings, archive and warehouse, runs each step as a stage
of the console, and records the run in `job_runs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from coldlog.archive.inventory.reports import InventoryReport
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.errors import ColdlogError, UsageError
from coldlog.indexing.builds.build import deepen_indexes
from coldlog.indexing.deepened_part import read_deepened_part
from coldlog.indexing.last_run import (
    MAINTAIN_TABLES,
    RUN_PIPELINE,
    VALIDATE_TABLES,
    LastRun,
    find_last_run,
    handing_on,
)
from coldlog.indexing.publish.forgotten_segments import forget_deleted
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.indexing.run_log import recorded_run
from coldlog.indexing.scan.listing import ArchiveDigest
from coldlog.indexing.scan.reported_listing import age_in_days, find_report, settled_listing
from coldlog.indexing.scan.touched import (
    Touched,
    in_partitions,
    keep_digests,
    read_kept,
    with_listing_times,
    with_partitions,
    with_seen_times,
)
from coldlog.indexing.show import (
    show_errors,
    show_lookups,
    show_maintenance,
    show_partitions,
    show_problems,
    show_quarantine,
)
from coldlog.indexing.steps import (
    EventsStep,
    build_facts,
    build_settings,
    build_step,
    materialize_step,
    read_metadata_step,
    reconcile_step,
    scan_step,
    supplied_log_starts,
)
from coldlog.indexing.witness import (
    ARCHIVE,
    LOG_STARTS,
    REPORTS,
    find_change,
    log_starts_digest,
    read_surroundings,
    read_table_states,
    reports_state,
    witness_of_run,
)
from coldlog.indexing.witness import KEY as WITNESS
from coldlog.lookups.functions import register_functions
from coldlog.runtime.console import counted, human_bytes
from coldlog.runtime.given_settings import with_given_settings
from coldlog.runtime.installation import COMMAND
from coldlog.runtime.job import Job
from coldlog.runtime.open_layout import layout_opener
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.discrepancies import Severity
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.run_rows import now_ms
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.leases.warehouse_lease import WarehouseLease
from coldlog.tables.leases.warehouse_lock import writing
from coldlog.tables.sql_names import has_lasting_catalog, register_tables
from coldlog.tiering.read_pace import paced_opener
from coldlog.upkeep.maintain import maintain_tables
from coldlog.upkeep.reconcile import ReconcileSummary, unsettled_partitions
from coldlog.upkeep.validation_report import validate_and_show

_HOUR_MS = 3_600_000


def scan(job: Job) -> None:
    """scan_segments: list the archive."""
    layout, report = layout_opener(job.settings)(), find_report(job.settings)
    with _holding(job) as warehouse, _recorded_after(warehouse, "scan_segments") as (last, run):
        began_ms = now_ms()
        run["metadata"] = read_metadata_step(job, warehouse).facts
        log_starts = supplied_log_starts(job)
        if report is not None:
            layout = _listing_from(report, job, warehouse, layout, last, began_ms)
        run["scan"] = scan_step(job, warehouse, layout, log_starts).facts


def build(job: Job) -> None:
    """build_indexes: index the pending segments."""
    with _writing(job, "build_indexes") as (warehouse, run), ServingPlan(warehouse) as plan:
        run.update(build_step(job, warehouse, paced_opener(job.settings)(), plan))


def deepen(job: Job) -> None:
    """deepen_indexes: index segments again at a greater depth, and publish them."""
    part = read_deepened_part(job.settings, job.arguments)
    layout = paced_opener(job.settings)()
    with _writing(job, "deepen_indexes") as (warehouse, run), ServingPlan(warehouse) as plan:
        failure = None
        with job.console.stage("deepen") as stage:
            try:
                summary = deepen_indexes(warehouse, layout, build_settings(job), part, job.console.note, plan)
            except ColdlogError as failed:  # publish what was indexed before the failure
                failure = failed
            else:
                run["deepen"] = dataclasses.asdict(summary)
                for fact in build_facts(summary):
                    stage.add(fact)
        run["materialize"] = _publish_after(failure, job, warehouse, plan)
        if failure is not None:
            raise failure


def _publish_after(
    failure: ColdlogError | None, job: Job, warehouse: Warehouse, plan: ServingPlan
) -> dict[str, object]:
    """Publish. If that is refused because a build has failed before, raise that failure, which says what to do."""
    try:
        return materialize_step(job, warehouse, plan)
    except UsageError as refused:
        if failure is None:
            raise
        failure.add_note(f"nothing is published: {refused}")
        raise failure from refused


def materialize(job: Job) -> None:
    """materialize_metadata: publish what was indexed."""
    with _writing(job, "materialize_metadata") as (warehouse, run), ServingPlan(warehouse) as plan:
        run.update(materialize_step(job, warehouse, plan))


def reconcile_archive(job: Job) -> int:
    """reconcile_archive: compare events, listing and bytes; return 1 if a problem is as grave as `--fail-on`."""
    with _writing(job, "reconcile_archive") as (warehouse, run):
        run["reconcile"] = dataclasses.asdict(reconcile_step(job, warehouse)[0])
        _register_before_use(job, warehouse)
        found = show_problems(job)
    fail_on = job.arguments.fail_on
    return int(fail_on is not None and any(Severity(name).is_as_grave_as(Severity(fail_on)) for name in found))


def validate(job: Job) -> None:
    """validate_tables: check changed rows against the suites of their tables; with `--full`, check every row."""
    with _handing_on(job, VALIDATE_TABLES) as (warehouse, run):
        run["validate"] = validate_and_show(job, warehouse, is_full=job.arguments.full)


def maintain(job: Job) -> None:
    """maintain_tables: forget deleted segments, remove old files and index rows, compact small files."""
    with _handing_on(job, MAINTAIN_TABLES) as (warehouse, run), job.console.stage("maintain") as stage:
        forgotten = forget_deleted(warehouse, now_ms() - job.settings.maintenance.forget_after_hours * _HOUR_MS)
        summary = maintain_tables(warehouse, job.settings.maintenance)
        run["maintain"] = {**dataclasses.asdict(summary), "forgotten_segments": forgotten}
        before, after = (
            sum(getattr(table, name) for table in summary.tables) for name in ("files_before", "files_after")
        )
        removed = sum(table.removed_files for table in summary.tables)
        stage.add(f"index rows of {counted(summary.dropped_segments, 'deleted segment')} dropped")
        if forgotten:
            stage.add(f"{counted(forgotten, 'deleted segment')} forgotten")
        stage.add(f"{before} files compacted to {after}", f"{counted(removed, 'old file')} removed")
        stage.add(human_bytes(sum(table.removed_bytes for table in summary.tables)) + " saved")
        if before > after:
            hours = job.settings.maintenance.vacuum_after_hours
            stage.add(f"compacted files stay for {hours} h (maintenance.vacuum_after_hours)")
    show_maintenance(job, summary)


def run_pipeline(job: Job, touched: Touched | None = None, *, is_full_listing: bool = False) -> None:
    """Run all four jobs, then show the results and a few lookups; validate if `validation.after_build` is set.

    If a preflight found the partitions that have changed, only these are worked on. `is_full_listing`: list the archive
    itself, although there may be S3 Inventory reports of it.
    """
    layout = layout_opener(job.settings)()
    report = None if is_full_listing else find_report(job.settings)
    with _holding(job) as warehouse, _recorded_after(warehouse, RUN_PIPELINE) as (last, run):
        surroundings, began_ms = read_surroundings(job.settings), now_ms()
        events = read_metadata_step(job, warehouse)
        run["metadata"] = events.facts
        log_starts = supplied_log_starts(job)
        states = {**surroundings, LOG_STARTS: log_starts_digest(log_starts)}
        limited, touched = _limited(job, warehouse, touched, states, events)
        if report is not None and touched is not None:
            touched = dataclasses.replace(touched, named={})  # its listings have times of their own
        if report is not None and touched is None:
            layout = _listing_from(report, job, warehouse, layout, last, began_ms)
        scan = scan_step(job, limited, layout, log_starts, touched)
        run["scan"] = scan.facts
        failure = None
        with ServingPlan(limited) as plan:
            try:
                run["build"] = build_step(job, limited, paced_opener(job.settings)(), plan)
            except ColdlogError as failed:  # publish what was indexed before the failure
                failure = failed
            run["materialize"] = _publish_after(failure, job, limited, plan)
        discrepancies, gap_count = reconcile_step(job, limited)
        run["reconcile"] = dataclasses.asdict(discrepancies)
        show_partitions(job, warehouse)
        show_quarantine(job, warehouse)
        _show_discrepancies(job, warehouse, discrepancies, gap_count)
        show_lookups(job, warehouse)
        if failure is not None:
            raise failure
        if job.settings.validation.after_build:
            run["validate"] = validate_and_show(job, warehouse, is_full=False)
        run[WITNESS] = witness_of_run(job.settings, surroundings, run, limited.partitions)
        if run[WITNESS] is not None:
            has_events = events.facts is not None
            archive = with_seen_times(
                scan.archive, layout, began_ms, lambda directory: bool(in_partitions([directory], touched))
            )
            _keep_digests(job, limited, archive, listed_ms=began_ms if has_events else None)


def _keep_digests(job: Job, warehouse: Warehouse, archive: ArchiveDigest, *, listed_ms: int | None) -> None:
    try:
        if listed_ms is not None:
            archive = with_listing_times(archive, warehouse, listed_ms)
        keep_digests(warehouse.uri, archive)
    except ColdlogError as failed:
        job.console.warn(f"the next run works on all partitions, because it cannot compare listings: {failed}")


def _limited(
    job: Job,
    warehouse: Warehouse,
    touched: Touched | None,
    states: dict[str, str],
    events: EventsStep,
) -> tuple[Warehouse, Touched | None]:
    """Limit the warehouse to the partitions that have changed, if listing and events are still all that has changed
    since the run whose witness the preflight found."""
    of_events = events.partitions
    if touched is None or of_events is None:
        return warehouse, None
    states |= {REPORTS: reports_state(warehouse.uri), **read_table_states(warehouse.uri)}
    if of_events:  # This run has written them.
        del states[f"table {SEGMENT_EVENTS.name}"]
    if not warehouse.is_known_empty(UNRECOGNIZED_OBJECTS) or find_change(touched.witness, states) is not None:
        return warehouse, None
    unsettled = unsettled_partitions(warehouse)
    named = {place: segments for place, segments in events.segments.items() if place not in unsettled}
    touched = with_partitions(touched, of_events | unsettled, named)
    if touched is None:
        return warehouse, None
    job.console.note(f"working on {counted(len(touched.partitions), 'changed partition')} only")
    return dataclasses.replace(warehouse, partitions=touched.partitions), touched


def _listing_from(
    report: InventoryReport, job: Job, warehouse: Warehouse, layout: ArchiveLayout, last: LastRun | None, began_ms: int
) -> ArchiveLayout:
    """List from the report what it is sure of, by what the last run has seen (`reported_listing`)."""
    job.console.note(f"listing partitions from {report.shown_time}")
    if days := age_in_days(report, began_ms):
        job.console.warn(f"this report is {days} days old; check that the inventory still makes reports")
    kept = {} if last is None else read_kept(warehouse.uri, last.witness[ARCHIVE])
    return settled_listing(warehouse, layout, report, kept)


@contextmanager
def _writing(job: Job, name: str) -> Iterator[tuple[Warehouse, dict[str, object]]]:
    """Hold the warehouse for this job; yield it and the summary that is written to the run's row in `job_runs`."""
    with _holding(job) as warehouse, recorded_run(warehouse, name) as run:
        yield warehouse, run


@contextmanager
def _handing_on(job: Job, name: str) -> Iterator[tuple[Warehouse, dict[str, object]]]:
    """As `_writing`, for a job that changes no row that a run of run_pipeline depends on."""
    with (
        _holding(job) as warehouse,
        _recorded_after(warehouse, name) as (last, run),
        handing_on(warehouse.uri, last, run),
    ):
        yield warehouse, run


@contextmanager
def _holding(job: Job) -> Iterator[Warehouse]:
    with writing(job.settings.warehouse_uri, lease_s=job.settings.warehouse.lease_seconds) as lease:
        yield open_warehouse(job, lease)


@contextmanager
def _recorded_after(warehouse: Warehouse, name: str) -> Iterator[tuple[LastRun | None, dict[str, object]]]:
    """Yield the last run, before this one has a row, and the summary of this run."""
    last = find_last_run(warehouse.uri)
    with recorded_run(warehouse, name) as run:
        yield last, run


def open_warehouse(job: Job, lease: WarehouseLease | None = None) -> Warehouse:
    """Open the warehouse of the settings and create missing tables; register names that outlive the session."""
    settings = job.settings.warehouse
    warehouse = Warehouse(spark=job.spark, uri=job.settings.warehouse_uri, as_of=settings.as_of, lease=lease)
    with job.console.stage("warehouse") as stage:
        is_new = warehouse.create_missing() == len(ALL_TABLES)
        if lease is not None and lease.was_abandoned and not is_new:
            stage.add("took over the lock: the previous writer died")
            warehouse.fence()
        if _do_names_last(job):
            _register(job, warehouse)
        stage.add(warehouse.uri)
    return warehouse


def _do_names_last(job: Job) -> bool:
    """Whether other sessions see the names of tables and functions, so that each job registers them."""
    return job.settings.warehouse.persistent_functions or has_lasting_catalog(job.spark)


def _register(job: Job, warehouse: Warehouse) -> None:
    """Register tables and functions by name, for SQL."""
    register_tables(warehouse)
    register_functions(job.spark, persistent=job.settings.warehouse.persistent_functions)


def _register_before_use(job: Job, warehouse: Warehouse) -> None:
    if not _do_names_last(job):
        _register(job, warehouse)


def _show_discrepancies(job: Job, warehouse: Warehouse, found: ReconcileSummary, gap_count: int) -> None:
    if found.count_of(Severity.ERROR):
        show_errors(job, warehouse)
    worst = "errors" if found.count_of(Severity.ERROR) or gap_count else "warnings"
    if worst == "errors" or found.count_of(Severity.WARNING):
        listing = with_given_settings(f"{COMMAND} problems", job.arguments)
        job.console.warn(f"to see the {worst} and what to do, run: {listing}")
