"""Run a job from its command line to its exit code.

The function of a job imports what it calls when it is called, so that help needs no package of an extra.
Every job parses its arguments, reads settings, makes one call and returns an exit code; it starts Spark only if it
needs it. Exit codes: 0 done (or the code that the job returned), 2 wrong arguments or settings, 130 and 143 stopped by
SIGINT (Ctrl-C) or SIGTERM, 1 any other failure. An error that coldlog raised on purpose and a stop are printed on one
line, a failure of Spark on a few lines (`coldlog.runtime.spark.spark_failures`). Any other error keeps its traceback,
because it is a bug of coldlog.
"""

from __future__ import annotations

import argparse
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from coldlog.errors import ColdlogError, UsageError
from coldlog.launch.stop_signals import StoppedBySignal, StopSignals
from coldlog.runtime.argument_parser import EXIT_USAGE, CommandParser
from coldlog.runtime.console import Console
from coldlog.runtime.extras import missing_extra
from coldlog.runtime.installation import CHECKOUT, STARTED_BY_COMMAND
from coldlog.runtime.job import Job, PlainJob, job_console
from coldlog.runtime.open_layout import open_or_advise
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import list_setting_keys, load_settings
from coldlog.runtime.spark.spark_versions import installed_series

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 130, 143


def job_argument_parser(script: str, documentation: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every job, from the job's `__file__` and `__doc__`."""
    program = "coldlog" if CHECKOUT is None or STARTED_BY_COMMAND in os.environ else "spark-submit.sh"
    parser = CommandParser(f"{program} {Path(script).stem}", documentation)
    add_common_options(parser)
    return parser


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """`--quiet`, `--log-format`, `--env`, `--config`, `--set`, `--warehouse` and `--list-settings`."""
    parser.add_argument("--quiet", action="store_true", help="print no progress; warnings, errors and results stay")
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="json: progress, warnings and errors are JSON lines on standard error",
    )
    common = parser.add_argument_group("settings")
    common.add_argument("--env", default="local", metavar="NAME", help="read conf/NAME.toml (default: local)")
    common.add_argument("--config", metavar="FILE", help="read settings from FILE too (default: COLDLOG_CONFIG)")
    common.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one setting; can be repeated, overrides files and variables",
    )
    common.add_argument(
        "-w", "--warehouse", action=_SetWarehouse, metavar="URI", help="short for --set warehouse.uri=URI"
    )
    common.add_argument("--list-settings", action=_ListSettings, help="list every setting, and exit")


def require_archive(job: PlainJob) -> None:
    """Open the archive; as `first` of a job, it refuses a wrong `archive.uri` before Spark starts, and a
    `warehouse.uri` at which nothing can be written."""
    if job.settings.warehouse_uri == job.settings.archive_uri:
        raise UsageError("archive.uri and warehouse.uri are the same place; give the tables a place of their own")
    open_or_advise(job.settings)
    # Imported here, because most jobs' help and answers need no tables.
    from coldlog.tables.leases.warehouse_lock import require_writable

    require_writable(job.settings.warehouse_uri)


def require_warehouse(job: PlainJob) -> None:
    """Open the warehouse; as `first` of a job that changes its tables, it refuses a `warehouse.uri` without tables, or
    at which nothing can be written, before Spark starts. Without it, such a job would make new tables there."""
    from coldlog.tables.definitions.segments import SEGMENTS
    from coldlog.tables.delta.files.table_files import open_table
    from coldlog.tables.delta.locations import table_location
    from coldlog.tables.delta.table_storage import require_reachable
    from coldlog.tables.leases.warehouse_lock import require_writable

    uri = job.settings.warehouse_uri
    require_reachable(uri)
    open_table(table_location(uri, SEGMENTS.name), SEGMENTS)
    require_writable(uri)


