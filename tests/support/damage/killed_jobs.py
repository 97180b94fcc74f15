"""killed_jobs: how does a test start a job as a user does, and kill it (SIGKILL) at a moment that files tell?

A job runs in a session of its own, by which all of its processes are found, the JVM and Python's workers too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[3]
PATIENCE_S = 240


def start_job(name: str, arguments: Sequence[str], *, folder: Path) -> subprocess.Popen[bytes]:
    """`spark-submit.sh` in `folder`, where its streams become the files `stdout` and `stderr`."""
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            [str(ROOT / "spark-submit.sh"), name, *arguments],
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


def kill_session(run: subprocess.Popen[bytes]) -> None:
    """All processes of a job at once; returns when they are gone."""
    for each in find_processes(run.pid):
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    run.wait(timeout=60)
    wait_until(lambda: not find_processes(run.pid), within_s=60, every_s=0.1)


def stop_session(run: subprocess.Popen[bytes]) -> None:
    """Suspend all processes of a job; returns when every thread of them stands still.

    A thread that is in `vfork` cannot stop before its child has called `exec`. If the child was stopped before that,
    both wait forever: then the job goes on for a moment, and all is stopped again.
    """
    wait_until(lambda: _has_stopped_within(run, tries=200), within_s=60, every_s=0.05)


def continue_session(run: subprocess.Popen[bytes]) -> None:
    """Let the processes that `stop_session` suspended go on."""
    for each in find_processes(run.pid):
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGCONT)


def wait_until(is_so: Callable[[], bool], *, within_s: float = PATIENCE_S, every_s: float) -> None:
    """Asks again and again; fails when it is not so in time."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited {within_s} s in vain"
        time.sleep(every_s)


def find_processes(session: int) -> list[psutil.Process]:
    """What lives of a session; those that only wait to be buried do not."""
    return [each for each in psutil.process_iter() if _is_alive_in(session, each)]


def find_jvm(session: int) -> int:
    """The process id of a session's one JVM."""
    (jvm,) = [each.pid for each in find_processes(session) if _name_of(each) == "java"]
    return int(jvm)


def _is_alive_in(session: int, process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
        return False


def _has_stopped_within(run: subprocess.Popen[bytes], *, tries: int) -> bool:
    """Whether all processes of a job have stopped after so many signals, 1 ms apart; if not, they go on."""
    for _ in range(tries):
        # A process that was just forked is found the next time.
        processes = find_processes(run.pid)
        for each in processes:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGSTOP)
        if all(map(_has_stopped, processes)):
            return True
        time.sleep(0.001)
    continue_session(run)
    return False


def _has_stopped(process: psutil.Process) -> bool:
    """Whether all its threads have, or it has ended."""
    try:
        states = [task.read_text().rpartition(")")[2].split()[0] for task in _tasks(process)]
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended
    return set(states) <= {"T", "Z", "X"}


def _tasks(process: psutil.Process) -> list[Path]:
    return list(Path(f"/proc/{process.pid}/task").glob("*/stat"))


def _name_of(process: psutil.Process) -> str | None:
    """None of one that ended since it was found: a shell's helper lives for a moment."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return None
