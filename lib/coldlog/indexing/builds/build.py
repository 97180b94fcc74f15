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

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.stores.s3_client import S3Options
from coldlog.errors import ColdlogError, RetriableError
from coldlog.indexing.builds.build_plan import WorkTable, plan_commits
from coldlog.indexing.builds.build_tasks import run_build
from coldlog.indexing.builds.build_work import (
    BuildSurvey,
    iter_pending_work,
    iter_recount_work,
    iter_reported_work,
    iter_shallow_work,
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

_COUNTS = ("batch_count", "record_count", "stair_count")
_WRITTEN = pa.schema(
    [
        *(SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in SEGMENTS.key),
        *((name, pa.int64()) for name in _COUNTS),
    ]
)
_MOST_REMEMBERED = 1_000_000


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
    pending = iter_pending_work(
        warehouse,
        found,
        retry_quarantined=settings.retry_quarantined,
        decryption_key_ids=settings.decryption_key_ids,
        is_mirror=layout.is_mirror,
    )
    written = _Written()
    indexed = _run_commits(warehouse, layout, settings, pending, summary, written, report)
    # Segments that were reported as damaged say nothing about the share of bad ones.
    bad_count = summary.quarantined_count + summary.damaged_log_count
    _index_reported(warehouse, layout, settings, summary, written, report)
    _count_again(warehouse, layout, settings, plan, summary, written, report)
    summary.indexed_count = indexed.done
    written.sum_up(summary)
    _fail_if_too_bad(summary, bad_count, indexed.tried, settings.max_quarantined_share)
    return summary


def _count_again(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    plan: ServingPlan,
    summary: BuildSummary,
    written: _Written,
    report: Callable[[str], None],
) -> None:
    """Count segments again that serve from another offset than the one that they were counted from."""
    # A segment that is counted again is not one more that is damaged.
    damaged_log_count = summary.damaged_log_count
    recount = iter_recount_work(warehouse, plan, is_mirror=layout.is_mirror)
    summary.recounted_count = _run_commits(warehouse, layout, settings, recount, summary, written, report).done
    summary.damaged_log_count = damaged_log_count


def _index_reported(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    summary: BuildSummary,
    written: _Written,
    report: Callable[[str], None],
) -> None:
    """Index the segments that lookups reported as damaged.

    Reports are removed at the end, unless a segment could not be read: those of segments with a new build are void.
    """
    reports = [
        row
        for row in read_damage_reports(warehouse.uri)
        # What is reported of other partitions meanwhile is left to the next run.
        if warehouse.partitions is None or (row["topic"], row["partition"]) in warehouse.partitions
    ]
    if not reports:
        return
    work = iter_reported_work(warehouse, reports, is_mirror=layout.is_mirror)
    complete = replace(settings, options=replace(settings.options, depth=IndexDepth.RECORD))
    summary.reported_count = _run_commits(warehouse, layout, complete, work, summary, written, report).tried
    if not summary.unreadable_count:
        clear_damage_reports(warehouse.uri, reports)


def deepen_indexes(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    part: DeepenedPart,
    report: Callable[[str], None] = lambda _: None,
    plan: ServingPlan | None = None,
) -> BuildSummary:
    """Index the segments of the part again, at its depth. Until `materialize_metadata`, lookups answer from the rows of
    the lesser depth. Damage that is found may change what other segments serve, so segments are counted again, as
    `build_indexes` does. On return `plan` is up to date. Raise as `build_indexes` does."""
    if plan is None:
        with ServingPlan(warehouse) as plan:
            return deepen_indexes(warehouse, layout, settings, part, report, plan)
    found = survey_builds(warehouse)
    _remove_leftovers(warehouse, found)
    summary = BuildSummary(last_build_number=found.last_build_number)
    work = iter_shallow_work(warehouse, part, is_mirror=layout.is_mirror)
    deeper = replace(settings, options=replace(settings.options, depth=part.depth))
    written = _Written()
    indexed = _run_commits(warehouse, layout, deeper, work, summary, written, report)
    bad_count = summary.quarantined_count + summary.damaged_log_count
    _count_again(warehouse, layout, settings, plan, summary, written, report)
    summary.indexed_count = indexed.done
    written.sum_up(summary)
    _fail_if_too_bad(summary, bad_count, indexed.tried, settings.max_quarantined_share)
    return summary


class _Done(NamedTuple):
    """How many segments were tried, and how many of them are indexed."""

    tried: int
    done: int


@dataclass(slots=True)
class _Written:
    """What was written of each segment.

    If a segment is counted again, the rows of its first count are removed, so only the last count is summed. With more
    than `_MOST_REMEMBERED` segments, both are.
    """

    counts: pa.Table = field(default_factory=_WRITTEN.empty_table)

    def add(self, indexed: pa.Table) -> None:
        """Add outcomes of one commit. At sidecar depth nothing is counted."""
        values = [*(indexed[name] for name in SEGMENTS.key), *(pc.fill_null(indexed[name], 0) for name in _COUNTS)]
        self.counts = pa.concat_tables([self.counts, pa.table(values, schema=_WRITTEN)])
        if len(self.counts) > _MOST_REMEMBERED:
            self.counts = pa.Table.from_pylist([self._sums()], schema=_WRITTEN)

    def sum_up(self, summary: BuildSummary) -> None:
        """Set the sums."""
        for name, value in self._sums().items():
            setattr(summary, name, value)

    def _sums(self) -> dict[str, int]:
        of_last = [(name, "last") for name in _COUNTS]
        last = self.counts.group_by(list(SEGMENTS.key), use_threads=False).aggregate(of_last)
        return {name: pc.sum(last[f"{name}_last"]).as_py() or 0 for name in _COUNTS}


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
    work: Iterable[WorkTable],
    summary: BuildSummary,
    written: _Written,
    report: Callable[[str], None],
) -> _Done:
    """Run the commits."""
    tried = done = 0
    for part in work:
        total_bytes, done_bytes = part.total_bytes, 0
        commits = plan_commits(part, _commit_bytes(warehouse, settings, total_bytes))
        progress = Progress(total_bytes)
        more = f" after {counted(tried, 'segment')}" if tried else ""
        for number, commit in enumerate(commits, start=1):
            if more or len(commits) > 1:
                size = counted(len(commit), "segment")
                report(f"commit {number} of {len(commits)}{more}: {size}; {progress.text(done_bytes)}")
            indexed = _run_commit(warehouse, layout, settings, commit, summary)
            written.add(indexed)
            tried, done = tried + len(commit), done + len(indexed)
            done_bytes += commit.total_bytes
    return _Done(tried, done)


