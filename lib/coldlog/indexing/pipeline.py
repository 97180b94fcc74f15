"""Run the steps of each indexing job and print what they did.

One job calls one function of this module. The function joins settings, archive and warehouse, runs each step as a stage
of the console, and records the run in `job_runs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from coldlog.archive.layouts.aiven_keys import list_key_ids
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.open_archive import open_store
from coldlog.brokers.kafka_client import Cluster, open_cluster
from coldlog.errors import ColdlogError, UsageError
from coldlog.indexing.builds.build import BuildSettings, BuildSummary, build_indexes, deepen_indexes
from coldlog.indexing.builds.build_work import DeepenedPart
from coldlog.indexing.builds.segment_build import BuildOptions
from coldlog.indexing.events.event_sources import LogSegmentsSource, TableSource
from coldlog.indexing.events.live_topic import TopicSource
from coldlog.indexing.events.read_events import read_events
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.indexing.run_log import recorded_run
from coldlog.indexing.scan.listing import ArchiveDigest
from coldlog.indexing.scan.log_starts import (
    ask_log_start_offsets,
    merge_log_start_offsets,
    read_tier_log_starts,
    stored_log_starts,
)
from coldlog.indexing.scan.other_key_prefixes import find_other_key_prefixes
from coldlog.indexing.scan.scan import scan_segments
from coldlog.indexing.scan.touched import Touched, keep_digests, with_partitions
from coldlog.indexing.show import (
    show_errors,
    show_lookups,
    show_maintenance,
    show_partitions,
    show_problems,
    show_quarantine,
)
from coldlog.indexing.witness import KEY as WITNESS
from coldlog.indexing.witness import (
    REPORTS,
    find_change,
    log_starts_digest,
    read_surroundings,
    read_table_states,
    reports_state,
    witness_of_run,
)
from coldlog.lookups.functions import register_functions
from coldlog.model.states import IndexDepth
from coldlog.runtime.console import Stage, counted, human_bytes
from coldlog.runtime.given_settings import with_given_settings
from coldlog.runtime.installation import COMMAND
from coldlog.runtime.job import Job
from coldlog.runtime.open_layout import decode_limits, layout_opener, s3_options
from coldlog.runtime.settings import MetadataSource, Settings
from coldlog.runtime.timestamps import timestamp_from_text
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.discrepancies import Severity
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.leases.warehouse_lease import WarehouseLease
from coldlog.tables.leases.warehouse_lock import writing
from coldlog.tables.sql_names import has_lasting_catalog, register_tables
from coldlog.tiering.expiry.supplied_log_starts import LiveLogStarts, LogStarts, read_log_start_offsets
from coldlog.tiering.read_pace import paced_opener
from coldlog.upkeep.maintain import maintain_tables
from coldlog.upkeep.reconcile import ReconcileSummary, reconcile, unsettled_partitions
from coldlog.upkeep.validation_report import validate_and_show

RUN_PIPELINE = "run_pipeline"
_NAMED_TOPICS = 5


def scan(job: Job) -> None:
    """scan_segments: list the archive."""
    with _writing(job, "scan_segments") as (warehouse, run):
        run["metadata"] = _read_metadata(job, warehouse).facts
        run["scan"] = _scan(job, warehouse, layout_opener(job.settings)()).facts


def build(job: Job) -> None:
    """build_indexes: index the pending segments."""
    with _writing(job, "build_indexes") as (warehouse, run), ServingPlan(warehouse) as plan:
        run.update(_build(job, warehouse, paced_opener(job.settings)(), plan))


def deepen(job: Job) -> None:
    """deepen_indexes: index segments again at a greater depth, and publish them."""
    part = _deepened_part(job)
    layout = paced_opener(job.settings)()
    with _writing(job, "deepen_indexes") as (warehouse, run):
        failure = None
        with job.console.stage("deepen") as stage:
            try:
                summary = deepen_indexes(warehouse, layout, build_settings(job), part, job.console.note)
            except ColdlogError as failed:  # publish what was indexed before the failure
                failure = failed
            else:
                run["deepen"] = dataclasses.asdict(summary)
                for fact in _build_facts(summary):
                    stage.add(fact)
        with ServingPlan(warehouse) as plan:
            run["materialize"] = _materialize(job, warehouse, plan)
        if failure is not None:
            raise failure


def _deepened_part(job: Job) -> DeepenedPart:
    """Read the options of deepen_indexes."""
    arguments, configured = job.arguments, job.settings.build.deepen
    named = arguments.topics or configured
    topics = tuple(each.strip() for each in (named or "").split(",") if each.strip())
    if not topics:
        raise UsageError("which topics? give --topics with names or patterns, or set build.deepen")
    times = (arguments.since, arguments.until)
    since, until = (None if text is None else timestamp_from_text(text) for text in times)
    if since is not None and until is not None and since > until:
        raise UsageError(f"--from {arguments.since} is after --to {arguments.until}")
    return DeepenedPart(
        depth=IndexDepth(arguments.depth), topics=topics, from_timestamp_ms=since, to_timestamp_ms=until
    )


def materialize(job: Job) -> None:
    """materialize_metadata: publish what was indexed."""
    with _writing(job, "materialize_metadata") as (warehouse, run), ServingPlan(warehouse) as plan:
        run.update(_materialize(job, warehouse, plan))


def reconcile_archive(job: Job) -> int:
    """reconcile_archive: compare events, listing and bytes; return 1 if a problem is as grave as `--fail-on`."""
    with _writing(job, "reconcile_archive") as (warehouse, run):
        run["reconcile"] = dataclasses.asdict(_reconcile(job, warehouse)[0])
        _register_before_use(job, warehouse)
        found = show_problems(job)
    fail_on = job.arguments.fail_on
    return int(fail_on is not None and any(Severity(name).is_as_grave_as(Severity(fail_on)) for name in found))


def validate(job: Job) -> None:
    """validate_tables: check changed rows against the suites of their tables; with `--full`, check every row."""
    with _writing(job, "validate_tables") as (warehouse, run):
        run["validate"] = validate_and_show(job, warehouse, is_full=job.arguments.full)


def maintain(job: Job) -> None:
    """maintain_tables: remove old files and index rows, compact small files."""
    with _writing(job, "maintain_tables") as (warehouse, run), job.console.stage("maintain") as stage:
        summary = maintain_tables(warehouse, job.settings.maintenance)
        run["maintain"] = dataclasses.asdict(summary)
        before, after = (
            sum(getattr(table, name) for table in summary.tables) for name in ("files_before", "files_after")
        )
        removed = sum(table.removed_files for table in summary.tables)
        stage.add(f"index rows of {counted(summary.dropped_segments, 'deleted segment')} dropped")
        stage.add(f"{before} files compacted to {after}", f"{counted(removed, 'old file')} removed")
        stage.add(human_bytes(sum(table.removed_bytes for table in summary.tables)) + " saved")
    show_maintenance(job, summary)


def run_pipeline(job: Job, touched: Touched | None = None) -> None:
    """Run all four jobs, then show the results and a few lookups; validate if `validation.after_build` is set.

    If a preflight found the partitions that have changed, only these are worked on.
    """
    layout = layout_opener(job.settings)()
    with _writing(job, RUN_PIPELINE) as (warehouse, run):
        surroundings = read_surroundings(job.settings)
        events = _read_metadata(job, warehouse)
        run["metadata"] = events.facts
        limited, touched = _limited(job, warehouse, touched, surroundings, events.partitions)
        scan = _scan(job, limited, layout, touched)
        run["scan"] = scan.facts
        failure = None
        with ServingPlan(limited) as plan:
            try:
                run["build"] = _build(job, limited, paced_opener(job.settings)(), plan)
            except ColdlogError as failed:  # publish what was indexed before the failure
                failure = failed
            run["materialize"] = _materialize(job, limited, plan)
        discrepancies, gap_count = _reconcile(job, limited)
        run["reconcile"] = dataclasses.asdict(discrepancies)
        show_partitions(job, warehouse)
        show_quarantine(job, warehouse)
        _show_discrepancies(job, warehouse, discrepancies, gap_count)
        show_lookups(job, warehouse)
        if failure is not None:
            raise failure
        if job.settings.validation.after_build:
            run["validate"] = validate_and_show(job, warehouse, is_full=False)
        run[WITNESS] = witness_of_run(job.settings, surroundings, run)
        if run[WITNESS] is not None:
            keep_digests(warehouse.uri, scan.archive)


def _limited(
    job: Job,
    warehouse: Warehouse,
    touched: Touched | None,
    surroundings: Mapping[str, str],
    of_events: frozenset[tuple[str, int]] | None,
) -> tuple[Warehouse, Touched | None]:
    """Limit the warehouse to the partitions that have changed, if listing and events are still all that has changed
    since the run whose witness the preflight found."""
    if touched is None or of_events is None:
        return warehouse, None
    states = {**surroundings, REPORTS: reports_state(warehouse.uri), **read_table_states(warehouse.uri)}
    if of_events:  # This run has written them.
        del states[f"table {SEGMENT_EVENTS.name}"]
    if not warehouse.is_known_empty(UNRECOGNIZED_OBJECTS) or find_change(touched.witness, states) is not None:
        return warehouse, None
    touched = with_partitions(touched, of_events | unsettled_partitions(warehouse))
    if touched is None:
        return warehouse, None
    job.console.note(f"working on {counted(len(touched.partitions), 'changed partition')} only")
    return dataclasses.replace(warehouse, partitions=touched.partitions), touched


@contextmanager
def _writing(job: Job, name: str) -> Iterator[tuple[Warehouse, dict[str, object]]]:
    """Hold the warehouse for this job; yield it and the summary that is written to the run's row in `job_runs`."""
    with writing(job.settings.warehouse_uri, lease_s=job.settings.warehouse.lease_seconds) as lease:
        warehouse = open_warehouse(job, lease)
        with recorded_run(warehouse, name) as run:
            yield warehouse, run


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """What reading the events tells the run's row, and the partitions that new ones name (`ReadSummary`)."""

    facts: dict[str, object] | None
    partitions: frozenset[tuple[str, int]] | None


