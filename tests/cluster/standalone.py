"""standalone: a Spark cluster of a master and two workers on this machine, as a test needs it.

Each worker is a process group of its own with its executors, so that killing one is what a machine that goes is.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

_SPARK_HOME = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")
_START_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneCluster:
    """`master` is its url; `workers` are processes that may be killed."""

    master: str
    workers: tuple[subprocess.Popen[bytes], ...]

    def kill_worker(self, number: int) -> None:
        """With its executors and their Python processes, at once."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)
        self.workers[number].wait()


@contextmanager
def running_cluster(
    directory: Path, environment: Mapping[str, str], *, worker_count: int = 2
) -> Iterator[StandaloneCluster]:
    """A cluster until the end of the block; `environment` is what its workers and their executors have."""
    base = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK", "SPARK", "AWS"))
    }
    # None of these lives long enough for the optimizing compiler.
    everywhere = {
        **base,
        **environment,
        "SPARK_HOME": str(_SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, class_name: str, *arguments: str, ready: re.Pattern[str]) -> str:
        log = directory / f"{name}.log"
        command = [str(_SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{class_name}", *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=everywhere, cwd=directory, stdout=output, stderr=output, start_new_session=True
            )
        processes.append(process)
        return _wait_for(process, log, ready)

    try:
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = start("master", "master.Master", *ports, ready=_MASTER)
        for number in range(worker_count):
            room = ("-c", "1", "-m", "2g", "-d", str(directory / f"work-{number}"))
            start(f"worker-{number}", "worker.Worker", master, *ports, *room, ready=_REGISTERED)
        yield StandaloneCluster(master=master, workers=tuple(processes[1:]))
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_for(process: subprocess.Popen[bytes], log: Path, ready: re.Pattern[str]) -> str:
    """What the log says when it is ready: the pattern's group, or the whole match."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        told = ready.search(log.read_text(errors="replace"))
        if told is not None:
            return told[told.re.groups]
        time.sleep(0.1)
    raise pytest.fail.Exception(f"a process of the cluster did not come up:\n{log.read_text(errors='replace')[-3000:]}")


def workers_python() -> str:
    """An interpreter of this version that has none of coldlog's packages: what a bare worker has."""
    return str(getattr(sys, "_base_executable", sys.executable))