def _commit_bytes(warehouse: Warehouse, settings: BuildSettings, total_bytes: int) -> int:
    """Return the most bytes of a commit. Spark is asked for its cores only if there is work for more than one."""
    if settings.max_bytes_per_commit or total_bytes <= BYTES_PER_CORE:
        return settings.max_bytes_per_commit or BYTES_PER_CORE
    return BYTES_PER_CORE * warehouse.spark.sparkContext.defaultParallelism


def _run_commit(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    settings: BuildSettings,
    commit: WorkTable,
    summary: BuildSummary,
) -> pa.Table:
    """Index the segments of one commit; return the outcomes of those that are indexed."""
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
    indexed, quarantined, unreadable = (
        outcomes.filter(pc.equal(outcomes["outcome"], kind.value))
        for kind in (OutcomeKind.INDEXED, OutcomeKind.QUARANTINED, OutcomeKind.UNREADABLE)
    )
    if len(indexed):
        _publish(warehouse, indexed, number)
        summary.last_build_number = number
    bad = quarantined.to_pylist()
    update_quarantine(warehouse, bad)
    if pc.any(_has_any(outcomes["replaces_build_numbers"])).as_py():
        remove_superseded(warehouse)
    summary.damaged_log_count += len(indexed) - indexed["holes"].null_count
    summary.log_bytes += pc.sum(indexed["log_bytes"]).as_py() or 0
    summary.quarantined_count += len(bad)
    for row in bad:
        summary.reasons[row["reason"]] = summary.reasons.get(row["reason"], 0) + 1
    summary.unreadable_count += len(unreadable)
    summary.first_error = summary.first_error or "".join(unreadable["message"].slice(0, 1).to_pylist())
    return indexed


def _publish(warehouse: Warehouse, indexed: pa.Table, number: int) -> None:
    """Make the one commit after which the rows count."""
    replaced, count = indexed["replaces_build_numbers"], len(indexed)
    for name, values in (
        ("index_status", pa.repeat(IndexStatus.INDEXED.value, count)),
        ("build_number", pa.repeat(number, count)),
        ("superseded_build_numbers", pc.if_else(_has_any(replaced), replaced, pa.scalar(None, replaced.type))),
    ):
        indexed = indexed.append_column(name, values)
    warehouse.merge(SEGMENTS, indexed, update=PUBLISHED_COLUMNS)


def _has_any(lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether each list has elements; False for NULL."""
    return pc.fill_null(pc.greater(pc.list_value_length(lists), 0), False)


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