def _read_metadata(job: Job, warehouse: Warehouse) -> _Events:
    source = open_event_source(job.settings)
    if source is None:
        if warehouse.read(SEGMENT_EVENTS).head(1):
            job.console.note("metadata topic not configured; using the events read by earlier runs")
        return _Events(facts=None, partitions=frozenset())
    with job.console.stage("metadata") as stage:
        summary = read_events(warehouse, source)
        stage.add(counted(summary.new_event_count, "new event"))
        for count, label in (
            (summary.unreadable_count, "unreadable"),
            (summary.missing_offset_count, "offsets missing"),
            (summary.damaged_partition_count, "partitions damaged (see table quarantine)"),
        ):
            if count:
                stage.add(f"{count} {label}")
    if summary.lost_partitions:
        lost = ", ".join(map(str, summary.lost_partitions))
        job.console.warn(f"metadata partitions that are missing or shorter than at the last read: {lost}")
    source_digest = None if isinstance(source, TableSource) else source.digest()
    return _Events(facts=summary.facts() | {"source_digest": source_digest}, partitions=summary.partitions)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Scanned:
    """What a scan tells the run's row, and what it found in each directory."""

    facts: dict[str, object]
    archive: ArchiveDigest


def _scan(job: Job, warehouse: Warehouse, layout: ArchiveLayout, touched: Touched | None = None) -> _Scanned:
    with job.console.stage("scan") as stage:
        supplied = job.settings.log_start_offsets.uri
        # Read before anything is written: a wrong file stops the run.
        log_starts = {} if supplied is None else read_log_start_offsets(supplied)
        accept_replaced = job.settings.scan.accept_replaced_archive
        summary = scan_segments(
            warehouse, layout, accept_replaced=accept_replaced, report=job.console.warn, touched=touched
        )
        live = _merge_log_starts(job, dataclasses.replace(warehouse, partitions=None), log_starts, stage)
        stage.add(counted(summary.partition_count, "partition"), counted(summary.segment_count, "segment") + " listed")
        stage.add(human_bytes(summary.log_bytes), f"{summary.new_count} new", f"{summary.changed_count} changed")
        for count, label in (
            (summary.gone_count, "gone"),
            (summary.incomplete_count, "incomplete"),
            (summary.unlisted_count, "directories not listed"),
            (summary.unrecognized_count, "unrecognized"),
        ):
            if count:
                stage.add(f"{count} {label}")
    for prefix, count in find_other_key_prefixes(warehouse, layout).items():
        lost = counted(count, "finished segment")
        job.console.warn(f"not listed: {lost} below the key prefix {prefix!r}; add it to archive.key_prefix")
    facts = summary.facts() | {"log_starts_digest": log_starts_digest(log_starts, live)}
    facts["limited_to_partitions"] = None if touched is None else len(touched.partitions)
    return _Scanned(facts=facts, archive=summary.archive)


