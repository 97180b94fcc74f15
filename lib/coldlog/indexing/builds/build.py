"""Index the pending segments.

The work is divided into commits, by `build.max_bytes_per_commit` or the number of cores. Tasks read the segments and
write the rows of good segments to files of the index tables. The driver reads the outcome of each segment, adds the
files to the tables, and publishes last, with one merge into `segments` that sets each segment's build number. A killed
run leaves rows of a build number that was never published. The next run first removes them, so the tables end the same.

Segments that lookups reported as damaged are indexed again at record depth, which decodes every record. Lookups then no
longer read their logs, so a report that was wrong is not repeated.

Afterwards, a segment that contains a partition's log start offset is counted again from that offset, under its own
build number. Lookups see nothing of a build before `materialize_metadata` publishes it. Until then, the older rows of a
segment still answer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.stores.s3_client import S3Options
from coldlog.errors import ColdlogError, RetriableError
from coldlog.indexing.builds.build_plan import SegmentWork, plan_commits
from coldlog.indexing.builds.build_tasks import run_build
from coldlog.indexing.builds.build_work import (
    BuildSurvey,
    find_pending_work,
    find_recount_work,
    find_reported_work,
    find_shallow_work,
    survey_builds,
)
from coldlog.indexing.builds.index_files import (
    IndexPlace,
    files_of,
    outcomes_of,
    throttled_of,
)
from coldlog.indexing.builds.quarantined import update_quarantine
from coldlog.indexing.builds.segment_build import READ_COLUMNS, BuildOptions, OutcomeKind
from coldlog.indexing.deepened_part import DeepenedPart
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.model.states import IndexDepth, IndexStatus
from coldlog.runtime.console import counted
from coldlog.runtime.progress import Progress
from coldlog.tables.damage_reports import clear_damage_reports, read_damage_reports
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.superseded_builds import remove_superseded

PUBLISHED_COLUMNS = (*READ_COLUMNS, "index_status", "build_number", "superseded_build_numbers")

BYTES_PER_CORE = 32 << 30
"""What a core reads in a minute at batch depth. A commit takes seconds, and has a segment or more for each core."""

_Written = dict[tuple[object, ...], tuple[int, int, int]]
"""Numbers of batches, records and stairs, by segment key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """What a build needs to know; the settings of the same names explain it.

    `max_bytes_per_commit` = 0 is `BYTES_PER_CORE` for each core. `decryption_key_ids` are the available private keys:
    segments for which one of them was missing are tried again.
    """

    options: BuildOptions
    max_bytes_per_commit: int
    tasks_per_core: int
    max_quarantined_share: float
    retry_quarantined: bool
    decryption_key_ids: frozenset[str] = frozenset()
    s3: S3Options = field(default_factory=S3Options)


@dataclass(slots=True)
class BuildSummary:
    """What a run indexed, summed over its commits. `last_build_number` is that of the newest published build."""

    last_build_number: int = 0
    indexed_count: int = 0
    recounted_count: int = 0
    reported_count: int = 0
    """Segments that were indexed again because a lookup reported damage."""
    quarantined_count: int = 0
    damaged_log_count: int = 0
    """Segments that are indexed without the damaged places of their logs."""
    unreadable_count: int = 0
    log_bytes: int = 0
    throttled_reads: int = 0
    """Reads that waited for the read quota, for `throttle_ms` together."""
    throttle_ms: int = 0
    throttle_longest_ms: int = 0
    batch_count: int = 0
    record_count: int = 0
    stair_count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    first_error: str = ""


