"""Keep the read quota for the processes that are forked from one.

A forked process has a copy of its parent's pace, so that each would read at the whole quota. It may be killed at any
time, and delta-rs, which the shared quota needs, does not work in it if its parent has used delta-rs. So the parent
forks one more process before all others, the keeper. The others ask it before each read, and wait by themselves. What
is killed while it waits keeps nothing: the keeper has the allowance. It returns what is left of it when all others have
ended, and ends.

A question is a connection of its own, whose other end is sent to the keeper: `!qq`, bytes and longest wait in
milliseconds. The answer is `!qq`, one of `_ANSWERS` and milliseconds. A question for 0 bytes is answered with the
figures: `!qqqq`, bytes that were read, and count, sum and maximum of the times that reads were throttled.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from coldlog.errors import ColdlogError, RetriableError
from coldlog.tiering.process_pace import ProcessPace, longest_wait_ms, too_late
from coldlog.tiering.rules.fetch_quota import Accepted, Throttled
from coldlog.tiering.rules.throttled_reads import ThrottledReads

_fork = multiprocessing.get_context("fork")
_QUESTION, _ANSWER, _FIGURES = struct.Struct("!qq"), struct.Struct("!qq"), struct.Struct("!qqqq")
_ACCEPTED, _THROTTLED, _NO_ANSWER = _ANSWERS = range(3)
_PATIENCE_S = 5.0


class PaceKeeper:
    """A keeper, for this process and all that are forked from it later."""

    def __init__(self, open_pace: Callable[[], ProcessPace]) -> None:
        """Fork the keeper. `open_pace` is called there."""
        self._made_in = os.getpid()
        self._control, its = socket.socketpair()
        self._process = _fork.Process(target=_keep, args=(open_pace, its, self._control), name="coldlog-read-quota")
        self._process.start()
        its.close()
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
            self._process.join(_PATIENCE_S)
            self._process.kill()

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


def _keep(open_pace: Callable[[], ProcessPace], control: socket.socket, not_ours: socket.socket) -> None:
    """Answer questions until nobody is left who could ask."""
    not_ours.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; those who ask end, and so does this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pace = open_pace()
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
    os._exit(0)


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