def _merge_log_starts(job: Job, warehouse: Warehouse, supplied: LogStarts, stage: Stage) -> LiveLogStarts | None:
    """Return what the brokers answered, if they are asked. Runs after the scan, because they are asked about the
    partitions that it found."""
    settings, expired = job.settings.log_start_offsets, read_tier_log_starts(warehouse)
    live = ask_live_log_starts(job.settings)
    if settings.uri is None and live is None:
        if kept := len(stored_log_starts(warehouse)):
            job.console.note(f"using {kept} log start offsets from earlier runs; see table log_start_offsets")
        if expired:
            changed = merge_log_start_offsets(warehouse, stored_log_starts(warehouse), expired)
            stage.add(counted(changed, "log start offset") + " advanced by expiry")
        return None
    changed = merge_log_start_offsets(warehouse, supplied, {} if live is None else live.log_starts, expired)
    stage.add(counted(changed, "log start offset") + " changed")
    if live is not None and live.left_out_topics:
        names = ", ".join(live.left_out_topics[:_NAMED_TOPICS])
        more = "" if len(live.left_out_topics) <= _NAMED_TOPICS else ", ..."
        stage.add(f"{counted(len(live.left_out_topics), 'topic')} no longer on the brokers ({names}{more})")
    return live


def ask_live_log_starts(settings: Settings) -> LiveLogStarts | None:
    """Ask the brokers that `log_start_offsets.bootstrap_servers` names; None if it names none."""
    servers = settings.log_start_offsets.bootstrap_servers
    return None if servers is None else ask_log_start_offsets(settings.warehouse_uri, _cluster(settings, servers))


