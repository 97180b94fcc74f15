"""Find the command that is asked for, run it, and return its exit code.

Exit codes: 0 done, 1 failed or an answer is an error, 2 wrong arguments or settings, 130 interrupted, 141 the reader of
the output has gone (as of a program that SIGPIPE ended). An error is one line on standard error. An error that is not
coldlog's keeps its traceback, because it is a bug.

The module of a command has a docstring (its help), `add_arguments` and `run`. It is imported when it is asked for, and
imports what is heavy in `run`, so that help needs little more than Python itself.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from coldlog import __version__
from coldlog.errors import ColdlogError, UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from coldlog.runtime.argument_parser import CommandParser

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 1, 2, 130, 141
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
COMMANDS = {
    "lookup": "find the first offset at or after a time",
    "offsets": "answer ListOffsets: latest, earliest, latest-tiered, max-timestamp, ...",
    "cat": "print archived records",
    "topics": "list the archived topics",
    "partitions": "list the archived partitions",
    "segments": "list the segments of the archive",
    "problems": "list what is wrong with the archive, and what to do about it",
    "runs": "list the runs of jobs",
    "doctor": "check Spark, Java, jars, archive and tables, and say how to fix them",
    "setup": "download the jars that jobs need, into the user's cache",
    "demo": "index the sample archive and ask it",
    "completion": "print what completes commands and topics in bash, zsh or fish",
    "config": "show the settings, and where each comes from",
}
"""Each has a module of its name in this package."""
PROGRAMS = {
    "serve": ("coldlog.serve.command_line", "serve the archive to Kafka clients"),
    "launch-options": ("coldlog.launch_options", "print what a plain spark-submit needs to start a job"),
}
"""The module and the summary of programs with a `main` of their own."""
JOBS = {
    "run": ("run_pipeline", "index the archive, end to end"),
    "scan": ("scan_segments", "list the archive into table segments"),
    "build": ("build_indexes", "read pending segments and fill the index tables"),
    "deepen": ("deepen_indexes", "index segments again at a greater depth"),
    "publish": ("materialize_metadata", "publish what lookups answer from"),
    "reconcile": ("reconcile_archive", "compare events, listing and bytes"),
    "validate": ("validate_tables", "check the tables against their expectations"),
    "maintain": ("maintain_tables", "compact the tables, remove old files and rows"),
    "rebuild": ("rebuild_tables", "make the tables anew from the archive"),
    "replay": ("replay_topics", "order the records of several partitions by time"),
    "copy": ("copy_segments", "copy closed segments into the archive"),
    "expire": ("expire_segments", "delete segments by the retention of their topics"),
}
"""The name and the summary of each job; `jobs` becomes it. It also goes by its own name."""
NAMED_JOBS = ("lookup_offsets", "list_offsets", "fetch_records", "show_settings")
"""Jobs without a short name, because commands do the same for people; they are not listed."""
COMPLETE = "__complete"
"""What the scripts of `completion` call; it is not listed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of `argv`; return the exit code."""
    arguments = [_as_utf8(word) for word in (sys.argv[1:] if argv is None else argv)]
    is_named = bool(arguments) and arguments[0] in {*COMMANDS, *PROGRAMS, *JOBS}
    name = f"coldlog {arguments[0]}" if is_named else "coldlog"
    try:
        code = _run_with_extras(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _drop_output()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return EXIT_PIPE
    except UsageError as wrong:
        return _fail(name, wrong.text_with_notes, EXIT_USAGE)
    except ColdlogError as failed:
        return _fail(name, str(failed), EXIT_FAILED)
    except OSError as failed:
        if failed.filename is not None or failed.errno not in _NOT_WRITTEN:
            raise
        _drop_output()
        return _fail(name, f"the output cannot be written: {failed.strerror}", EXIT_FAILED)
    return code


def _as_utf8(word: str) -> str:
    """The word as UTF-8, if the locale of the process could not decode it: names of topics are UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return os.fsencode(word).decode(errors="surrogateescape")
    return word


def _run_with_extras(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except ModuleNotFoundError as missing:
        from coldlog.runtime.extras import missing_extra

        wrong = missing_extra(missing)
        if wrong is None:
            raise
        raise wrong from missing


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else EXIT_USAGE
    if arguments[0] in ("-V", "--version"):
        print(f"coldlog {__version__}")
        return 0
    if arguments[0] == COMPLETE:
        from coldlog.command.suggestions import print_suggestions

        return print_suggestions(arguments[1:])
    if arguments[0] in JOBS or arguments[0] in {*NAMED_JOBS, *(job for job, _ in JOBS.values())}:
        from coldlog.command.jobs import become

        become(JOBS.get(arguments[0], arguments[:1])[0], arguments[1:])
    if arguments[0] in PROGRAMS:
        return _run_program(arguments[0], arguments[1:])
    if arguments[0] not in COMMANDS:
        raise UsageError(f"unknown command {arguments[0]!r}; {_nearest(arguments[0])}coldlog --help lists all")
    module = import_module(f"coldlog.command.{arguments[0]}")
    try:
        parsed = make_parser(arguments[0], module).parse_intermixed_args(arguments[1:])
    except SystemExit as ended:
        return int(ended.code or 0)
    code: int = module.run(parsed)
    return code


def make_parser(name: str, module: ModuleType) -> CommandParser:
    """Make the parser of a command from its module."""
    from coldlog.runtime.argument_parser import CommandParser

    parser = CommandParser(f"coldlog {name}", module.__doc__)
    module.add_arguments(parser)
    return parser


def _run_program(name: str, arguments: list[str]) -> int:
    from coldlog.runtime.extras import MODULES, require_extras
    from coldlog.runtime.installation import keep_compiled_kernels

    if not {"-h", "--help", "--list-settings"} & {*arguments}:
        require_extras({name} & MODULES.keys())
    keep_compiled_kernels()
    if name == "launch-options" and arguments:  # a job by its short name, as the first or the last word
        arguments = [JOBS[word][0] if word in JOBS and at in (0, len(arguments) - 1) else word
                     for at, word in enumerate(arguments)]  # fmt: skip
    code: int = import_module(PROGRAMS[name][0]).main(arguments)
    return code


def _usage() -> str:
    width = max(map(len, (*COMMANDS, *PROGRAMS, *JOBS)))
    return "\n".join(
        [
            "usage: coldlog COMMAND [arguments]",
            "       coldlog COMMAND --help",
            "",
            "Ask archived Kafka logs, without a broker.",
            "",
            "commands:",
            *(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()),
            *(f"  {name:<{width}}  {summary}" for name, (_, summary) in PROGRAMS.items()),
            "",
            "jobs, as of spark-submit.sh (coldlog JOB --help):",
            *(f"  {name:<{width}}  {summary} ({job})" for name, (job, summary) in JOBS.items()),
        ]
    )


def _nearest(name: str) -> str:
    from coldlog.runtime.nearest import nearest_name

    near = nearest_name(name, [*COMMANDS, *PROGRAMS, *JOBS, *NAMED_JOBS, *(job for job, _ in JOBS.values())])
    return "" if near is None else f"did you mean {near}? "


def _fail(name: str, message: str, code: int) -> int:
    if sys.stderr is not None:
        print(f"{name}: {message}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Let Python end without another attempt to write what is left in its buffer."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