def build_indexes(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    report: Callable[[str], None] = lambda _: None,
    plan: ServingPlan | None = None,
) -> BuildSummary:
    """Index every pending segment, then those that were reported as damaged. Count segments again that contain a log
    start offset.

    On return `plan` is up to date. Segments whose bytes are wrong go to `quarantine`, and the run continues. It fails
    at its end with `ColdlogError` if there is more than one and their share is above `max_quarantined_share`, and with
    `RetriableError` if some segments could not be read from the store.
    """
    if plan is None:
        with ServingPlan(warehouse) as plan:
            return build_indexes(warehouse, layout, settings, report, plan)
    found = survey_builds(warehouse)
    _remove_leftovers(warehouse, found)
    summary = BuildSummary(last_build_number=found.last_build_number)
    pending = find_pending_work(
        warehouse,
        found,
        retry_quarantined=settings.retry_quarantined,
        decryption_key_ids=settings.decryption_key_ids,
        is_mirror=layout.is_mirror,
    )
    indexed = _run_commits(warehouse, layout, settings, pending, summary, report)
    # Segments that were reported as damaged say nothing about the share of bad ones.
    bad_count = summary.quarantined_count + summary.damaged_log_count
    reported = _index_reported(warehouse, layout, settings, summary, report)
    # A segment that is counted again is not one more that is damaged.
    damaged_log_count = summary.damaged_log_count
    recount = find_recount_work(warehouse, plan, is_mirror=layout.is_mirror)
    recounted = _run_commits(warehouse, layout, settings, recount, summary, report)
    summary.indexed_count, summary.recounted_count = len(indexed), len(recounted)
    summary.damaged_log_count = damaged_log_count
    # If a segment was counted again, the rows of its first count are removed.
    summary.batch_count, summary.record_count, summary.stair_count = _totals(indexed | reported | recounted)
    _fail_if_too_bad(summary, bad_count, len(pending), settings.max_quarantined_share)
    return summary


def _index_reported(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    summary: BuildSummary,
    report: Callable[[str], None],
) -> _Written:
    """Index the segments that lookups reported as damaged; return what was indexed.

    Reports are removed at the end, unless a segment could not be read: those of segments with a new build are void.
    """
    reports = [
        row
        for row in read_damage_reports(warehouse.uri)
        # What is reported of other partitions meanwhile is left to the next run.
        if warehouse.partitions is None or (row["topic"], row["partition"]) in warehouse.partitions
    ]
    if not reports:
        return {}
    work = find_reported_work(warehouse, reports, is_mirror=layout.is_mirror)
    complete = replace(settings, options=replace(settings.options, depth=IndexDepth.RECORD))
    indexed = _run_commits(warehouse, layout, complete, work, summary, report)
    summary.reported_count = len(work)
    if not summary.unreadable_count:
        clear_damage_reports(warehouse.uri, reports)
    return indexed


def deepen_indexes(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    part: DeepenedPart,
    report: Callable[[str], None] = lambda _: None,
) -> BuildSummary:
    """Index the segments of the part again, at its depth. Until `materialize_metadata`, lookups answer from the rows of
    the lesser depth. Raise as `build_indexes` does."""
    found = survey_builds(warehouse)
    _remove_leftovers(warehouse, found)
    summary = BuildSummary(last_build_number=found.last_build_number)
    work = find_shallow_work(warehouse, part, is_mirror=layout.is_mirror)
    deeper = replace(settings, options=replace(settings.options, depth=part.depth))
    written = _run_commits(warehouse, layout, deeper, work, summary, report)
    summary.indexed_count = len(written)
    summary.batch_count, summary.record_count, summary.stair_count = _totals(written)
    bad_count = summary.quarantined_count + summary.damaged_log_count
    _fail_if_too_bad(summary, bad_count, len(work), settings.max_quarantined_share)
    return summary


def _totals(written: _Written) -> tuple[int, int, int]:
    """Return how many batches, records and stairs were written."""
    batches, records, stairs = (sum(counts[at] for counts in written.values()) for at in range(3))
    return batches, records, stairs


def _remove_leftovers(warehouse: Warehouse, found: BuildSurvey) -> None:
    """Remove rows of builds that were never published, and of builds that a later build has replaced."""
    with ThreadPoolExecutor(len(INDEX_TABLES)) as removals:  # each is a short job that mostly waits
        for removal in [
            removals.submit(warehouse.delete_build_after, table, found.last_build_number) for table in INDEX_TABLES
        ]:
            removal.result()
    if found.superseded_count:  # only after that: both write the same tables
        remove_superseded(warehouse)


def _run_commits(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    work: list[SegmentWork],
    summary: BuildSummary,
    report: Callable[[str], None],
) -> _Written:
    """Run the commits; return what was indexed, by segment."""
    written: _Written = {}
    total_bytes, done_bytes = sum(each.log_bytes for each in work), 0
    commits = plan_commits(work, _commit_bytes(warehouse, settings, total_bytes))
    progress = Progress(total_bytes)
    for number, commit in enumerate(commits, start=1):
        if len(commits) > 1:
            size = counted(len(commit), "segment")
            report(f"commit {number} of {len(commits)}: {size}; {progress.text(done_bytes)}")
        written |= _run_commit(warehouse, layout, settings, commit, summary)
        done_bytes += sum(each.log_bytes for each in commit)
    return written


