"""Calls that a process of `multiprocessing` can make: it finds them by the name of their module."""

from __future__ import annotations

import os

from coldlog.errors import RetriableError

FAILING, DYING = 5, 7


def square(number: int) -> tuple[int, int]:
    """Return the square and the process that computed it."""
    return number * number, os.getpid()


def square_or_fail(number: int) -> int:
    """Return the square; `FAILING` is an error."""
    if number == FAILING:
        raise RetriableError(f"no {number}")
    return number * number


def square_or_die(item: tuple[int, int]) -> int:
    """Return the square of the first number; at `DYING` a process dies that is not the second number."""
    number, here = item
    if number == DYING and os.getpid() != here:
        os._exit(1)
    return number * number
