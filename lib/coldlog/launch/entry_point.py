"""Run a job from its command line to its exit code.

Every job parses its arguments, reads settings, starts a session, makes one call and returns an exit code: 0 done (or
the code that the job returned), 2 wrong arguments or settings, 130 interrupted, 1 any other failure. An error that
coldlog raised on purpose is printed on one line, a failure of Spark on a few lines (`coldlog.runtime.spark_failures`).
Any other error keeps its traceback, because it is a bug of coldlog.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from coldlog.errors import ColdlogError, UsageError
from coldlog.launch.session import spark_session
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import list_setting_keys, load_settings
from coldlog.runtime.spark_failures import error_of_a_worker, explain_failure, quiet_accumulators, quiet_gateway
from coldlog.runtime.spark_gateway import jvm_exit_code
from coldlog.tables.delta.table_storage import require_reachable

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def job_argument_parser(script: str, documentation: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every job, from the job's `__file__` and `__doc__`."""
    parser = argparse.ArgumentParser(
        prog=f"spark-submit.sh {Path(script).stem}",
        description=textwrap.dedent(documentation or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_common_options(parser)
    return parser


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """`--env`, `--set` and `--list-settings`."""
    common = parser.add_argument_group("settings")
    common.add_argument("--env", default="local", metavar="NAME", help="read conf/NAME.toml (default: local)")
    common.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one setting; can be repeated, overrides conf",
    )
    common.add_argument("--list-settings", action=_ListSettings, help="list every setting, and exit")


def run_job(
    call: Callable[[Job], int | None], parser: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> int:
    """Parse the arguments, start Spark, make the call, stop Spark; return the exit code."""
    return run_prepared_job(lambda *_: call, parser, argv)


def run_prepared_job(
    prepare: Callable[[Settings, argparse.Namespace], Callable[[Job], int | None]],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None = None,
) -> int:
    """Like `run_job`, with the call that `prepare` returns.

    `prepare` runs before Spark starts, so that it reports wrong arguments at once.
    """

    def call_with_spark(settings: Settings, arguments: argparse.Namespace) -> int:
        call = prepare(settings, arguments)
        quiet_gateway()
        return _call_with_spark(call, settings, arguments, app_name=parser.prog.split()[-1])

    return _run(call_with_spark, parser, argv)


def run_plain_job(
    call: Callable[[PlainJob], int | None], parser: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> int:
    """Parse the arguments and make the call without Spark; return the exit code."""

    def call_plainly(settings: Settings, arguments: argparse.Namespace) -> int:
        return call(PlainJob(settings=settings, arguments=arguments, console=Console())) or 0

    return _run(call_plainly, parser, argv)


def _run(
    call: Callable[[Settings, argparse.Namespace], int], parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> int:
    arguments = parser.parse_args(argv)
    try:
        return call(load_settings(arguments.env, arguments.set), arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the edge of a job: every error must become an exit code
        on_purpose = error if isinstance(error, ColdlogError) else error_of_a_worker(error)
        if on_purpose is not None:
            print(f"{parser.prog}: {on_purpose}", file=sys.stderr)
            return EXIT_USAGE if isinstance(on_purpose, UsageError) else EXIT_FAILED
        explanation = explain_failure(error)
        if explanation is None:
            traceback.print_exc()
        else:
            print(f"{parser.prog}: {explanation}", file=sys.stderr)
        return EXIT_FAILED


def _call_with_spark(
    call: Callable[[Job], int | None], settings: Settings, arguments: argparse.Namespace, app_name: str
) -> int:
    require_reachable(settings.warehouse_uri)
    console = Console()
    # An argument may name a table or folder in a bucket although the warehouse is in a folder.
    places = [each for each in vars(arguments).values() if isinstance(each, str)]
    with console.stage("spark") as stage:
        spark = spark_session(settings, app_name, places=places)
        quiet_accumulators(spark.sparkContext)
        stage.add(
            f"Spark {spark.version}",
            spark.conf.get("spark.master") or "",
            f"{spark.sparkContext.defaultParallelism} cores",
        )
    try:
        return call(Job(spark=spark, settings=settings, arguments=arguments, console=console)) or 0
    finally:
        if jvm_exit_code() is None:
            spark.stop()


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