def _commit_bytes(warehouse: Warehouse, settings: BuildSettings, total_bytes: int) -> int:
    """Return the most bytes of a commit. Spark is asked for its cores only if there is work for more than one."""
    if settings.max_bytes_per_commit or total_bytes <= BYTES_PER_CORE:
        return settings.max_bytes_per_commit or BYTES_PER_CORE
    return BYTES_PER_CORE * warehouse.spark.sparkContext.defaultParallelism


def _run_commit(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    commit: list[SegmentWork],
    summary: BuildSummary,
) -> _Written:
    number = summary.last_build_number + 1
    place = IndexPlace(
        locations={table.name: warehouse.data_location(table) for table in INDEX_TABLES},
        s3=settings.s3,
        build_number=number,
    )
    answers = run_build(warehouse.spark, layout, settings.options, settings.tasks_per_core, commit, place)
    outcomes, reads = outcomes_of(answers), throttled_of(answers)
    summary.throttled_reads += reads.count
    summary.throttle_ms += reads.total_ms
    summary.throttle_longest_ms = max(summary.throttle_longest_ms, reads.longest_ms)
    for table in INDEX_TABLES:
        if files := files_of(table.name, answers):
            warehouse.add_files(table, files)
    if any(row["outcome"] == OutcomeKind.INDEXED.value for row in outcomes):
        _publish(warehouse, outcomes, number)
        summary.last_build_number = number
    update_quarantine(warehouse, outcomes)
    if any(row["replaces_build_numbers"] for row in outcomes):
        remove_superseded(warehouse)
    return _add_to(summary, outcomes)


def _publish(warehouse: Warehouse, outcomes: list[dict[str, object]], number: int) -> None:
    """Make the one commit after which the rows count."""
    rows = []
    for row in outcomes:
        if row["outcome"] == OutcomeKind.INDEXED.value:
            status = {"index_status": IndexStatus.INDEXED.value, "build_number": number}
            rows.append({**row, **status, "superseded_build_numbers": row["replaces_build_numbers"] or None})
    warehouse.merge(SEGMENTS, rows, update=PUBLISHED_COLUMNS)


def _add_to(summary: BuildSummary, outcomes: list[dict[str, object]]) -> _Written:
    written: _Written = {}
    for row in outcomes:
        kind = OutcomeKind(str(row["outcome"]))
        if kind is OutcomeKind.INDEXED:
            summary.damaged_log_count += row["holes"] is not None
            summary.log_bytes += row["log_bytes"]  # type: ignore[operator]  # a row of `OUTCOME_SCHEMA`
            # None at sidecar depth, which counts nothing.
            counts = tuple(row[name] or 0 for name in ("batch_count", "record_count", "stair_count"))
            written[tuple(row[name] for name in SEGMENTS.key)] = counts  # type: ignore[assignment]
        elif kind is OutcomeKind.QUARANTINED:
            summary.quarantined_count += 1
            reason = str(row["reason"])
            summary.reasons[reason] = summary.reasons.get(reason, 0) + 1
        else:
            summary.unreadable_count += 1
            summary.first_error = summary.first_error or str(row["message"])
    return written


def _fail_if_too_bad(summary: BuildSummary, bad_count: int, tried_count: int, max_quarantined_share: float) -> None:
    if summary.unreadable_count:
        raise RetriableError(
            f"{summary.unreadable_count} of {tried_count} segments could not be read from the store, the others are "
            f"indexed; run the job again when the store answers: {summary.first_error}"
        )
    if bad_count > 1 and bad_count / tried_count > max_quarantined_share:
        holes = f" or have holes ({summary.damaged_log_count})" if summary.damaged_log_count else ""
        raise ColdlogError(
            f"{bad_count} of {tried_count} segments are quarantined{holes}, more than "
            f"build.max_quarantined_share={max_quarantined_share} allows; the others are indexed; "
            "for the reasons, see tables quarantine and segments (holes, damaged_files)"
        )
