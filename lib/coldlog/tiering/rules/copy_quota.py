"""copy_quota: when may the next segment be copied?

The write quota of one broker (KIP-956, RLMQuotaManager), shared by all threads that copy for it. It is checked before
each segment, and the whole segment is recorded with the copy: a copy is never interrupted, so one segment may exceed
the quota, and the ones behind it wait until the rate has come down.

Two rates must agree: Kafka's windowed one, and one that does not forget (`pacer`). Kafka's window is 11 s, and a
segment that takes longer than this at the quota falls out of it before it is paid for: 1 GiB segments at 10 MB/s are
copied at 98 MB/s by the window alone. With both, what is copied in any time at all is within the quota and one segment.

Over the quota a task waits, at most a second at a time as in Kafka, first come, first served. One that `may_wait` not
(fairness) gets no for an answer instead, also while others wait, and is to give its place up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.pacer import Pacer
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.windowed_rate import WindowedRate

_LONGEST_WAIT_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleReport:
    """How often a segment had to wait or gave up, how long all waited together, and the longest time told to one."""

    waited_count: int = 0
    gave_up_count: int = 0
    waited_ms: int = 0
    longest_throttle_ms: int = 0


class SharedAllowance(Protocol):
    """What processes that copy for the same broker have in common."""

    def take(self, size_bytes: int) -> int:
        """Takes a segment of that size and returns 0; or returns for how many milliseconds it may not be taken yet."""


class CopyQuota:
    """One broker's; for all threads of a process, and with `shared` for all that share it."""

    def __init__(self, config: QuotaConfig, clock: Clock, shared: SharedAllowance | None = None) -> None:
        self._config = config
        self._clock = clock
        self._shared = shared
        self._rate = WindowedRate(sample_count=config.window_count, sample_ms=config.window_ms)
        self._pacer = Pacer(bytes_per_second=config.bytes_per_second)
        self._lock = threading.Condition()
        self._next_ticket, self._served_ticket = 0, 0
        self._report = ThrottleReport()

    def take(self, size_bytes: int, *, may_wait: bool = True, is_stopping: Callable[[], bool] = lambda: False) -> bool:
        """Records a segment of that size once the rate allows it, and returns True; False: it may not be copied now, or
        the run `is_stopping`."""
        if not may_wait:
            return self._take_now(size_bytes)
        with self._turn():
            throttle_ms = self._try(size_bytes)
            if throttle_ms:
                self._note(waited_count=1)
            while throttle_ms:
                if is_stopping():
                    return False
                begin_ms = self._clock.monotonic_ms()
                self._clock.wait_ms(min(throttle_ms, _LONGEST_WAIT_MS))
                self._note(waited_ms=self._clock.monotonic_ms() - begin_ms)
                throttle_ms = self._try(size_bytes)
        return True

    def has_room(self) -> bool:
        """Whether one that may not wait would be allowed now, as far as this process knows; a no counts as given up."""
        with self._lock:
            if self._next_ticket == self._served_ticket and not self._throttle_ms(self._clock.monotonic_ms()):
                return True
        self._note(gave_up_count=1)
        return False

    def throttle_ms(self) -> int:
        """How long the next segment would have to wait; 0: it may be copied."""
        with self._lock:
            return self._throttle_ms(self._clock.monotonic_ms())

    def report(self) -> ThrottleReport:
        """What happened so far."""
        with self._lock:
            return self._report

    def _take_now(self, size_bytes: int) -> bool:
        with self._lock:
            if self._next_ticket == self._served_ticket and not self._try(size_bytes):
                return True
        self._note(gave_up_count=1)
        return False

    def _try(self, size_bytes: int) -> int:
        """Records it and returns 0, or returns how long it has to wait."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            throttle_ms = self._throttle_ms(now_ms)
            if not throttle_ms and self._shared is not None and not self._config.is_unlimited:
                throttle_ms = self._shared.take(size_bytes)
            if throttle_ms:
                self._note(throttle_ms=throttle_ms)
            else:
                self._rate.record(size_bytes, now_ms)
                self._pacer.add(size_bytes, now_ms)
            return throttle_ms

    def _throttle_ms(self, now_ms: int) -> int:
        if self._config.is_unlimited:
            return 0
        windowed_ms = self._rate.throttle_ms(self._config.bytes_per_second, now_ms)
        return max(windowed_ms, self._pacer.throttle_ms(now_ms))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One at a time, in the order in which they came."""
        with self._lock:
            ticket = self._next_ticket
            self._next_ticket += 1
            self._lock.wait_for(lambda: self._served_ticket == ticket)
        try:
            yield
        finally:
            with self._lock:
                self._served_ticket += 1
                self._lock.notify_all()

    def _note(self, *, waited_count: int = 0, gave_up_count: int = 0, waited_ms: int = 0, throttle_ms: int = 0) -> None:
        with self._lock:
            self._report = replace(
                self._report,
                waited_count=self._report.waited_count + waited_count,
                gave_up_count=self._report.gave_up_count + gave_up_count,
                waited_ms=self._report.waited_ms + waited_ms,
                longest_throttle_ms=max(self._report.longest_throttle_ms, throttle_ms),
            )
