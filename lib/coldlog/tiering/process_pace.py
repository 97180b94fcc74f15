"""Let the reads of one process wait for the read quota.

Reads are paid off at the quota, one after another (`rules.pacer`), so in any period the process reads at most the quota
plus one read. With `shared`, the process takes a second's worth of bytes at a time from the quota that all processes
keep together (`rules.read_allowances`). A read whose turn would come after its deadline is refused and costs nothing.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from coldlog.errors import AnsweredTooLateError, ColdlogError
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.fetch_quota import Accepted, SharedReads, Throttled
from coldlog.tiering.rules.pacer import Pacer
from coldlog.tiering.rules.throttled_reads import ThrottledReads

LONGEST_WAIT_MS = 2**40


class ProcessPace:
    """The pace of one process; its threads share it."""

    def __init__(self, bytes_per_second: int, clock: Clock, shared: SharedReads | None = None) -> None:
        self._clock = clock
        self._shared = shared
        self._pacer = Pacer(bytes_per_second=bytes_per_second)
        self._lock = threading.Lock()
        self.throttled = ThrottledReads()
        """The reads that waited, or were refused."""
        self.read_bytes = 0
        """The bytes of the reads that were not refused."""

    def wait_for(self, size_bytes: int, until_s: float | None = None) -> None:
        """Return when so many bytes may be read. Raise `RetriableError` if the shared quota does not answer,
        `AnsweredTooLateError` if that is later than `until_s`, in seconds of time.time()."""
        if size_bytes and (wait_ms := self._turn(size_bytes, until_s)):
            self._clock.wait_ms(wait_ms)

    def reserve(self, size_bytes: int, longest_wait_ms: int) -> Accepted | Throttled:
        """Reserve bytes for a read that waits at most so long for its turn."""
        if self._shared is not None:
            answer = self._shared.reserve(size_bytes, longest_wait_ms)
        else:
            answer = self._reserve(size_bytes, longest_wait_ms)
        with self._lock:
            if isinstance(answer, Accepted):
                self.read_bytes += size_bytes
                self.throttled.add(answer.wait_ms)
            else:
                self.throttled.add(answer.throttle_ms)
        return answer

    def close(self) -> None:
        """Return what was reserved and not used, unless the shared quota does not answer."""
        if self._shared is not None:
            with suppress(ColdlogError):
                self._shared.close()

    def _turn(self, size_bytes: int, until_s: float | None) -> int:
        longest_ms = longest_wait_ms(until_s, self._clock.now_ms())
        while isinstance(answer := self.reserve(size_bytes, longest_ms), Throttled):
            if until_s is not None:
                raise too_late(answer)
            self._clock.wait_ms(answer.throttle_ms)
        return answer.wait_ms

    def _reserve(self, size_bytes: int, longest_wait_ms: int) -> Accepted | Throttled:
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            wait_ms = self._pacer.throttle_ms(now_ms)
            if wait_ms > longest_wait_ms:
                return Throttled(throttle_ms=wait_ms)
            self._pacer.add(size_bytes, now_ms)
            return Accepted(wait_ms=wait_ms)


def longest_wait_ms(until_s: float | None, now_ms: int) -> int:
    """Return the time until a deadline; without one, more than any read waits."""
    return LONGEST_WAIT_MS if until_s is None else max(0, int(until_s * 1000) - now_ms)


def too_late(refused: Throttled) -> AnsweredTooLateError:
    """Return the error of a read whose turn would come after its deadline."""
    return AnsweredTooLateError(
        f"the read quota (remote.log.manager.fetch.max.bytes.per.second) is used up for {refused.throttle_ms} ms, "
        "longer than the time that is left"
    )
