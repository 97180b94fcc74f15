"""Test what requests are answered if their lookup is slow, fails, dies or hangs, and that no process remains."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.timed_answers import answer_until
from coldlog.model.list_offsets import ErrorCode
from tables.empty_index import asked, empty_index

_READS_AN_ARCHIVE = """
import os, sys, time
import numpy as np
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.lookups.list_offsets import LookupOptions, open_lookup
from coldlog.lookups.served_index import list_warehouse_files
from coldlog.lookups.timed_answers import answer_until
from tables.empty_index import asked

DECODER = "coldlog.formats.kafka.record_batch", "coldlog.index.stairs"

def open_layout():
    print(os.getpid(), all(name in sys.modules for name in DECODER), flush=True)
    from coldlog.archive.open_archive import open_archive
    return open_archive(sys.argv[2], "local_tiered_storage")

limits = DecodeLimits(max_batch_bytes=1 << 24, max_decompressed_bytes=1 << 24)
options = LookupOptions(batches=BatchReader(open_layout=open_layout, limits=limits))
files, times = list_warehouse_files(sys.argv[1]), [1_700_042_400_000]
found = answer_until(
    lambda: open_lookup(files, options)[1], asked(*times), np.full(len(times), time.time() + 60), most_at_once=4
)
print(*found.offsets.tolist(), all(name in sys.modules for name in DECODER))
"""


def answer(deadline: float, open_lookup: Callable[[], ListOffsets]) -> list[ErrorCode]:
    """Ask for two offsets of a partition that is in no table."""
    answers = answer_until(open_lookup, asked(5, 7), np.full(2, deadline), most_at_once=2)
    return [ErrorCode(error) for error in answers.errors.tolist()]


def open_at(moment: float) -> ListOffsets:
    time.sleep(max(0.0, moment - time.time()))
    return ListOffsets(empty_index())


def hang(noted_in: Path | None = None) -> ListOffsets:
    if noted_in is not None:
        (noted_in / str(os.getpid())).touch()
    return open_at(time.time() + 60)


def die() -> ListOffsets:
    """End as a process that is killed because it has no memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return open_at(0)


def fail() -> ListOffsets:
    raise UsageError("no such table")


@pytest.mark.parametrize(
    ("late_s", "error"),
    [(-2.0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (-0.45, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
     (0.2, ErrorCode.REQUEST_TIMED_OUT), (60, ErrorCode.REQUEST_TIMED_OUT)],
)  # fmt: skip
def test_answer_counts_if_it_arrives_before_the_deadline(late_s: float, error: ErrorCode) -> None:
    deadline = time.time() + 2
    assert answer(deadline, lambda: open_at(deadline + late_s)) == [error] * 2
    assert time.time() < deadline + 10


def test_requests_whose_deadline_has_passed_are_not_waited_for() -> None:
    started = time.time()
    assert answer(started - 9, hang) == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert time.time() < started + 10


@pytest.mark.parametrize(
    ("lookup", "error", "message"),
    [(fail, UsageError, "no such table"), (die, RetriableError, "the process that answers lookups died")],
)
def test_failure_of_the_lookup_is_raised(
    lookup: Callable[[], ListOffsets], error: type[ColdlogError], message: str
) -> None:
    with pytest.raises(error, match=message):
        answer(time.time() + 60, lookup)


def test_process_that_answers_ends_with_its_parent(tmp_path: Path) -> None:
    until = time.time() + 60
    parent = multiprocessing.get_context("fork").Process(target=answer, args=(until, lambda: hang(tmp_path)))
    parent.start()
    while not (noted := list(tmp_path.iterdir())) and time.time() < until:
        time.sleep(0.05)
    parent.kill()
    parent.join()
    (hung,) = (int(each.name) for each in noted)
    while psutil.pid_exists(hung) and time.time() < until - 20:
        time.sleep(0.05)
    assert not psutil.pid_exists(hung)


def test_a_process_that_reads_the_archive_does_not_load_code_for_it(
    golden_sidecar_uri: str, golden_archive: Path
) -> None:
    """If each did, it would be late, more would be made, and all of them would load at the same time."""
    command = [sys.executable, "-c", _READS_AN_ARCHIVE, golden_sidecar_uri, str(golden_archive)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    *readers, answer = (line.split() for line in ended.stdout.splitlines())
    assert readers
    assert {is_loaded for _, is_loaded in readers} == {"True"}
    assert answer == ["2592", "False"]
