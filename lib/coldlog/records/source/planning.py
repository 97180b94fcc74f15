"""Plan the tasks of a reading from options and filters, and open the reader of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coldlog.lookups.batch_lookup import BatchReader
from coldlog.lookups.list_offsets import LookupOptions, open_lookup
from coldlog.model.states import IsolationLevel
from coldlog.records.source.archived_log import ArchivedLogs, list_source_files
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.offset_ranges import OffsetResolver, PartitionSpan
from coldlog.records.source.options import SourceOptions, TopicPartition
from coldlog.records.source.read_tasks import ReadTask, TaskSizes, plan_tasks
from coldlog.records.source.record_reader import RecordReader
from coldlog.runtime.open_layout import decode_limits, layout_opener
from coldlog.tiering.read_pace import paced_opener


def plan_reading(options: SourceOptions, wanted: RecordFilter) -> list[ReadTask]:
    """Return the tasks of a reading. Raise `UsageError` if what is asked for does not exist or cannot be found."""
    may_grow = layout_opener(options.settings)().is_mirror
    with _resolving(options) as (logs, resolver):
        return plan_tasks(
            logs,
            resolver.resolve(wanted),
            wanted.bounds,
            TaskSizes(task_bytes=options.task_bytes, min_tasks=options.min_tasks),
            is_committed=options.isolation_level is IsolationLevel.READ_COMMITTED,
            may_grow=may_grow,
        )


def find_spans(options: SourceOptions) -> dict[TopicPartition, PartitionSpan]:
    """Return where the reading of each partition that is asked for begins and ends."""
    with _resolving(options) as (_, resolver):
        return resolver.find_spans()


@contextmanager
def _resolving(options: SourceOptions) -> Iterator[tuple[ArchivedLogs, OffsetResolver]]:
    """Open the tables as they are now."""
    files = list_source_files(options.warehouse_uri, options.as_of_ms)
    logs = ArchivedLogs(files)
    batches = BatchReader(open_layout=paced_opener(options.settings), limits=decode_limits(options.settings))
    index, lookup = open_lookup(files.lookups, LookupOptions(batches=batches))
    try:
        yield logs, OffsetResolver(options, logs, index, lookup)
    finally:
        index.close()
        logs.close()


def open_reader(options: SourceOptions, count_bytes: Callable[[int], None]) -> RecordReader:
    """Open the reader of this reading's tasks, in the process that calls it."""
    return RecordReader(
        layout=paced_opener(options.settings)(),
        limits=decode_limits(options.settings),
        columns=options.columns,
        nulls_timestamps=options.nulls_timestamps,
        count_bytes=count_bytes,
    )