def _cluster(settings: Settings, bootstrap_servers: str) -> Cluster:
    return open_cluster(bootstrap_servers, settings.metadata.timeout_ms, settings.metadata.client_config)


def open_event_source(settings: Settings) -> LogSegmentsSource | TableSource | TopicSource | None:
    """Open the source that `metadata.*` names; None if neither `metadata.uri` nor a live topic is set."""
    metadata = settings.metadata
    if metadata.source is MetadataSource.TOPIC:
        if metadata.bootstrap_servers is None:
            raise UsageError("metadata.source = topic needs brokers: give --set metadata.bootstrap_servers=host:port")
        return TopicSource(cluster=_cluster(settings, metadata.bootstrap_servers), topic=metadata.topic)
    if metadata.uri is None:
        return None
    if metadata.source is MetadataSource.TABLE:
        return TableSource(uri=metadata.uri)
    store = open_store(metadata.uri, s3_options(settings))
    return LogSegmentsSource(store=store, topic=metadata.topic, limits=decode_limits(settings))


def build_settings(job: Job) -> BuildSettings:
    """The settings of a job that a build needs."""
    index, build_group = job.settings.index, job.settings.build
    return BuildSettings(
        options=BuildOptions(
            depth=index.depth,
            limits=decode_limits(job.settings),
            window_bytes=index.window_bytes,
            is_salvaging=index.salvage,
            max_hole_share=build_group.max_hole_share,
            stride_bytes=job.settings.sidecar.stride_bytes,
        ),
        max_bytes_per_commit=build_group.max_bytes_per_commit,
        tasks_per_core=build_group.tasks_per_core,
        max_quarantined_share=build_group.max_quarantined_share,
        retry_quarantined=build_group.retry_quarantined,
        decryption_key_ids=list_key_ids(),
        s3=s3_options(job.settings),
    )


