"""Test that the number of threads follows its setting while they run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.tiering.copying.copy_job import copy
from coldlog.tiering.copying.copy_partition import PartitionCopier
from coldlog.tiering.expiry.expire_job import expire
from coldlog.tiering.expiry.expire_partition import PartitionExpirer
from coldlog.tiering.job_arguments import add_copy_options, add_expire_options
from coldlog.tiering.work_pool import WorkPool
from tier_jobs import aged_segment, orders_arguments

LONGEST_S = 20.0
COPIERS, EXPIRERS = "remote.log.manager.copier.thread.pool.size", "remote.log.manager.expiration.thread.pool.size"


@pytest.fixture(autouse=True)
def _hangs_up() -> Iterator[None]:
    """A process that was started by nohup ignores SIGHUP, and so does a job in it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class Meeting:
    """Work of which the first piece calls `after_first`, and all others wait until `size` of them run at once."""

    def __init__(self, after_first: Callable[[], None], size: int) -> None:
        self._after_first = after_first
        self._together = threading.Barrier(size)
        self._lock = threading.Lock()
        self.begun_count = 0

    def run(self, *_: object) -> None:
        with self._lock:
            self.begun_count += 1
            number = self.begun_count
        if number == 1:
            self._after_first()
        else:
            self._together.wait(LONGEST_S)


def test_pool_grows_and_shrinks_while_it_runs() -> None:
    size, begun, goes_on = [2], list[int](), {number: threading.Event() for number in range(7)}

    def run(number: int) -> None:
        begun.append(number)
        assert goes_on[number].wait(LONGEST_S)

    def end(*numbers: int) -> None:
        for number in numbers:
            goes_on[number].set()
        ended = set[int]()
        while ended < set(numbers):
            ended |= set(pool.wait())

    with WorkPool[int](lambda: size[0], "test") as pool:
        pool.add(run, range(7))
        assert pool.unfinished_count == 7
        size[0] = 4
        end(0)
        size[0] = 1
        end(1, 2, 3)
        assert sorted(begun) == [0, 1, 2, 3, 4], "two, then four at once; now one of them still runs"
        end(4)
        end(5)
        end(6)
        assert pool.unfinished_count == 0
    assert begun[-2:] == [5, 6]


def test_what_a_piece_raises_ends_the_work_and_begins_nothing_more() -> None:
    begun = list[int]()

    def run(number: int) -> None:
        begun.append(number)
        raise ValueError(str(number))

    with WorkPool[int](lambda: 1, "test") as pool:
        pool.add(run, range(3))
        with pytest.raises(ValueError, match="0"):
            pool.wait()
    assert begun == [0]


def write_pool_size(path: Path, key: str, size: str) -> None:
    path.write_text(f'"{key}" = {size}\n', encoding="utf-8")


@pytest.mark.parametrize(("is_copy", "key"), [(True, COPIERS), (False, EXPIRERS)])
def test_job_reads_the_size_of_its_pool_again_at_sighup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_copy: bool, key: str
) -> None:
    arguments, config = orders_arguments(tmp_path, [aged_segment(0, 2), aged_segment(10, 0)]), tmp_path / "pools.toml"
    for number in range(1, 4):
        write_partition(tmp_path / "logs", "orders", number, [aged_segment(0, 2), aged_segment(10, 0)])
    watermarks = {("orders", number): 20 for number in range(4)}
    write_offset_checkpoint(tmp_path / "logs" / HIGH_WATERMARKS, watermarks)
    copies, expires = (
        add_options(job_argument_parser(name, ""))
        for name, add_options in (("copy_segments", add_copy_options), ("expire_segments", add_expire_options))
    )
    if not is_copy:
        assert run_plain_job(copy, copies, arguments) == 0

    def follow() -> None:
        write_pool_size(config, key, "3")
        os.kill(os.getpid(), signal.SIGHUP)

    write_pool_size(config, key, "1")
    meeting = Meeting(follow, 3)
    monkeypatch.setattr(PartitionCopier if is_copy else PartitionExpirer, "run", meeting.run)
    before = signal.getsignal(signal.SIGHUP)
    job, parser = (copy, copies) if is_copy else (expire, expires)
    assert run_plain_job(job, parser, [*arguments, "--config", str(config)]) == 0
    assert meeting.begun_count == 4
    assert signal.getsignal(signal.SIGHUP) is before
    assert "stay as they are" not in capsys.readouterr().err


def test_unfit_settings_are_reported_and_the_pool_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, config = orders_arguments(tmp_path, [aged_segment(0, 2), aged_segment(10, 0)]), tmp_path / "pools.toml"
    write_partition(tmp_path / "logs", "orders", 1, [aged_segment(0, 2), aged_segment(10, 0)])
    write_pool_size(config, COPIERS, "1")

    def run(*_: object) -> None:
        write_pool_size(config, COPIERS, "0")
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(PartitionCopier, "run", run)
    parser = add_copy_options(job_argument_parser("copy_segments", ""))
    assert run_plain_job(copy, parser, [*arguments, "--config", str(config)]) == 0
    assert "the settings stay as they are: " in capsys.readouterr().err
