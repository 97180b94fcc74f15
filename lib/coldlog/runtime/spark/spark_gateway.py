"""Start Spark's JVM and tell pyspark where it listens.

Spark's own launcher gives the command of the JVM, as in pyspark. pyspark then uses the JVM as one that was already
running. One thing differs from pyspark's start: the incubating vector module is left out. Nothing here multiplies
matrices, and the JVM prints a warning about the module on every start. Refused with `UsageError`: no Java, options that
the launcher does not accept.
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
from coldlog.runtime.spark.class_archive import ClassArchive, ClassSharing

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_ENDING_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Where a started JVM listens; pyspark reads both values from the environment."""

    port: int
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that pyspark reads."""
        return {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}


def start_gateway(
    home: Path, options: Mapping[str, str], environment: Mapping[str, str], sharing: ClassSharing
) -> Gateway:
    """Start the JVM of the Spark in `home`.

    The JVM ends when its standard input is closed. This process holds the other end of that pipe, so the JVM ends with
    it, also when this process is killed.
    """
    complete = _with_spark_env({**environment, "SPARK_HOME": str(home)})
    conf = [argument for key, value in options.items() for argument in ("--conf", f"{key}={value}")]
    command = _driver_command(home, [*conf, "pyspark-shell"], complete)
    command, archive = sharing.share(command, complete)
    with tempfile.TemporaryDirectory() as directory:
        connection = Path(directory) / "connection"
        try:
            jvm = _start(command, {**complete, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection)})
            while not connection.exists():
                if jvm.poll() is not None:
                    raise ColdlogError(f"spark's JVM ended with code {jvm.returncode}; see its message above")
                time.sleep(0.02)
        except KeyboardInterrupt:
            # It has done nothing yet. Left alone, it would go on to start, and print that the directory has gone.
            for started in _STARTED[-1:]:
                started.kill()
            raise
        _ARCHIVES.append(archive)
        return _read_connection(connection.read_bytes())


def jvm_exit_code(*, wait_s: float = 0) -> int | None:
    """Return the exit code of the JVM that this process started, negative for a signal; None while it runs.

    Also None if this process started no JVM. The call waits at most `wait_s` seconds for the JVM to end.
    """
    if not _STARTED:
        return None
    try:
        return _STARTED[-1].wait(timeout=wait_s)
    except subprocess.TimeoutExpired:
        return None


def end_jvm() -> None:
    """End the JVM that this process started, and wait until it is gone; it is killed if it does not end by itself."""
    if not _STARTED:
        return
    jvm = _STARTED[-1]
    if jvm.stdin is not None:
        jvm.stdin.close()
    try:
        jvm.wait(timeout=_ENDING_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def unwritten_archive() -> ClassArchive | None:
    """Return the archive of classes that the JVM of this process can write; None if there is one, or none is kept."""
    archive = _ARCHIVES[-1] if _ARCHIVES else None
    return None if archive is None or archive.file else archive


def find_java(environment: Mapping[str, str]) -> str:
    """Find java in JAVA_HOME, else in PATH."""
    home = environment.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if java is None or not os.access(java, os.X_OK):
        raise UsageError("no java found: install Java 17 or newer, or set JAVA_HOME")
    return java


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A separate process group: only the job receives Ctrl-C, and it stops Spark itself.
    jvm = subprocess.Popen(command, env=dict(environment), stdin=subprocess.PIPE, process_group=0)
    _STARTED.append(jvm)
    return jvm


_STARTED: list[subprocess.Popen[bytes]] = []
"""Kept so that the standard input of each JVM stays open until this process ends."""
_ARCHIVES: list[ClassArchive | None] = []
"""The archive of each of these JVMs."""


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
        raise UsageError("spark's launcher refused the options; see its message above")
    return [word for word in words if word != _VECTOR_MODULE]


def _with_spark_env(environment: Mapping[str, str]) -> dict[str, str]:
    # Spark's own script; it also reads a cluster's spark-env.sh.
    script = '. "$SPARK_HOME/bin/load-spark-env.sh" >&2 && exec env -0'
    answer = subprocess.run(["bash", "-c", script], env=dict(environment), stdout=subprocess.PIPE, check=False)
    if answer.returncode != 0:
        raise UsageError(f"spark-env.sh in {environment['SPARK_CONF_DIR']} failed; see its message above")
    return dict(line.split("=", 1) for line in answer.stdout.decode().split("\0") if "=" in line)
