"""spark_gateway: how does Spark's JVM start, and how does pyspark reach it?

The JVM's command is asked of Spark's own launcher, as pyspark does, and pyspark finds the JVM as one that was there
before. What differs from pyspark's start: the incubating vector module is left out; nothing here multiplies matrices,
and the JVM announces it on every start. Refused with `UsageError`: no Java, options that the launcher does not take.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coldlog.errors import ColdlogError, UsageError

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Where a started JVM listens; pyspark takes both from the environment."""

    port: int
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that pyspark looks at."""
        return {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}


def start_gateway(home: Path, options: Mapping[str, str], environment: Mapping[str, str]) -> Gateway:
    """Start the JVM of the Spark in `home`.

    It ends when its standard input does: the other end of that pipe stays open as long as this process lives, and
    closes however it ends.
    """
    complete = _with_spark_env({**environment, "SPARK_HOME": str(home)})
    conf = [argument for key, value in options.items() for argument in ("--conf", f"{key}={value}")]
    command = _driver_command(home, [*conf, "pyspark-shell"], complete)
    with tempfile.TemporaryDirectory() as directory:
        connection = Path(directory) / "connection"
        jvm = _start(command, {**complete, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection)})
        while not connection.exists():
            if jvm.poll() is not None:
                raise ColdlogError(f"spark's JVM ended with code {jvm.returncode}; its message stands above")
            time.sleep(0.02)
        return _read_connection(connection.read_bytes())


def jvm_exit_code(*, wait_s: float = 0) -> int | None:
    """The code with which the JVM that was started here has ended, negative for a signal; None while it lives.

    Also None where none was started here. An end that is under way is waited for, `wait_s` seconds at the most.
    """
    if not _STARTED:
        return None
    try:
        return _STARTED[-1].wait(timeout=wait_s)
    except subprocess.TimeoutExpired:
        return None


def find_java(environment: Mapping[str, str]) -> str:
    """JAVA_HOME's java, else the PATH's."""
    home = environment.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if java is None or not os.access(java, os.X_OK):
        raise UsageError("no java found: install Java 17 or newer, or set JAVA_HOME")
    return java


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A process group of its own: Ctrl-C is the job's to handle, it stops Spark itself.
    jvm = subprocess.Popen(command, env=dict(environment), stdin=subprocess.PIPE, process_group=0)
    _STARTED.append(jvm)
    return jvm


_STARTED: list[subprocess.Popen[bytes]] = []
"""Held so that their standard input stays open until this process ends."""


def _read_connection(content: bytes) -> Gateway:
    port, length = struct.unpack_from(">ii", content)
    return Gateway(port=port, secret=content[8 : 8 + length].decode())


def _driver_command(home: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    launcher = [find_java(environment), "-Xmx128m", "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main"]
    answer = subprocess.run(
        [*launcher, "org.apache.spark.deploy.SparkSubmit", *arguments],
        env=dict(environment),
        stdout=subprocess.PIPE,
        check=False,
    )
    # A line that is one NUL, then the words, each ended by a NUL.
    words = answer.stdout.decode().partition("\0\n")[2].split("\0")[:-1]
    if answer.returncode != 0 or not words:
        raise UsageError("spark's launcher refused the options; its message stands above")
    return [word for word in words if word != _VECTOR_MODULE]


def _with_spark_env(environment: Mapping[str, str]) -> dict[str, str]:
    # Spark's own script; it also reads a cluster's spark-env.sh.
    script = '. "$SPARK_HOME/bin/load-spark-env.sh" >&2 && exec env -0'
    answer = subprocess.run(["bash", "-c", script], env=dict(environment), stdout=subprocess.PIPE, check=False)
    if answer.returncode != 0:
        raise UsageError(f"spark-env.sh in {environment['SPARK_CONF_DIR']} failed; its message stands above")
    return dict(line.split("=", 1) for line in answer.stdout.decode().split("\0") if "=" in line)