def _build(job: Job, warehouse: Warehouse, layout: ArchiveLayout, plan: ServingPlan) -> dict[str, object]:
    with job.console.stage("build") as stage:
        summary = build_indexes(warehouse, layout, build_settings(job), job.console.note, plan)
        for fact in _build_facts(summary):
            stage.add(fact)
    return dataclasses.asdict(summary)


def _build_facts(summary: BuildSummary) -> Iterator[str]:
    yield f"{counted(summary.indexed_count, 'segment')} indexed"
    if summary.indexed_count or summary.recounted_count or summary.reported_count:
        yield f"{human_bytes(summary.log_bytes)} read"
        yield counted(summary.batch_count, "batch", "batches")
        yield counted(summary.record_count, "record")
        yield counted(summary.stair_count, "stair")
    if summary.throttle_ms:
        yield f"{summary.throttle_ms / 1000:.1f} s waited for the read quota, all tasks together"
    if summary.recounted_count:
        yield f"{counted(summary.recounted_count, 'segment')} recounted from a new log start offset"
    if summary.reported_count:
        yield f"{counted(summary.reported_count, 'segment')} read completely after reports of damage"
    if summary.quarantined_count:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(summary.reasons.items()))
        yield f"{summary.quarantined_count} quarantined ({reasons})"
    if summary.damaged_log_count:
        yield f"{counted(summary.damaged_log_count, 'damaged log')} served without the bad batches"


def _materialize(job: Job, warehouse: Warehouse, plan: ServingPlan) -> dict[str, object]:
    with job.console.stage("materialize") as stage:
        summary = materialize_metadata(warehouse, plan)
        stage.add(counted(summary.partition_count, "partition"), f"{summary.served_segment_count:,} segments served")
        stage.add(
            f"{summary.changed_segment_count} segment rows and {summary.changed_partition_count} partition rows changed"
        )
        if summary.gap_count:
            stage.add(counted(summary.gap_count, "gap") + " between served offsets")
    return dataclasses.asdict(summary)


def _reconcile(job: Job, warehouse: Warehouse) -> tuple[ReconcileSummary, int]:
    """Return the discrepancies, and how many gaps there are between served offsets: these are errors, too."""
    with job.console.stage("reconcile") as stage:
        summary = reconcile(warehouse)
        gap_count = sum(row["gap_count"] for row in warehouse.small_rows(PARTITION_METADATA, ("gap_count",)))
        stage.add(counted(summary.count_of(Severity.ERROR) + gap_count, "error"))
        stage.add(counted(summary.count_of(Severity.WARNING), "warning"))
        for count, label in (
            (summary.count_of(Severity.INFO), "for information"),
            (summary.new_count, "new"),
            (summary.mended_count, "resolved"),
        ):
            if count:
                stage.add(f"{count} {label}")
    return summary, gap_count


def _show_discrepancies(job: Job, warehouse: Warehouse, found: ReconcileSummary, gap_count: int) -> None:
    if found.count_of(Severity.ERROR):
        show_errors(job, warehouse)
    worst = "errors" if found.count_of(Severity.ERROR) or gap_count else "warnings"
    if worst == "errors" or found.count_of(Severity.WARNING):
        listing = with_given_settings(f"{COMMAND} problems", job.arguments)
        job.console.warn(f"to see the {worst} and what to do, run: {listing}")
