"""Notice that a client goes while its request waits: for other members of its group, or for news.

The wait ends then, and with it the connection. All else that was asked is done to its end: a client may commit and go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Presence:
    """Whether the client of one connection is there."""

    def __init__(self) -> None:
        self._has_gone = False
        self._waiting: asyncio.Task[object] | None = None

    def end(self) -> None:
        """The client has gone: cancel the task of the connection if it waits."""
        self._has_gone = True
        if self._waiting is not None:
            self._waiting.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait only as long as the client is there. Raise `ConnectionResetError` if it has gone already."""
        if self._has_gone:
            raise ConnectionResetError("the client has gone")
        self._waiting = asyncio.current_task()
        try:
            yield
        finally:
            self._waiting = None
