"""Keep the read quota of this process: `remote.log.manager.fetch.max.bytes.per.second` of KIP-956.

As in a broker, a fetch passes if the rate of those before it is within the quota, and is charged whole. Those that come
too soon after it are throttled: they get no records, and the answer says how long the client should wait. With
`fetch.share_quota` a fetch passes if the quota that all processes keep together allows it; the allowance of the time
that the client is told is reserved. A lookup that reads the archive waits for the same quota, as long
as somebody waits for its answer.
"""

from __future__ import annotations

import threading

from coldlog.serve.threads import check_wanted
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.read_allowances import ReadAllowances
from coldlog.tiering.rules.windowed_rate import WindowedRate

_LONGEST_RESERVED_MS = 3_600_000
"""Readers that always wait keep the end of the order as far away as they are many: without a turn in it, the endpoint
would read nothing beside them. If nobody comes for it, its bytes return."""
_LONGEST_PAUSE_MS = 100
_LONGEST_TOLD_MS = (1 << 31) - 1
"""An answer has no room for more."""


class ReadQuota:
    """The quota. Threads share it."""

    def __init__(self, config: QuotaConfig, clock: Clock, shared: ReadAllowances | None = None) -> None:
        self._clock = clock
        self._turn = threading.Lock()
        self.set(config, shared)

    def set(self, config: QuotaConfig, shared: ReadAllowances | None = None) -> None:
        """Go on with another quota. What was read before does not count; what is reserved with others passes unused."""
        with self._turn:
            self._bytes_per_second = config.bytes_per_second
            self._rate = WindowedRate(sample_count=config.window_count, sample_ms=config.window_ms)
            self._shared = shared
            self._is_unlimited = shared is None and config.is_unlimited

    @property
    def is_unlimited(self) -> bool:
        """Whether every read may be made now."""
        return self._is_unlimited

    def charge(self, size_bytes: int) -> int:
        """Charge a read, and return 0; or return for how many milliseconds it may not be made. Raise `RetriableError`
        if the quota is shared and does not answer."""
        if self._is_unlimited:
            return 0
        if self._shared is not None:
            return min(self._shared.charge(size_bytes, _LONGEST_RESERVED_MS), _LONGEST_TOLD_MS)
        with self._turn:
            now_ms = self._clock.monotonic_ms()
            throttle_ms = self._rate.throttle_ms(self._bytes_per_second, now_ms)
            if throttle_ms == 0:
                self._rate.record(size_bytes, now_ms)
            return min(throttle_ms, _LONGEST_TOLD_MS)

    def charge_now(self, size_bytes: int) -> bool:
        """Charge a read that nobody waits for, if it may be made now; nothing is reserved for later. Raise as `charge`
        does."""
        if self._shared is not None:
            return self._shared.charge(size_bytes, 0) == 0
        return self.charge(size_bytes) == 0

    def wait_for(self, size_bytes: int, until_s: float | None = None) -> None:
        """Return when a lookup may read so many bytes. Raise `TimeoutError` when nobody waits for its answer any more:
        the endpoint keeps its deadline, and not `until_s`."""
        while size_bytes and (throttle_ms := self.charge(size_bytes)):
            check_wanted()
            self._clock.wait_ms(min(throttle_ms, _LONGEST_PAUSE_MS))

    def close(self) -> None:
        """Return what was reserved with others and not used."""
        if self._shared is not None:
            self._shared.close()
