"""Append a row to `job_runs` for a run that does not hold the warehouse; find the newest run of one that did.

A job that holds the warehouse writes its row when it starts (`coldlog.indexing.run_log`). Jobs of the tier, replays and
scheduled lookups run beside it and beside each other, and nobody could say which of them were killed. So their row is
appended when they end, in one commit without Spark; a run that is killed leaves none.

A warehouse in which no job with Spark ran yet has no table `job_runs`, and gets no row. If the row cannot be written,
this is a warning: the run has done its work.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from coldlog.errors import ColdlogError, UsageError
from coldlog.runtime.console import Console
from coldlog.runtime.settings import Settings
from coldlog.tables.definitions.job_runs import JOB_RUNS, JOBS_BESIDE_WRITERS, RunOutcome
from coldlog.tables.delta.files.table_files import ColumnRanges, NoTableError, list_table_files, read_file_rows
from coldlog.tables.delta.locations import table_location
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import Row, RowChange


def now_ms() -> int:
    """The time of this machine."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True, kw_only=True)
class RunBesideWriters:
    """A run in progress. Its job fills the figures, and the error if the run fails without an exception. `goes_on`: it
    has not ended at the end of the block; a later block, which has this run too, records it."""

    started_ms: int = field(default_factory=now_ms)
    began_s: float = field(default_factory=time.monotonic)
    figures: dict[str, object] = field(default_factory=dict)
    error: str = ""
    goes_on: bool = False


@contextmanager
def run_beside_writers(
    settings: Settings, console: Console, name: str, run: RunBesideWriters | None = None
) -> Iterator[RunBesideWriters]:
    """Record the run of the job `name` when it ends, with its figures and how many seconds it took.

    Without `warehouse.uri`, or with `warehouse.as_of`, nothing is recorded.
    """
    run = run or RunBesideWriters()
    run.goes_on = False
    row = new_run_row(name, run.started_ms)
    try:
        yield run
    except BaseException as failed:
        run.error = reason_of(failed)
        raise
    finally:
        if not run.goes_on and settings.warehouse.uri is not None and settings.warehouse.as_of is None:
            seconds = round(time.monotonic() - run.began_s, 3)
            ended: Row = {
                "finished_ms": max(now_ms(), run.started_ms),
                "outcome": (RunOutcome.FAILED if run.error else RunOutcome.SUCCEEDED).value,
                "error": run.error or None,
                "summary": json.dumps({**run.figures, "seconds": seconds}, sort_keys=True),
            }
            _append(settings.warehouse.uri, row | ended, console)


def new_run_row(name: str, started_ms: int) -> Row:
    """The row of a run that has started."""
    return {
        "run_id": uuid.uuid4().hex,
        "job": name,
        "started_ms": started_ms,
        "finished_ms": None,
        "outcome": RunOutcome.RUNNING.value,
        "error": None,
        "summary": "{}",
    }


def reason_of(failed: BaseException) -> str:
    """What ended a run, on one line: the interrupt, if the failure followed from one."""
    cause: BaseException | None = failed
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__context__
    if cause is not None:
        return str(cause) or "interrupted"
    return str(failed).partition("\n")[0] or type(failed).__name__


def read_newest_run(uri: str) -> Row | None:
    """Read the row of the run that started last and held the warehouse; None if there is none, or no warehouse.

    Files that have only rows of jobs beside writers are not read.
    """
    location = table_location(uri, JOB_RUNS.name)
    try:
        files = list_table_files(location, JOB_RUNS, ["started_ms", "job"])
    except UsageError:
        return None
    newest: Row | None = None
    for number in _newest_first(files.ranges):
        if newest is not None and _started_ms(newest) >= files.ranges.maxima["started_ms"][number]:
            return newest
        for row in read_file_rows(files, JOB_RUNS.column_names, [number]):
            is_newer = newest is None or _started_ms(row) > _started_ms(newest)
            newest = row if is_newer and row["job"] not in JOBS_BESIDE_WRITERS else newest
    return newest


def _newest_first(ranges: ColumnRanges) -> list[int]:
    """Return the files that may have a run that held the warehouse, the one with the newest run first."""
    least, greatest, newest = ranges.minima["job"], ranges.maxima["job"], ranges.maxima["started_ms"]
    possible = [n for n in range(ranges.count) if least[n] != greatest[n] or least[n] not in JOBS_BESIDE_WRITERS]
    return sorted(possible, key=lambda number: int(newest[number]), reverse=True)


def _started_ms(row: Row) -> int:
    return int(str(row["started_ms"]))


def _append(uri: str, row: Row, console: Console) -> None:
    try:
        is_recorded = commit_rows(table_location(uri, JOB_RUNS.name), JOB_RUNS, RowChange(added=[row])) is not None
    except NoTableError:
        return
    except ColdlogError as failed:
        console.warn(f"this run has no row in job_runs: {failed.text_with_notes}")
        return
    if not is_recorded:
        console.warn("this run has no row in job_runs: only Spark can change that table")
