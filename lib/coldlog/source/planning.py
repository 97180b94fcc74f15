"""planning: how do options and filters become tasks, and what reads a task?"""

from __future__ import annotations

from collections.abc import Callable

from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.batch_lookup import BatchReader
from coldlog.lookups.list_offsets import LookupOptions, open_lookup
from coldlog.model.states import IsolationLevel
from coldlog.open_layout import layout_opener
from coldlog.settings import Settings
from coldlog.source.archived_log import ArchivedLogs, list_source_files
from coldlog.source.filters import RecordFilter
from coldlog.source.offset_ranges import OffsetResolver
from coldlog.source.options import SourceOptions
from coldlog.source.read_tasks import ReadTask, TaskSizes, plan_tasks
from coldlog.source.record_reader import RecordReader


def plan_reading(options: SourceOptions, wanted: RecordFilter) -> list[ReadTask]:
    """The tasks of a reading. `UsageError`: what is asked for is not there, or cannot be found."""
    opener, limits = layout_opener(options.settings), _limits(options.settings)
    layout = opener()
    files = list_source_files(options.warehouse_uri, options.as_of_ms)
    logs = ArchivedLogs(files)
    index, lookup = open_lookup(files.lookups, LookupOptions(batches=BatchReader(open_layout=opener, limits=limits)))
    try:
        ranges = OffsetResolver(options, logs, index, lookup).resolve(wanted)
        return plan_tasks(
            logs,
            ranges,
            wanted.bounds,
            TaskSizes(task_bytes=options.task_bytes, min_tasks=options.min_tasks),
            is_committed=options.isolation_level is IsolationLevel.READ_COMMITTED,
            may_grow=layout.is_mirror,
        )
    finally:
        index.close()
        logs.close()


def open_reader(options: SourceOptions, count_bytes: Callable[[int], None]) -> RecordReader:
    """What reads tasks of this reading, in the process that is asked."""
    return RecordReader(
        layout=layout_opener(options.settings)(),
        limits=_limits(options.settings),
        columns=options.columns,
        count_bytes=count_bytes,
    )


def _limits(settings: Settings) -> DecodeLimits:
    own = settings.index
    return DecodeLimits(max_batch_bytes=own.max_batch_bytes, max_decompressed_bytes=own.max_decompressed_bytes)
