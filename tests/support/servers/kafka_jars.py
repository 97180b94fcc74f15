"""kafka_jars: how do tests get Kafka's own jars, and run what is in them?

The jars come from Maven into build/, once; a JDK and Maven are needed, and a test that lacks them fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from environment import REPOSITORY

from coldlog.launch.jars import MAVEN_COPY


def resolve_jars(pom: Path, name: str, **properties: str) -> Path:
    """The directory build/`name`, with the jars of the pom under these properties (`_` stands for `.`)."""
    jars = REPOSITORY / "build" / name
    given = [f"-D{key.replace('_', '.')}={value}" for key, value in properties.items()]
    stamp, wanted = jars / "stamp", hashlib.sha256(pom.read_bytes() + "".join(given).encode()).hexdigest()
    with _only_one_maven():
        if not stamp.is_file() or stamp.read_text() != wanted:
            shutil.rmtree(jars, ignore_errors=True)
            options = ["--quiet", "--batch-mode", "-Dstyle.color=never", "--file", str(pom), *given]
            run_tool([find_tool("mvn"), *options, MAVEN_COPY, f"-DoutputDirectory={jars}"])
            stamp.write_text(wanted)
    return jars


@contextmanager
def _only_one_maven() -> Iterator[None]:
    """Tests run in several processes, and Maven's repository takes one writer at a time."""
    lock_file = REPOSITORY / "build" / "maven.lock"
    lock_file.parent.mkdir(exist_ok=True)
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_tool(name: str) -> str:
    """JAVA_HOME's tool, else the PATH's."""
    home = os.environ.get("JAVA_HOME")
    path = (shutil.which(f"{home}/bin/{name}") if home else None) or shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is needed to ask Kafka itself and was not found; install a JDK and Maven")
    return path


def run_tool(command: Sequence[str], standard_input: str = "") -> str:
    """What the program writes; one that fails fails the test."""
    answer = subprocess.run(command, input=standard_input, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        pytest.fail(f"{command[0]} failed with exit code {answer.returncode}:\n{answer.stdout[-2000:]}{answer.stderr}")
    return answer.stdout
