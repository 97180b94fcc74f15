"""Plan the tasks of a reading from options and filters, and open the reader of a task."""

from __future__ import annotations

from collections.abc import Callable

from coldlog.lookups.damage.damaged_segments import DamagedSegment
from coldlog.lookups.damage.reported_damage import reports_to, wait_for_reports
from coldlog.model.states import IsolationLevel
from coldlog.records.local_log import open_log_directory
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.options import SourceOptions
from coldlog.records.source.read_tasks import ReadTask, TaskSizes, plan_local_tasks, plan_tasks
from coldlog.records.source.record_reader import RecordReader
from coldlog.records.source.spans import reports_damage, resolving
from coldlog.runtime.open_layout import decode_limits, layout_opener
from coldlog.tiering.read_pace import paced_opener


def plan_reading(options: SourceOptions, wanted: RecordFilter) -> list[ReadTask]:
    """Return the tasks of a reading. Raise `UsageError` if what is asked for does not exist or cannot be found."""
    may_grow = layout_opener(options.settings)().is_mirror
    is_committed = options.isolation_level is IsolationLevel.READ_COMMITTED
    sizes = TaskSizes(task_bytes=options.task_bytes, min_tasks=options.min_tasks)
    with resolving(options) as (logs, local, resolver):
        ranges = resolver.resolve(wanted)
        tasks = plan_tasks(logs, ranges, wanted.bounds, sizes, is_committed=is_committed, may_grow=may_grow)
        if local is None:
            return tasks
        later = plan_local_tasks(local, ranges, wanted.bounds, sizes, is_committed=is_committed)
        return sorted([*tasks, *later], key=lambda task: (task.topic, task.partition))


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
        report=report if reports_damage(options) else None,
    )