def run_job(
    call: Callable[[Job], int | None],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
    *,
    first: Callable[[PlainJob], int | None] = lambda _: None,
    has_rows_in_spark: Callable[[Settings], bool] = lambda _: False,
    starts_late: bool = False,
) -> int:
    """Parse the arguments, start Spark, make the call, stop Spark; return the exit code.

    `starts_late`: the job can do little work without Spark, and starts it when it needs it.

    `first` is called before Spark starts. If it returns an exit code, the job ends with that. `has_rows_in_spark`:
    whether Spark itself, and not Python tasks, reads or writes many rows, so that Java's optimizing compiler pays.
    """

    def call_first(settings: Settings, arguments: argparse.Namespace, stop: StopSignals) -> int:
        if not starts_late:
            return call_in_turn(settings, arguments, stop)
        from coldlog.tables.delta.table_storage import keeping_tables_open

        with keeping_tables_open():
            return call_in_turn(settings, arguments, stop)

    def call_in_turn(settings: Settings, arguments: argparse.Namespace, stop: StopSignals) -> int:
        if starts_late and not settings.validation.after_build:
            from coldlog.runtime.spark.without_pandas import keep_pandas_out

            keep_pandas_out()
        exit_code = first(PlainJob(settings=settings, arguments=arguments, console=job_console(arguments)))
        if exit_code is not None:
            return exit_code
        installed_series()  # refuses a Spark that is not supported
        from coldlog.launch.spark_job import call_with_spark  # a job that ends without Spark does not load it

        name = parser.prog.split()[-1]
        has_many = has_rows_in_spark(settings)
        return call_with_spark(
            call, settings, arguments, stop, name, has_rows_in_spark=has_many, starts_late=starts_late
        )

    def explain_with_spark(error: Exception) -> ColdlogError | str | None:
        from coldlog.launch.spark_job import explain

        return explain(error)

    return _run(call_first, parser, argv, explain_with_spark)


def run_plain_job(
    call: Callable[[PlainJob], int | None], parser: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> int:
    """Parse the arguments and make the call without Spark; return the exit code."""

    def call_plainly(settings: Settings, arguments: argparse.Namespace, _: StopSignals) -> int:
        return call(PlainJob(settings=settings, arguments=arguments, console=job_console(arguments))) or 0

    return _run(call_plainly, parser, argv, lambda _: None)


def _run(
    call: Callable[[Settings, argparse.Namespace, StopSignals], int],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    explain: Callable[[Exception], ColdlogError | str | None],
) -> int:
    arguments = parser.parse_args(argv)
    stop = StopSignals()
    try:
        with stop.listening():
            return call(load_settings(arguments.env, arguments.set, config=arguments.config), arguments, stop)
    except StoppedBySignal as stopped:
        return _end_stopped(job_console(arguments), parser.prog, stop.stopped or stopped)
    except Exception as error:  # noqa: BLE001 - the edge of a job: every error must become an exit code
        if stop.stopped is not None:
            return _end_stopped(job_console(arguments), parser.prog, stop.stopped, error)
        explanation = error if isinstance(error, ColdlogError) else missing_extra(error) or explain(error)
        if explanation is None:
            job_console(arguments).error(parser.prog, repr(error), traceback=traceback.format_exc())
        else:
            told = explanation.text_with_notes if isinstance(explanation, ColdlogError) else explanation
            job_console(arguments).error(parser.prog, told)
        if isinstance(explanation, UsageError):
            return EXIT_USAGE
        return EXIT_FAILED


def _end_stopped(console: Console, job: str, stopped: StoppedBySignal, failure: Exception | None = None) -> int:
    """Print one line, with what failed after the stop; return the exit code."""
    what = failure if isinstance(failure, ColdlogError) else type(failure).__name__
    console.error(job, str(stopped) if failure is None else f"{stopped}; then: {what}")
    return stopped.exit_code


class _SetWarehouse(argparse.Action):
    """Set `warehouse.uri`, as --set does."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, _: str | None = None) -> None:
        namespace.set = [*namespace.set, f"warehouse.uri={values}"]


class _ListSettings(argparse.Action):
    """Print every key that can be set, with its type, default and meaning."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002 - argparse's name
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for key in list_setting_keys():
            default = (
                "not set"
                if key.default is None
                else str(key.default).lower()
                if isinstance(key.default, bool)
                else key.default
            )
            print(f"{key.key} = {default}\n    {key.meaning}; {key.allowed}")
        print("spark.*\n    any option of Spark; it is passed to the session")
        parser.exit()
