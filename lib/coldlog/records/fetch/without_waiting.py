"""Answer from memory only, for a caller that must not wait for a store: the event loop of `coldlog serve`.

In the block of `without_waiting`, what would read a table or a log raises `WouldWaitError`. The caller asks again in a
thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_here = threading.local()
"""`is_in_hurry`: this thread must not wait."""


class WouldWaitError(Exception):
    """A store must be asked, and this thread must not wait for it."""


@contextmanager
def without_waiting() -> Iterator[None]:
    """Let nothing in the block wait for a store in this thread."""
    _here.is_in_hurry = True
    try:
        yield
    finally:
        _here.is_in_hurry = False


def may_wait() -> bool:
    """Whether this thread may wait for a store."""
    return not getattr(_here, "is_in_hurry", False)


def check_may_wait() -> None:
    """Raise `WouldWaitError` if this thread must not wait."""
    if not may_wait():
        raise WouldWaitError
