"""Stop a job on SIGTERM as on Ctrl-C.

A user stops a job with Ctrl-C (SIGINT), a scheduler with SIGTERM: systemd, Kubernetes, Airflow, `timeout`. Both raise
`StoppedBySignal` in the main thread. It is a KeyboardInterrupt, so the job records the end of its run and releases its
lock. The exit code is the one that a shell gives to that signal: 128 and its number.

A signal that was ignored when the process started stays ignored (a shell's background job). One that is repeated within
a second is ignored too: `timeout` sends SIGTERM to the job and again to its process group. A later one interrupts
whatever the job still does.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REPEATED_S = 1.0
_BEFORE_STOP_S = 5.0


class StoppedBySignal(KeyboardInterrupt):
    """A signal stops this job."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@dataclass(slots=True)
class StopSignals:
    """What SIGINT and SIGTERM do to this job; `stopped` is None until the first of them arrives."""

    stopped: StoppedBySignal | None = None
    clock: Callable[[], float] = time.monotonic
    _ignored: frozenset[int] = frozenset()
    _stopped_s: float = -math.inf
    _before_stop: Callable[[], None] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Raise `StoppedBySignal` in the block when a signal arrives; must be called in the main thread."""
        previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        self._ignored = frozenset(number for number, handler in previous.items() if handler is signal.SIG_IGN)
        self._listen()
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def calling_before(self, call: Callable[[], None]) -> Iterator[None]:
        """Make the call before a stop is raised in the block. It is made in a thread of its own, which may use py4j:
        the connection of the main thread may be waiting for an answer."""
        # pyspark has installed a handler of its own for SIGINT.
        self._listen()
        self._before_stop = call
        try:
            yield
        finally:
            self._before_stop = None

    def interrupted(self) -> StoppedBySignal:
        """Return the stop for a KeyboardInterrupt that another handler of SIGINT raised: pyspark's, until the block of
        `calling_before` begins."""
        self.stopped = self.stopped or StoppedBySignal(signal.SIGINT)
        return self.stopped

    def _listen(self) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in self._ignored else self._stop)

    def _stop(self, number: int, _frame: object) -> None:
        now_s = self.clock()
        if now_s - self._stopped_s < _REPEATED_S:
            return
        self._stopped_s = now_s
        stopped = StoppedBySignal(number)
        self.stopped = self.stopped or stopped
        if self._before_stop is not None:
            thread = threading.Thread(target=self._before_stop, name="coldlog-stop", daemon=True)
            thread.start()
            thread.join(_BEFORE_STOP_S)
        raise stopped
