"""dump_log: how fast does Kafka's own tool read the same segment?

`kafka-dump-log --deep-iteration` decompresses every batch and prints a line a record, which goes to /dev/null. Its JVM
starts in a third of a second; the time of a start without work is taken off, so that the figure is the tool's own.
Maven resolves the jars once, into build/peers.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.measuring import seconds_in_turns

ROOT = Path(__file__).resolve().parent.parent
JARS = ROOT / "build" / "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpLog:
    """The tool on one segment; `directory` holds a link of the name it insists on."""

    directory: Path

    def start_only(self) -> None:
        """A run on a file it does not know."""
        self._run("none.leader_epoch_checkpoint")

    def iterate_deep(self) -> None:
        """A run over every record."""
        self._run("00000000000000000000.log")

    def _run(self, name: str) -> None:
        # 256 MB is what Kafka's script gives the tool.
        tool = ["java", "-Xmx256m", "-cp", f"{JARS}/*", "kafka.tools.DumpLogSegments"]
        files = ["--deep-iteration", "--files", str(self.directory / name)]
        subprocess.run([*tool, *files], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def dump_log_of(log: Path) -> Iterator[DumpLog]:
    """The tool, ready for this segment."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "00000000000000000000.log").symlink_to(log)
        yield DumpLog(directory=Path(directory))


def resolve_jars() -> None:
    """Downloads the tool's jars where they are missing."""
    finished = JARS / ".finished"
    if not finished.exists():
        pom = ROOT / "benchmarks" / "peers" / "pom.xml"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
        subprocess.run(command, check=True)
        finished.touch()


def deep_iteration_seconds(logs: Sequence[Path], turns: int) -> float:
    """The tool's own seconds for these segments one after another, without the starts of its JVM."""
    resolve_jars()
    seconds = 0.0
    for log in logs:
        with dump_log_of(log) as tool:
            timed = seconds_in_turns({"start": tool.start_only, "deep": tool.iterate_deep}, turns)
            seconds += timed["deep"] - timed["start"]
    return seconds
