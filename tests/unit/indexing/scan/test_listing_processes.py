"""Test that calls in several processes give what calls in this one give, also if a process fails or dies."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from coldlog.errors import RetriableError
from coldlog.indexing.scan.listing_processes import map_in_processes
from counts.calls_elsewhere import DYING, FAILING, square, square_or_die, square_or_fail


def test_results_come_in_order_and_from_other_processes() -> None:
    results = list(map_in_processes(square, range(20)))
    assert [found for found, _ in results] == [number * number for number in range(20)]
    assert os.getpid() not in {process for _, process in results}
    assert not multiprocessing.active_children()


def test_an_error_of_a_call_is_raised_and_ends_the_processes() -> None:
    found: list[int] = []
    with pytest.raises(RetriableError, match=f"no {FAILING}"):
        found.extend(map_in_processes(square_or_fail, range(20)))
    assert found == [number * number for number in range(FAILING)]
    assert not multiprocessing.active_children()


def test_calls_of_a_process_that_died_are_made_here() -> None:
    items = [(number, os.getpid()) for number in range(DYING + 10)]
    assert list(map_in_processes(square_or_die, items)) == [number * number for number, _ in items]
