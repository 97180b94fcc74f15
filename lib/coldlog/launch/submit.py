"""List the jobs, or replace this process with one of them.

    python -m coldlog.launch.submit                      list the jobs
    python -m coldlog.launch.submit JOB [arguments]      become the job

The job is Spark's driver. It parses its arguments first and then starts Spark itself (`coldlog.launch.session`), so a
mistyped argument starts no JVM. `spark-submit JOB.py` works too, but then the JVM is the parent process and mixes the
job's stderr into its stdout. Refused with exit code 2: unknown jobs.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from coldlog.errors import UsageError
from coldlog.runtime.extras import require_extras
from coldlog.runtime.installation import JOBS
from coldlog.runtime.nearest import nearest_name
from coldlog.runtime.spark.spark_versions import installed_series

_WITHOUT_SPARK = {
    "show_settings": (),
    "fetch_records": ("records",),
    "copy_segments": ("records",),
    "expire_segments": ("records",),
}
"""The extras that these jobs need; all others need `spark`."""
_HELP = frozenset({"-h", "--help", "--list-settings"})
"""What a job answers without its packages."""


def main(argv: Sequence[str], directory: Path = JOBS) -> int:
    """Become the job, for spark-submit.sh; return an exit code only if no job was started."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(directory))
        return 0 if argv else 2
    try:
        become(argv[0], argv[1:], directory)
    except UsageError as error:
        print(f"spark-submit.sh: {error}", file=sys.stderr)
        return 2


def become(job: str, arguments: Sequence[str], directory: Path = JOBS) -> NoReturn:
    """Replace this process by the job; `UsageError` if there is no such job, or a package that it needs is missing."""
    script = get_job(job, directory)
    if _HELP.isdisjoint(arguments):
        require_extras(_WITHOUT_SPARK.get(job, ("spark",)))
        if job not in _WITHOUT_SPARK:
            installed_series()  # refuses a Spark that is not supported, before the job imports its modules
    _execute([sys.executable, str(script), *arguments])


def get_job(name: str, directory: Path) -> Path:
    """Return the script of a job."""
    jobs = list_jobs(directory)
    if name not in jobs:
        near = nearest_name(name, jobs)
        asked = "" if near is None else f"did you mean {near}? "
        raise UsageError(f"unknown job {name}: {asked}give one of {', '.join(jobs)}")
    return directory / f"{name}.py"


def list_jobs(directory: Path) -> dict[str, str]:
    """Map each job's name to what it does (the first line of its docstring)."""
    return {script.stem: _first_line(script) for script in sorted(directory.glob("[a-z]*.py"))}


def usage(directory: Path) -> str:
    """The text that `spark-submit.sh` prints without a job."""
    jobs = list_jobs(directory)
    width = max((len(name) for name in jobs), default=0)
    lines = [f"  {name:<{width}}  {summary}" for name, summary in jobs.items()]
    return "\n".join(
        [
            "usage: [MASTER=local[*]] spark-submit.sh JOB [--env NAME] [--set key=value]... [arguments]",
            "       spark-submit.sh JOB --help | --list-settings",
            "",
            "jobs:",
            *lines,
        ]
    )


def _execute(command: list[str]) -> NoReturn:
    os.execv(command[0], command)


def _first_line(script: Path) -> str:
    documentation = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return documentation.partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
