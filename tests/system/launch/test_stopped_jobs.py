"""Test what a signal leaves of a job in the middle of Spark's work: exit code, output, run, lock and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coldlog.tables.delta.run_rows import read_newest_run
from coldlog.tables.leases.warehouse_lock import writing
from damage.killed_jobs import find_processes, kill_session, wait_until

JOB = '''"""Wait in a task."""
import sys, time
from pathlib import Path
from coldlog.indexing.run_log import recorded_run
from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.leases.warehouse_lock import writing
def rows(batches):
    for batch in batches:
        Path("started").touch()
        time.sleep(100)
        yield batch
def call(job):
    uri = job.settings.warehouse_uri
    tables = Warehouse(spark=job.spark, uri=uri)
    with writing(uri):
        job.spark.sql(JOB_RUNS.create_statement(tables.identifier(JOB_RUNS), tables.location(JOB_RUNS)))
        with recorded_run(tables, "wait"):
            job.spark.range(9).mapInArrow(rows, "id BIGINT").collect()
if __name__ == "__main__":
    sys.exit(run_job(call, job_argument_parser(__file__, __doc__)))
'''


@pytest.mark.parametrize(
    ("number", "code", "end"),
    [
        (signal.SIGINT, 130, ("failed", "stopped by SIGINT")),
        (signal.SIGTERM, 143, ("failed", "stopped by SIGTERM")),
        (signal.SIGKILL, -9, ("running", None)),
    ],
)
def test_a_job_that_is_stopped_ends_with_its_jvm_its_run_and_its_lock(
    tmp_path: Path, number: signal.Signals, code: int, end: tuple[str, str | None]
) -> None:
    (tmp_path / "wait.py").write_text(JOB)
    warehouse = str(tmp_path / "warehouse")
    command = [sys.executable, "wait.py", "--set", f"warehouse.uri={warehouse}"]
    # A shell's background job ignores Ctrl-C, and so would what it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as job:
        try:
            wait_until((tmp_path / "started").exists, every_s=0.1)
            job.send_signal(number)
            assert job.wait(timeout=60) == code
            if number != signal.SIGKILL:
                assert find_processes(job.pid) == []
            # The JVM and its workers write to the same pipes: they end when all are gone.
            output, told = job.communicate(timeout=60)
        finally:
            kill_session(job)
    assert output == b""
    if number != signal.SIGKILL:
        assert told.decode().splitlines()[1:] == [f"spark-submit.sh wait: stopped by {number.name}"]
    newest = read_newest_run(warehouse)
    assert newest is not None
    assert (newest["outcome"], newest["error"]) == end
    with writing(warehouse):
        pass  # nobody holds it


EARLY_JOB = '''"""Stop while Spark starts."""
import signal, sys
import coldlog.launch.session as session
import coldlog.runtime.spark.spark_gateway as gateway
from coldlog.launch.entry_point import job_argument_parser, run_job
module, name, number = {"jvm": gateway, "session": session}[sys.argv[1]], sys.argv[2], int(sys.argv[3])
original = getattr(module, name)
def stopped(*arguments):
    original(*arguments)
    signal.raise_signal(number)
    # The handler of a signal runs between two steps of Python.
    return original(*arguments)
setattr(module, name, stopped)
if __name__ == "__main__":
    sys.exit(run_job(lambda job: None, job_argument_parser(__file__, __doc__), sys.argv[4:]))
'''


@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [
        (("jvm", "_start"), signal.SIGINT, 130),
        (("session", "keep_names"), signal.SIGINT, 130),
        (("session", "keep_names"), signal.SIGTERM, 143),
    ],
)
def test_a_job_that_is_stopped_while_spark_starts_prints_one_line(
    tmp_path: Path, moment: tuple[str, str], number: signal.Signals, code: int
) -> None:
    (tmp_path / "early.py").write_text(EARLY_JOB)
    command = [sys.executable, "early.py", *moment, str(int(number)), "--set", f"warehouse.uri={tmp_path}/warehouse"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as job:
        try:
            output, told = job.communicate(timeout=60)
        finally:
            kill_session(job)
    assert (job.returncode, output) == (code, b"")
    started, *lines = told.decode().splitlines()
    assert started.startswith("spark       stopped")
    assert lines == [f"spark-submit.sh early: stopped by {number.name}"]


# Python imports this when it starts. The job waits where it opens the first log.
WAITING = """
import sys, time
from pathlib import Path
def wait(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".log"):
        Path("started").touch()
        time.sleep(100)
sys.addaudithook(wait)
"""


def test_a_demo_that_is_stopped_ends_with_the_last_line_of_its_job(tmp_path: Path) -> None:
    """The signal goes to the demo alone; a terminal sends it to the job, too."""
    (tmp_path / "sitecustomize.py").write_text(WAITING)
    command = [sys.executable, "-m", "coldlog", "demo", "--folder", str(tmp_path / "demo")]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said = tmp_path / "said"
    with (
        said.open("wb") as file,
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        ) as demo,
    ):
        try:
            wait_until((tmp_path / "started").exists, every_s=0.05)
            demo.send_signal(signal.SIGINT)
            demo.wait(timeout=60)
        finally:
            kill_session(demo)
    assert (demo.returncode, said.read_text().splitlines()[-1]) == (130, "coldlog run_pipeline: stopped by SIGINT")
    with writing(str(tmp_path / "demo")):
        pass  # nobody holds it
