"""List the runs of jobs that wrote the warehouse, the newest first.

    coldlog runs
    coldlog runs --outcome failed
    coldlog runs --job run_pipeline --last 5 --json

A run that was killed is `running` until the next one.
"""

from __future__ import annotations

import argparse

from coldlog.command.shared.listings import prepare
from coldlog.command.shared.outputs import Shown, add_output_options, write_rows
from coldlog.command.shared.settings_options import add_settings_options
from coldlog.errors import UsageError
from coldlog.tables.table_rows import read_table

_NAMES = ("run_id", "job", "started_ms", "finished_ms", "outcome", "error", "summary")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--job", metavar="NAME", help="only runs of this job")
    parser.add_argument(
        "--outcome", choices=("running", "succeeded", "failed", "killed"), help="only runs that ended so"
    )
    parser.add_argument("--last", type=int, default=20, metavar="N", help="at most so many (default: %(default)s)")
    add_output_options(parser)
    add_settings_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the runs."""
    from coldlog.runtime.console import human_duration, human_timestamp
    from coldlog.tables.definitions.job_runs import JOB_RUNS

    if arguments.last < 1:
        raise UsageError(f"--last {arguments.last}: expected a whole number from 1")
    asked = {"job": arguments.job, "outcome": arguments.outcome}
    values = {name: value for name, value in asked.items() if value is not None}
    rows = read_table(prepare(arguments), JOB_RUNS, _NAMES, values)
    if not rows and arguments.job is not None:
        _require_job(arguments.job)
    rows.sort(key=lambda row: row["started_ms"], reverse=True)

    def duration(started_ms: object, finished_ms: object) -> str:
        is_over = isinstance(started_ms, int) and isinstance(finished_ms, int)
        return human_duration((finished_ms - started_ms) / 1000) if is_over else ""  # type: ignore[operator]  # both int

    shown: Shown = {
        "job": lambda row: row["job"],
        "started": lambda row: human_timestamp(row["started_ms"]),  # type: ignore[arg-type]  # of the table
        "took": lambda row: duration(row["started_ms"], row["finished_ms"]),
        "outcome": lambda row: row["outcome"],
        "error": lambda row: str(row["error"] or "").partition("\n")[0],
    }
    write_rows(arguments, _NAMES, rows[: arguments.last], shown)
    return 0


def _require_job(name: str) -> None:
    """Raise `UsageError` if no job has this name; one may also have no run yet."""
    from difflib import get_close_matches

    from coldlog.command.main import JOBS, NAMED_JOBS

    names = [*(job for job, _ in JOBS.values()), *NAMED_JOBS]
    if name not in names:
        near = get_close_matches(JOBS.get(name, (name,))[0], names, n=1)
        meant = f"; did you mean {near[0]}?" if near else f"; jobs are {', '.join(sorted(names))}"
        raise UsageError(f"--job {name}: there is no such job{meant}")
