"""Work that hangs, dies or fails, beside work that does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from coldlog.lookups.deadlines import NoResult, Piece, run_pieces


def hang(noted_in: Path) -> int:
    """Never comes back; leaves its process id."""
    (noted_in / str(os.getpid())).touch()
    while True:
        time.sleep(60)


def die() -> int:
    """As a process does that runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fail() -> int:
    """Raises."""
    raise ValueError("a mistake of ours")


def run(pieces: list[Piece[int]], most_at_once: int) -> dict[int, int | NoResult]:
    """What came of each piece; each comes once."""
    results: dict[int, int | NoResult] = {}
    for number, result in run_pieces(pieces, most_at_once):
        assert number not in results
        results[number] = result
    return results


def soon(seconds: float) -> float:
    """That much later than now."""
    return time.time() + seconds


def square_of(number: int) -> Callable[[], int]:
    """Something quick."""
    return lambda: number * number


def test_every_piece_gives_its_result() -> None:
    results = run([Piece(square_of(number), soon(60)) for number in range(500)], 3)
    assert results == {number: number * number for number in range(500)}


def test_nothing_to_do_is_done() -> None:
    assert run([], 3) == {}


def test_what_hangs_expires_and_the_others_have_their_results(tmp_path: Path) -> None:
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


def test_a_deadline_that_is_over_begins_nothing(tmp_path: Path) -> None:
    results = run([Piece(lambda: hang(tmp_path), soon(-1)), Piece(square_of(3), soon(60))], 2)
    assert results == {0: NoResult.EXPIRED, 1: 9}
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_takes_its_piece_alone() -> None:
    results = run(
        [Piece(die, soon(60)) if number == 3 else Piece(square_of(number), soon(60)) for number in range(20)], 2
    )
    assert results.pop(3) is NoResult.DIED
    assert results == {number: number * number for number in range(20) if number != 3}


def test_what_a_piece_raises_is_raised_and_nobody_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a mistake of ours"):
        run([Piece(lambda: hang(tmp_path), soon(60)), Piece(fail, soon(60))], 2)
    assert not any(psutil.pid_exists(int(each.name)) for each in tmp_path.iterdir())
