"""Do one step of an indexing job as a stage of the console, and return what the run's row says of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from coldlog.archive.layouts.aiven_keys import list_key_ids
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.indexing.builds.build import BuildSettings, BuildSummary, build_indexes
from coldlog.indexing.builds.segment_build import BuildOptions
from coldlog.indexing.events.decoded_events import NamedSegment
from coldlog.indexing.events.read_events import read_events
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.indexing.scan.listing import ArchiveDigest
from coldlog.indexing.scan.log_starts import (
    merge_log_start_offsets,
    read_tier_log_starts,
    stored_log_starts,
)
from coldlog.indexing.scan.other_key_prefixes import find_other_key_prefixes
from coldlog.indexing.scan.scan import scan_segments
from coldlog.indexing.scan.touched import Touched
from coldlog.indexing.sources import ask_live_log_starts, open_event_source
from coldlog.indexing.witness import log_starts_digest
from coldlog.runtime.console import Stage, counted, human_bytes
from coldlog.runtime.job import Job
from coldlog.runtime.open_layout import decode_limits, s3_options
from coldlog.tables.definitions.discrepancies import Severity
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.files.table_files import list_table_files
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.expiry.supplied_log_starts import LiveLogStarts, LogStarts, read_log_start_offsets
from coldlog.upkeep.reconcile import ReconcileSummary, reconcile

_NAMED_TOPICS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventsStep:
    """What reading the events tells the run's row, and partitions and segments that new ones name (`ReadSummary`)."""

    facts: dict[str, object] | None
    partitions: frozenset[tuple[str, int]] | None
    segments: Mapping[tuple[str, int], frozenset[NamedSegment]] = dataclasses.field(default_factory=dict)


def read_metadata_step(job: Job, warehouse: Warehouse) -> EventsStep:
    """Read new events of the metadata topic, if the settings name one."""
    source = open_event_source(job.settings)
    if source is None:
        if list_table_files(warehouse.data_location(SEGMENT_EVENTS), SEGMENT_EVENTS, []).paths:
            job.console.note("metadata topic not configured; using the events read by earlier runs")
        return EventsStep(facts=None, partitions=frozenset())
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
    facts = summary.facts() | {"source_digest": source.digest()}
    return EventsStep(facts=facts, partitions=summary.partitions, segments=summary.segments)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScanStep:
    """What a scan tells the run's row, and what it found in each directory."""

    facts: dict[str, object]
    archive: ArchiveDigest


def scan_step(
    job: Job, warehouse: Warehouse, layout: ArchiveLayout, log_starts: LogStarts, touched: Touched | None = None
) -> ScanStep:
    """Update `segments` to the archive, and `log_start_offsets` to what is known of log starts."""
    with job.console.stage("scan") as stage:
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
    for prefix, count in find_other_key_prefixes(dataclasses.replace(warehouse, partitions=None), layout).items():
        lost = counted(count, "finished segment")
        job.console.warn(f"not listed: {lost} below the key prefix {prefix!r}; add it to archive.key_prefix")
    facts = summary.facts() | {"log_starts_digest": log_starts_digest(log_starts, live)}
    facts["limited_to_partitions"] = None if touched is None else len(touched.partitions)
    return ScanStep(facts=facts, archive=summary.archive)


def supplied_log_starts(job: Job) -> LogStarts:
    """Read the log start offsets of the settings' file, before anything is written: a wrong file stops the run."""
    supplied = job.settings.log_start_offsets.uri
    return {} if supplied is None else read_log_start_offsets(supplied)


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


def build_step(job: Job, warehouse: Warehouse, layout: ArchiveLayout, plan: ServingPlan) -> dict[str, object]:
    """Index the pending segments; raise as `build_indexes` does."""
    with job.console.stage("build") as stage:
        summary = build_indexes(warehouse, layout, build_settings(job), job.console.note, plan)
        for fact in build_facts(summary):
            stage.add(fact)
    return dataclasses.asdict(summary)


def build_facts(summary: BuildSummary) -> Iterator[str]:
    """Say what a build did, for the console."""
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


def materialize_step(job: Job, warehouse: Warehouse, plan: ServingPlan) -> dict[str, object]:
    """Publish what was indexed."""
    with job.console.stage("materialize") as stage:
        summary = materialize_metadata(warehouse, plan)
        stage.add(counted(summary.partition_count, "partition"), f"{summary.served_segment_count:,} segments served")
        stage.add(
            f"{summary.changed_segment_count} segment rows and {summary.changed_partition_count} partition rows changed"
        )
        if summary.gap_count:
            stage.add(counted(summary.gap_count, "gap") + " between served offsets")
    return dataclasses.asdict(summary)


def reconcile_step(job: Job, warehouse: Warehouse) -> tuple[ReconcileSummary, int]:
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
