"""Test that an unreachable standalone cluster is reported in one line, and that the guide's cluster starts."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from coldlog.errors import RetriableError, UsageError
from coldlog.launch import session
from coldlog.launch.session import require_master
from coldlog.runtime.installation import ROOT

JOB = '''"""Look for a cluster."""
import sys
from coldlog.launch.entry_point import job_argument_parser, run_job
if __name__ == "__main__":
    sys.exit(run_job(lambda job: None, job_argument_parser(__file__, __doc__)))
'''


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound but not listened on, so that no other process listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_job_without_its_master_ends_at_once_in_one_line(tmp_path: Path, closed_port: int) -> None:
    script = tmp_path / "look.py"
    script.write_text(JOB)
    master = f"spark://127.0.0.1:{closed_port}"
    start = time.monotonic()
    answer = subprocess.run(
        [sys.executable, str(script), "--env", "cluster", "--set", "warehouse.uri=w"],
        env={**os.environ, "MASTER": master},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    # Spark would take two minutes.
    assert time.monotonic() - start < 60
    stage, line = answer.stderr.splitlines()
    assert stage.startswith("spark       FAILED")
    assert line == (
        f"spark-submit.sh look: no Spark master answers at {master} (127.0.0.1:{closed_port}: Connection refused): "
        "start it, or correct MASTER or spark.master"
    )
    assert answer.returncode == 1


def test_one_master_that_answers_is_enough(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_master(f"spark://127.0.0.1:{closed_port},127.0.0.1:{port}")
    for other in ("", "local[2]", "yarn", "k8s://https://127.0.0.1:1"):
        require_master(other)


def test_why_each_master_does_not_answer_is_told(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        if address[0] == "no.such.host":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        assert timeout > 0
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(RetriableError) as refused:
        require_master("spark://no.such.host:7077,[::1]:7078")
    assert "(no.such.host:7077: the name does not resolve; [::1]:7078: no answer)" in str(refused.value)


@pytest.mark.parametrize("master", ["spark://", "spark://host", "spark://host:port", "spark://h:1,", "spark://h:99999"])
def test_master_that_is_no_address_is_refused(master: str) -> None:
    with pytest.raises(UsageError, match="give spark://host:port"):
        require_master(master)


def test_master_that_took_no_application_is_told_as_one_that_does_not_answer(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: SparkSession.Builder) -> SparkSession:
        raise Py4JError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", stopped)
    builder = SparkSession.builder
    with pytest.raises(RetriableError, match=r"^no Spark master answers at spark://host:7077 \(none took"):
        session._get_or_create(builder, "spark://host:7077")
    with pytest.raises(Py4JError, match="stopped SparkContext"):
        session._get_or_create(builder, "local[2]")


def test_spark_class_starts_as_the_guide_says() -> None:
    guide = (ROOT / "docs" / "how-to" / "run-on-a-cluster.md").read_text(encoding="utf-8")
    (home,) = re.findall(r"^    export SPARK_HOME=<checkout>/(\S+)$", guide, re.MULTILINE)
    assert home == f".venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/pyspark"
    commands = re.findall(r'^    (?:[A-Z_]+=\S+ )*"\$SPARK_HOME/bin/spark-class" (\S+) ', guide, re.MULTILINE)
    assert len(commands) == 2
    # The environment of the tests may be another than the checkout's own.
    place = Path(pyspark.__file__).parent
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK"))}
    for command in commands:
        answer = subprocess.run(
            ["bash", "-c", f'"$SPARK_HOME/bin/spark-class" {command} --help'],
            env={**environment, "SPARK_HOME": str(place)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (answer.returncode, f"Usage: {command.rpartition('.')[2]} " in answer.stderr) == (0, True), answer.stderr
