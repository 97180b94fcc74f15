"""Decide when the next segment may be copied.

This is the write quota of one broker (KIP-956, RLMQuotaManager). All threads that copy for the broker share it. It is
checked before each segment, and then the whole segment is recorded. A copy is never interrupted, so one segment may
exceed the quota, and the segments after it wait until the rate has dropped.

Two rates must both allow the copy: Kafka's windowed rate, and one that does not forget (`pacer`). Kafka's window is
11 s. A segment that takes longer than that at the quota drops out of the window too early: with the window alone, 1 GiB
segments at 10 MB/s are copied at 98 MB/s. With both, at most the quota plus one segment is copied in any period.

Over the quota a task waits, at most one second at a time as in Kafka, in the order of arrival. A task with `may_wait`
False (fairness) is refused instead, also while others wait, and should give up its place.
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
    """How many segments waited or gave up, the sum of all waits, and the longest throttle time of one segment."""

    waited_count: int = 0
    gave_up_count: int = 0
    waited_ms: int = 0
    longest_throttle_ms: int = 0


class SharedAllowance(Protocol):
    """The quota that several processes share when they copy for the same broker."""

    def take(self, size_bytes: int) -> int:
        """Take a segment of that size and return 0, or return how many milliseconds to wait before the next try."""


class CopyQuota:
    """The copy quota of one broker. Threads share it; with `shared` other processes too."""

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
        """Record a segment of that size as soon as the rate allows it, and return True. Return False if it may not be
        copied now or the run `is_stopping`."""
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
        """True if a segment that may not wait would be allowed now, as far as this process knows. False counts as given
        up."""
        with self._lock:
            if self._next_ticket == self._served_ticket and not self._throttle_ms(self._clock.monotonic_ms()):
                return True
        self._note(gave_up_count=1)
        return False

    def throttle_ms(self) -> int:
        """Return how long the next segment would have to wait; 0: it may be copied."""
        with self._lock:
            return self._throttle_ms(self._clock.monotonic_ms())

    def report(self) -> ThrottleReport:
        """Return the figures so far."""
        with self._lock:
            return self._report

    def _take_now(self, size_bytes: int) -> bool:
        with self._lock:
            if self._next_ticket == self._served_ticket and not self._try(size_bytes):
                return True
        self._note(gave_up_count=1)
        return False

    def _try(self, size_bytes: int) -> int:
        """Record the segment and return 0, or return how long it has to wait."""
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
        """Admit one caller at a time, in the order of arrival."""
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
