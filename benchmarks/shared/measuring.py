"""measuring: how is one thing timed beside another, and what does a figure say?

Things that are compared run in turns, A B C A B C, so that a machine that slows down slows them all; the median of the
turns counts, after one turn that warms caches and compilers and is thrown away. Nothing here judges: a figure that
misses its target is printed, not raised, because a busy machine is no fault of the code.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table; `ratio` is the value divided by the peer's, or by whatever `against` names."""

    benchmark: str
    what: str
    on: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None
    target: str = ""
    is_met: bool | None = None


def seconds_in_turns(calls: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The median seconds of each call."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if turn > 0:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in seconds.items()}


@contextmanager
def pinned_to_one_core() -> Iterator[int]:
    """This process runs on its last allowed core alone; gives the core's number."""
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    os.sched_setaffinity(0, {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, allowed)


@dataclass(slots=True, kw_only=True)
class PeakMemory:
    """The most memory that this process and its children held at once, by role, sampled.

    Anonymous memory alone: pages of memory-mapped logs are the page cache's, and shared.
    """

    jvm_bytes: int = 0
    python_driver_bytes: int = 0
    python_workers_bytes: int = 0
    largest_worker_bytes: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _sampler: threading.Thread | None = None

    def __enter__(self) -> PeakMemory:
        self._sampler = threading.Thread(target=self._sample_until_stopped, daemon=True)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._sampler is not None:
            self._sampler.join()

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(0.1):
            self._sample()

    def _sample(self) -> None:
        jvm_bytes, workers = 0, [0]
        for child in psutil.Process().children(recursive=True):
            try:
                name, anonymous_bytes = child.name(), anonymous_memory(child.pid)
            except (psutil.Error, OSError):  # it ended meanwhile
                continue
            if name == "java":
                jvm_bytes += anonymous_bytes
            elif name.startswith("python"):
                workers.append(anonymous_bytes)
        self.jvm_bytes = max(self.jvm_bytes, jvm_bytes)
        self.python_workers_bytes = max(self.python_workers_bytes, sum(workers))
        self.largest_worker_bytes = max(self.largest_worker_bytes, *workers)
        self.python_driver_bytes = max(self.python_driver_bytes, anonymous_memory(os.getpid()))


def anonymous_memory(pid: int) -> int:
    """Bytes of memory of a process that no file backs."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    return 0
