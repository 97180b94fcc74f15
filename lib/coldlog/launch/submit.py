"""submit: which jobs are there, and how does `spark-submit.sh JOB [arguments]` become one?

    python -m coldlog.launch.submit                      lists the jobs
    python -m coldlog.launch.submit JOB [arguments]      this process becomes the job

The job is Spark's driver and starts Spark itself (`coldlog.launch.session`), after it has understood its arguments: a
mistyped one costs no JVM. `spark-submit JOB.py` works as well; there the JVM is the parent, and it mixes the job's
stderr into its stdout. Refused with exit code 2: unknown jobs.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from coldlog.errors import UsageError
from coldlog.runtime.settings_sources import REPOSITORY


def main(argv: Sequence[str], directory: Path = REPOSITORY / "jobs") -> int:
    """Becomes the job; returns an exit code only where no job was started."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(directory))
        return 0 if argv else 2
    try:
        script = get_job(argv[0], directory)
    except UsageError as error:
        print(f"spark-submit.sh: {error}", file=sys.stderr)
        return 2
    return _become([sys.executable, str(script), *argv[1:]])


def get_job(name: str, directory: Path) -> Path:
    """The script of a job."""
    jobs = list_jobs(directory)
    if name not in jobs:
        raise UsageError(f"there is no job {name}; known are {', '.join(jobs)}")
    return directory / f"{name}.py"


def list_jobs(directory: Path) -> dict[str, str]:
    """Each job's name and the question it answers (the first line of its docstring)."""
    return {each.stem: _question(each) for each in sorted(directory.glob("[a-z]*.py"))}


def usage(directory: Path) -> str:
    """What `spark-submit.sh` says without a job."""
    jobs = list_jobs(directory)
    width = max((len(name) for name in jobs), default=0)
    lines = [f"  {name:<{width}}  {question}" for name, question in jobs.items()]
    return "\n".join(
        [
            "usage: [MASTER=local[*]] spark-submit.sh JOB [--env NAME] [--set key=value]... [arguments]",
            "       spark-submit.sh JOB --help | --list-settings",
            "",
            "jobs:",
            *lines,
        ]
    )


def _become(command: list[str]) -> NoReturn:
    os.execv(command[0], command)


def _question(script: Path) -> str:
    documentation = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return documentation.partition("\n")[0].partition(":")[2].strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
