"""Keep the read quota of this process: `remote.log.manager.fetch.max.bytes.per.second` of KIP-956.

As in a broker, a read passes if the rate of those before it is within the quota, and is charged whole. Those that come
too soon after it are throttled: they get no records, and the answer says how long the client should wait.
"""

from __future__ import annotations

import threading

from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.windowed_rate import WindowedRate


class ReadQuota:
    """The quota. Threads share it."""

    def __init__(self, config: QuotaConfig, clock: Clock) -> None:
        self._clock = clock
        self._turn = threading.Lock()
        self.set(config)

    def set(self, config: QuotaConfig) -> None:
        """Go on with another quota. What was read before does not count."""
        with self._turn:
            self._bytes_per_second = config.bytes_per_second
            self._rate = WindowedRate(sample_count=config.window_count, sample_ms=config.window_ms)

    def charge(self, size_bytes: int) -> int:
        """Charge a read, and return 0; or return for how many milliseconds nothing may be read."""
        with self._turn:
            now_ms = self._clock.monotonic_ms()
            throttle_ms = self._rate.throttle_ms(self._bytes_per_second, now_ms)
            if throttle_ms == 0:
                self._rate.record(size_bytes, now_ms)
            return throttle_ms
