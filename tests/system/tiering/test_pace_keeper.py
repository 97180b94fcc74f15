"""Test that processes that are forked from one keep its read quota together, and that no keeper stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from coldlog.errors import AnsweredTooLateError, RetriableError
from coldlog.lookups.deadlines import NoResult, Piece, run_pieces
from coldlog.runtime.settings_sources import load_settings
from coldlog.tiering.pace_keeper import PaceKeeper
from coldlog.tiering.process_pace import ProcessPace
from coldlog.tiering.read_pace import ForkedReads
from coldlog.tiering.rules.read_allowances import ReadAllowances
from coldlog.tiering.shared_quota import READERS, SharedQuota
from coldlog.tiering.system_clock import SystemClock
from read_quotas import taken_bytes
from virtual_clock import VirtualClock

RATE, READ = 1_000_000, 100_000
LATER_S = 120.0
Start = Callable[[Callable[[], ProcessPace]], PaceKeeper]


@pytest.fixture
def start() -> Iterator[Start]:
    keepers = list[PaceKeeper]()

    def open_keeper(open_pace: Callable[[], ProcessPace]) -> PaceKeeper:
        keepers.append(PaceKeeper(open_pace))
        return keepers[-1]

    yield open_keeper
    for keeper in keepers:
        keeper.close()


def own() -> ProcessPace:
    return ProcessPace(RATE, SystemClock())


def shared(uri: Path) -> ProcessPace:
    """Of all processes that read for this warehouse, which takes less than a second of its clock."""
    clock = VirtualClock()
    return ProcessPace(RATE, clock, ReadAllowances(RATE, clock, SharedQuota.below(str(uri), READERS, RATE, clock)))


def read(keeper: PaceKeeper, size_bytes: int = READ, until_s: float | None = None) -> float:
    """Read, and return when."""
    keeper.wait_for(size_bytes, until_s)
    return time.monotonic()


def read_in_processes(keeper: PaceKeeper, count: int) -> list[float]:
    """Read in at most four processes, and return when each read was made."""
    reads = [Piece(partial(read, keeper), time.time() + LATER_S) for _ in range(count)]
    found = [when for _, when in run_pieces(reads, 4)]
    return sorted(when for when in found if not isinstance(when, NoResult))


def test_forked_processes_read_at_the_quota_of_one(start: Start) -> None:
    keeper = start(own)
    made = read_in_processes(keeper, 12)
    assert len(made) == 12
    assert made[-1] - made[0] >= 10 * READ / RATE, "at most the quota and one read"
    read_bytes, throttled = keeper.figures()
    assert read_bytes == 12 * READ
    assert 0 < throttled.count < 12
    assert throttled.longest_ms <= throttled.total_ms


def test_read_that_is_late_or_killed_delays_no_other(start: Start) -> None:
    keeper = start(own)
    read(keeper, 5 * READ)

    def late() -> float:
        try:
            return read(keeper, 1_000 * READ, time.time() + 0.1)
        except AnsweredTooLateError:
            return -1

    began = time.monotonic()
    pieces = [Piece(late, time.time() + LATER_S) for _ in range(5)]
    assert [found for _, found in run_pieces(pieces, 4)] == [-1] * 5
    assert read(keeper) - began < 100, "what was refused is not charged"

    def hang() -> float:
        read(keeper)
        time.sleep(LATER_S)
        return 0

    assert [found for _, found in run_pieces([Piece(hang, time.time() + 0.5)], 1)] == [NoResult.EXPIRED]
    assert read(keeper) > 0, "the keeper goes on"


def test_forked_processes_share_the_quota_of_all_and_what_is_left_returns(start: Start, tmp_path: Path) -> None:
    here = shared(tmp_path)
    here.wait_for(READ)
    here.close()
    # delta-rs was used here, and could not be used in processes that are forked now.
    keeper = start(partial(shared, tmp_path))
    assert len(read_in_processes(keeper, 5)) == 5
    assert taken_bytes(tmp_path) >= RATE, "a second's worth was reserved"
    keeper.close()
    with pytest.raises(RetriableError, match="has ended"):
        keeper.wait_for(READ)
    assert taken_bytes(tmp_path) == 6 * READ


def _begin_and_hang(uri: Path, note: Path) -> None:
    keeper = PaceKeeper(partial(shared, uri))
    keeper.wait_for(READ)
    (child,) = psutil.Process().children()
    note.write_text(str(child.pid), encoding="utf-8")
    signal.pause()


def test_keeper_ends_when_the_process_that_began_it_is_killed(tmp_path: Path) -> None:
    warehouse, note = tmp_path / "warehouse", tmp_path / "note"
    process = multiprocessing.get_context("spawn").Process(target=_begin_and_hang, args=(warehouse, note))
    process.start()
    while not note.exists() or not note.read_text(encoding="utf-8"):
        assert process.is_alive()
        time.sleep(0.02)
    keeper = psutil.Process(int(note.read_text(encoding="utf-8")))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    keeper.wait(60)
    assert taken_bytes(warehouse) == READ, "it returned what was not used"


def test_figures_of_a_keeper_that_was_killed_are_left_out(tmp_path: Path) -> None:
    """The answers are there: a job does not fail after them."""
    settings = load_settings(
        "local",
        [
            f"archive.uri={tmp_path}",
            f"warehouse.uri={tmp_path}",
            f"remote.log.manager.fetch.max.bytes.per.second={RATE}",
        ],
    )
    reads, before = ForkedReads(), set(psutil.Process().children())
    reads.begin(settings)
    assert reads.figures(settings)["read_bytes"] == 0
    (keeper,) = set(psutil.Process().children()) - before
    keeper.kill()
    keeper.wait()
    assert reads.figures(settings) == {}
