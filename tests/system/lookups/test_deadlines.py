"""Test pieces of work that hang, die or fail, next to pieces that succeed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from coldlog.lookups.deadlines import NoResult, Piece, _Crew, run_pieces


def hang(noted_in: Path) -> int:
    """Write the process id and never return."""
    (noted_in / str(os.getpid())).touch()
    while True:
        time.sleep(60)


def die() -> int:
    """End as a process that is killed because it has no memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fail() -> int:
    """Raise an exception."""
    raise ValueError("a mistake of ours")


def run(pieces: list[Piece[int]], most_at_once: int) -> dict[int, int | NoResult]:
    """Return the result of each piece; check that each arrives once."""
    results: dict[int, int | NoResult] = {}
    for number, result in run_pieces(pieces, most_at_once):
        assert number not in results
        results[number] = result
    return results


def soon(seconds: float) -> float:
    """Return a deadline that much later than now."""
    return time.time() + seconds


def square_of(number: int) -> Callable[[], int]:
    """Return a square at once."""
    return lambda: number * number


def test_every_piece_returns_its_result() -> None:
    results = run([Piece(square_of(number), soon(60)) for number in range(500)], 3)
    assert results == {number: number * number for number in range(500)}


def test_no_pieces_give_no_results() -> None:
    assert run([], 3) == {}


def test_hanging_pieces_expire_and_the_others_have_their_results(tmp_path: Path) -> None:
    pieces = [
        Piece(lambda: hang(tmp_path), soon(3)) if number % 25 == 0 else Piece(square_of(number), soon(60))
        for number in range(200)
    ]
    results = run(pieces, 16)
    hung = {number for number in range(200) if number % 25 == 0}
    assert {number for number, result in results.items() if result is NoResult.EXPIRED} == hung
    assert all(results[number] == number * number for number in range(200) if number not in hung)
    assert len(list(tmp_path.iterdir())) == len(hung)
    assert not any(psutil.pid_exists(int(each.name)) for each in tmp_path.iterdir())


def test_pieces_that_never_began_expire_too(tmp_path: Path) -> None:
    results = run([Piece(lambda: hang(tmp_path), soon(1)) for _ in range(6)], 2)
    assert results == dict.fromkeys(range(6), NoResult.EXPIRED)
    assert 0 < len(list(tmp_path.iterdir())) <= 2


def test_piece_whose_deadline_is_over_does_not_begin(tmp_path: Path) -> None:
    results = run([Piece(lambda: hang(tmp_path), soon(-1)), Piece(square_of(3), soon(60))], 2)
    assert results == {0: NoResult.EXPIRED, 1: 9}
    assert list(tmp_path.iterdir()) == []


def test_process_that_dies_loses_only_its_piece() -> None:
    results = run(
        [Piece(die, soon(60)) if number == 3 else Piece(square_of(number), soon(60)) for number in range(20)], 2
    )
    assert results.pop(3) is NoResult.DIED
    assert results == {number: number * number for number in range(20) if number != 3}


def test_fifty_thousand_waiting_pieces_are_not_counted_at_each_step() -> None:
    waiting = deque(range(50_000))
    crew = _Crew([Piece(square_of(1), soon(60))] * 50_000, 1, waiting)
    looked_at = 0

    class Counting(deque[int]):
        def __iter__(self) -> Iterator[int]:
            nonlocal looked_at
            for each in super().__iter__():
                looked_at += 1
                yield each

    crew.waiting = Counting(waiting)
    assert list(crew.expire(time.time())) == []
    assert crew.next_event(time.time()) > 0
    assert looked_at <= 2


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = multiprocessing.get_context("fork").Process(
        target=run, args=([Piece(lambda: hang(tmp_path), soon(600)) for _ in range(2)], 2)
    )
    parent.start()
    until = soon(60)
    while len(list(tmp_path.iterdir())) < 2 and time.time() < until:
        time.sleep(0.05)
    hung = [int(each.name) for each in tmp_path.iterdir()]
    parent.kill()
    parent.join()
    while any(psutil.pid_exists(each) for each in hung) and time.time() < until:
        time.sleep(0.05)
    assert len(hung) == 2
    assert not any(psutil.pid_exists(each) for each in hung)


def test_exception_of_a_piece_is_raised_and_no_process_remains(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a mistake of ours"):
        run([Piece(lambda: hang(tmp_path), soon(60)), Piece(fail, soon(60))], 2)
    assert not any(psutil.pid_exists(int(each.name)) for each in tmp_path.iterdir())
