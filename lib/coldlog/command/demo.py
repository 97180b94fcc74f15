"""Index a sample archive, ask it, and show what was asked: one minute, nothing to configure.

    coldlog demo
    coldlog demo --folder /tmp/coldlog-demo

The tables are written below --folder. Each command is printed before its answer, so that it can be repeated. A checkout
indexes all of its sample, an installed package the topics that it carries.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
from pathlib import Path

_ASKED = (
    ("topics",),
    ("lookup", "orders", "2023-11-15T10:00Z"),
    ("offsets", "orders", "latest-tiered"),
    ("cat", "orders", "-o", "2592", "-c", "3", "-f", "%o %T %k\\n"),
    ("problems",),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--folder", default="coldlog-demo", metavar="DIR", help="where the tables are written (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Index and ask."""
    from coldlog.command.main import main
    from coldlog.runtime.installation import SAMPLE

    warehouse = str(Path(arguments.folder).absolute())
    archive = ["--set", f"archive.uri={SAMPLE}"]
    job = ["run", *archive, "--set", f"warehouse.uri={warehouse}"]
    _show(job)
    code = _wait_for(subprocess.Popen([sys.executable, "-m", "coldlog", *job]))
    for asked in _ASKED if code == 0 else ():
        command = [*asked, "-w", warehouse, *(archive if asked[0] == "cat" else ())]
        _show(command)
        # A problem of the sample is an answer here.
        code = max(code, 0 if main(command) in (0, 1) else 1)
    return code


def _wait_for(job: subprocess.Popen[bytes]) -> int:
    """Return its exit code. A job that is stopped says so itself and releases its lock."""
    try:
        return job.wait()
    except KeyboardInterrupt:
        job.send_signal(signal.SIGINT)  # a terminal has sent it, too; a job takes the second as the first
        return job.wait()


def _show(command: list[str]) -> None:
    from coldlog.runtime.installation import COMMAND

    print(f"\n$ {COMMAND} {shlex.join(command)}", flush=True)
