"""End the process of an endpoint in time, whatever hangs in it.

A thread that waits for a store cannot be stopped. Closing what it uses waits for it, and so does Python's own end, if
the thread is an executor's. That end also takes half a second of a processor, which is many seconds on a busy machine,
and crashed once after a long run. So an endpoint that has drained leaves with `os._exit`, and the system closes what is
open.

If even that is not reached in time, which is an error of coldlog, the stacks of all threads are written and the process
ends with code 1. No lock and no Python code is needed for that.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from coldlog.errors import ColdlogError

_EXIT_S = 5.0
_CLOSE_S = 2.0


def limit_end(drain_seconds: float) -> None:
    """Let the process end a few seconds after this time, if it has not ended by then."""
    faulthandler.dump_traceback_later(drain_seconds + _EXIT_S, exit=True)


def close_in_time(close: Callable[[], None]) -> None:
    """Make a call that may wait for a store, and wait at most two seconds for it. Its failure changes nothing."""

    def try_to_close() -> None:
        with suppress(ColdlogError):
            close()

    closing = threading.Thread(target=try_to_close, name="close", daemon=True)
    closing.start()
    closing.join(_CLOSE_S)


def leave(code: int) -> NoReturn:
    """End the process now."""
    with suppress(OSError):  # Nobody reads it any more.
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
