"""Keep the read quota for the processes that are forked from one.

A forked process has a copy of its parent's pace, so that each would read at the whole quota. It may be killed at any
time, and delta-rs, which the shared quota needs, does not work in it if its parent has used delta-rs. So the parent
starts a Python of its own, the keeper, before it forks. The forked processes ask it before each read, and wait by
themselves. The keeper holds the allowance, so a process that is killed while it waits takes none with it. When all
other processes have ended, the keeper returns the rest and ends.

A question is a connection of its own, whose other end is sent to the keeper: `!qq`, bytes and longest wait in
milliseconds. The answer is `!qq`, one of `_ANSWERS` and milliseconds. A question for 0 bytes is answered with the
figures: `!qqqq`, bytes that were read, and count, sum and maximum of the times that reads were throttled.
"""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from coldlog.errors import ColdlogError, RetriableError
from coldlog.tiering.process_pace import ProcessPace, longest_wait_ms, too_late
from coldlog.tiering.rules.fetch_quota import Accepted, Throttled
from coldlog.tiering.rules.throttled_reads import ThrottledReads

_QUESTION, _ANSWER, _FIGURES = struct.Struct("!qq"), struct.Struct("!qq"), struct.Struct("!qqqq")
_ACCEPTED, _THROTTLED, _NO_ANSWER = _ANSWERS = range(3)
_PATIENCE_S = 5.0
_PROGRAM = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); pickle.load(sys.stdin.buffer)()"


class PaceKeeper:
    """A keeper, for this process and all that are forked from it later."""

    def __init__(self, open_pace: Callable[[], ProcessPace]) -> None:
        """Start the keeper. `open_pace` is pickled, and called there."""
        self._made_in = os.getpid()
        self._control, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                process_group=0,  # a terminal's SIGINT is for those who ask; they end, and so does the keeper
            )
            work = partial(_keep, open_pace, its.fileno())
            assert self._process.stdin is not None
            with suppress(BrokenPipeError), self._process.stdin as start:
                start.write(pickle.dumps(sys.path) + pickle.dumps(work))
        atexit.register(self.close)

    def wait_for(self, size_bytes: int, until_s: float | None = None) -> None:
        """As that of `ProcessPace`."""
        if not size_bytes:
            return
        longest_ms = longest_wait_ms(until_s, time.time_ns() // 1_000_000)
        while isinstance(answer := self._reserve(size_bytes, longest_ms), Throttled):
            if until_s is not None:
                raise too_late(answer)
            time.sleep(answer.throttle_ms / 1000)
        time.sleep(answer.wait_ms / 1000)

    def figures(self) -> tuple[int, ThrottledReads]:
        """Return how many bytes were read, and which reads were throttled."""
        read_bytes, count, total_ms, longest_ms = _FIGURES.unpack(self._ask(0, 0, _FIGURES.size))
        return read_bytes, ThrottledReads(count=count, total_ms=total_ms, longest_ms=longest_ms)

    def close(self) -> None:
        """Let the keeper end, in the process that made it; no other may ask any more."""
        if os.getpid() == self._made_in and self._control.fileno() >= 0:
            self._control.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE_S)
            self._process.kill()
            self._process.wait()

    def _reserve(self, size_bytes: int, longest_ms: int) -> Accepted | Throttled:
        kind, milliseconds = _ANSWER.unpack(self._ask(size_bytes, longest_ms, _ANSWER.size))
        if kind == _NO_ANSWER:
            raise RetriableError("the shared read quota does not answer; try again, and see the table tier_quotas")
        return Accepted(wait_ms=milliseconds) if kind == _ACCEPTED else Throttled(throttle_ms=milliseconds)

    def _ask(self, size_bytes: int, longest_ms: int, answer_bytes: int) -> bytes:
        ours, its = socket.socketpair()
        with ours, its:
            try:
                ours.sendall(_QUESTION.pack(size_bytes, longest_ms))
                socket.send_fds(self._control, [b"?"], [its.fileno()])
                its.close()
                answer = ours.recv(answer_bytes, socket.MSG_WAITALL)
            except OSError as ended:
                raise RetriableError("the process that keeps the read quota has ended; run again") from ended
        if len(answer) < answer_bytes:
            raise RetriableError("the process that keeps the read quota has ended; run again")
        return answer


def _keep(open_pace: Callable[[], ProcessPace], descriptor: int) -> None:
    """Answer questions until nobody is left who could ask."""
    control, pace = socket.socket(fileno=descriptor), open_pace()
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except OSError:
            break
        if not descriptors:
            break
        asker = socket.socket(fileno=descriptors[0])
        threading.Thread(target=_answer, args=(pace, asker), daemon=True).start()
    pace.close()
    os._exit(0)  # without those who still wait


def _answer(pace: ProcessPace, asker: socket.socket) -> None:
    with asker, suppress(OSError):  # it was killed
        size_bytes, longest_ms = _QUESTION.unpack(asker.recv(_QUESTION.size, socket.MSG_WAITALL))
        if not size_bytes:
            reads = pace.throttled
            asker.sendall(_FIGURES.pack(pace.read_bytes, reads.count, reads.total_ms, reads.longest_ms))
            return
        try:
            answer = pace.reserve(size_bytes, longest_ms)
        except ColdlogError:
            asker.sendall(_ANSWER.pack(_NO_ANSWER, 0))
            return
        if isinstance(answer, Accepted):
            asker.sendall(_ANSWER.pack(_ACCEPTED, answer.wait_ms))
        else:
            asker.sendall(_ANSWER.pack(_THROTTLED, answer.throttle_ms))
