"""Plan the tasks of a reading from options and filters, and open the reader of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coldlog.lookups.batch_lookup import BatchReader
from coldlog.lookups.damage.damaged_segments import DamagedSegment
from coldlog.lookups.damage.reported_damage import reports_to, wait_for_reports
from coldlog.lookups.list_offsets import LookupOptions, open_lookup
from coldlog.model.states import IsolationLevel
from coldlog.records.local_log import open_log_directory
from coldlog.records.source.archived_log import ArchivedLogs, list_source_files
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.local_logs import LocalLogs
from coldlog.records.source.offset_ranges import OffsetResolver, PartitionSpan
from coldlog.records.source.options import SourceOptions, TopicPartition
from coldlog.records.source.read_tasks import ReadTask, TaskSizes, plan_local_tasks, plan_tasks
from coldlog.records.source.record_reader import RecordReader
from coldlog.runtime.open_layout import decode_limits, layout_opener
from coldlog.tiering.read_pace import paced_opener


def plan_reading(options: SourceOptions, wanted: RecordFilter) -> list[ReadTask]:
    """Return the tasks of a reading. Raise `UsageError` if what is asked for does not exist or cannot be found."""
    may_grow = layout_opener(options.settings)().is_mirror
    is_committed = options.isolation_level is IsolationLevel.READ_COMMITTED
    sizes = TaskSizes(task_bytes=options.task_bytes, min_tasks=options.min_tasks)
    with _resolving(options) as (logs, local, resolver):
        ranges = resolver.resolve(wanted)
        tasks = plan_tasks(logs, ranges, wanted.bounds, sizes, is_committed=is_committed, may_grow=may_grow)
        if local is None:
            return tasks
        later = plan_local_tasks(local, ranges, wanted.bounds, sizes, is_committed=is_committed)
        return sorted([*tasks, *later], key=lambda task: (task.topic, task.partition))


def find_spans(options: SourceOptions) -> dict[TopicPartition, PartitionSpan]:
    """Return where the reading of each partition that is asked for begins and ends."""
    with _resolving(options) as (_, _, resolver):
        return resolver.find_spans()


@contextmanager
def _resolving(options: SourceOptions) -> Iterator[tuple[ArchivedLogs, LocalLogs | None, OffsetResolver]]:
    """Open the tables as they are now, and the log directory that goes on where they end."""
    tier = open_log_directory(options.settings)
    files = list_source_files(options.warehouse_uri, options.as_of_ms)
    logs = ArchivedLogs(files)
    batches = BatchReader(open_layout=paced_opener(options.settings), limits=decode_limits(options.settings))
    is_reported = _reports_damage(options)
    report = reports_to(options.warehouse_uri).add if is_reported else None
    index, lookup = open_lookup(files.lookups, LookupOptions(batches=batches), report)
    local = None if tier is None else LocalLogs(tier)
    try:
        yield logs, local, OffsetResolver(options, logs, index, lookup, local=local)
    finally:
        index.close()
        logs.close()
        if is_reported:
            wait_for_reports()  # the process ends with the planning


def open_reader(options: SourceOptions, count_bytes: Callable[[int], None]) -> RecordReader:
    """Open the reader of this reading's tasks, in the process that calls it."""

    def report(damage: DamagedSegment) -> None:
        reports_to(options.warehouse_uri).add([damage])
        wait_for_reports()  # the process may end with the error

    return RecordReader(
        layout=paced_opener(options.settings)(),
        limits=decode_limits(options.settings),
        columns=options.columns,
        nulls_timestamps=options.nulls_timestamps,
        count_bytes=count_bytes,
        local=open_log_directory(options.settings),
        report=report if _reports_damage(options) else None,
    )


def _reports_damage(options: SourceOptions) -> bool:
    return options.settings.warehouse.report_damage and options.as_of_ms is None
