"""Refuse the use of open tables after they were closed, or in a process that was forked since they were opened.

A forked process shares the positions of open files with its parent, has none of its threads, and its locks may be held
for ever; delta-rs, which opens tables, panics there. A forked process may open tables of its own if its parent opened
none before the fork. Processes that were started with `spawn` or `forkserver` always may.
"""

from __future__ import annotations

import os
from functools import cache

from coldlog.errors import UsageError

_FORKED = "in a process that was forked from it; start processes with spawn or forkserver, and open the tables there"


class OpenedHere:
    """The state of what is open; `name` says what it is, for errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = os.getpid()
        self._is_closed = False

    def check(self) -> None:
        """Raise `UsageError` if it is closed, or was opened in another process."""
        if os.getpid() != self._process:
            raise UsageError(f"{self._name} was opened in process {self._process} and cannot be used {_FORKED}")
        if self._is_closed:
            raise UsageError(f"{self._name} is closed; open it again")

    def close(self) -> None:
        """Refuse further use. In a forked process do nothing: files and threads belong to the parent."""
        self._is_closed = True

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked since the opening."""
        return os.getpid() != self._process


@cache
def _delta_rs() -> OpenedHere:
    return OpenedHere("a table")


def check_delta_rs() -> None:
    """Raise `UsageError` if delta-rs was used before this process was forked; it would panic."""
    _delta_rs().check()
