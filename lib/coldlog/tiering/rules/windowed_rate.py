"""Measure the recent bytes per second as Kafka's quotas do.

This is Kafka's SimpleRate over a sampled sum (org.apache.kafka.common.metrics.stats: SimpleRate, SampledStat; KIP-956).
A record is added to the newest sample, or to a new one if the newest has lasted for `sample_ms`. A sample counts until
its last record is `sample_count * sample_ms` old. There is one more sample than `sample_count`, for the one that
overlaps. The rate is the sum of all samples over the time since the oldest began, at least one `sample_ms`.

A window forgets. A record that takes longer than the window at the rate (a segment of 1 GiB takes 107 s at 10 MB/s, the
window is 11 s) stops others only for the length of the window; `pacer` does not forget.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Sample:
    start_ms: int
    last_record_ms: int
    size_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class WindowedRate:
    """Bytes over a moving window. All times must be of one clock that never goes back."""

    sample_count: int
    sample_ms: int
    _samples: deque[_Sample] = field(default_factory=deque)

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Record that so many bytes were copied or read now."""
        newest = self._samples[-1] if self._samples else None
        if newest is None or now_ms - newest.start_ms >= self.sample_ms:
            newest = _Sample(start_ms=now_ms, last_record_ms=now_ms)
            self._samples.append(newest)
            if len(self._samples) > self.sample_count + 1:
                self._samples.popleft()
        newest.size_bytes += size_bytes
        newest.last_record_ms = now_ms

    def observe(self, now_ms: int) -> tuple[int, int]:
        """Return the bytes that count now, and over how many milliseconds they are spread."""
        expired_ms = now_ms - self.sample_count * self.sample_ms
        while self._samples and self._samples[0].last_record_ms <= expired_ms:
            self._samples.popleft()
        if not self._samples:
            # Kafka resets an expired sample, and creates the first one when the rate is measured.
            self._samples.append(_Sample(start_ms=now_ms, last_record_ms=now_ms))
        size_bytes = sum(each.size_bytes for each in self._samples)
        return size_bytes, max(now_ms - self._samples[0].start_ms, self.sample_ms)

    def throttle_ms(self, bytes_per_second: int, now_ms: int) -> int:
        """Return how long nothing may be recorded until the rate is within the bound: (rate - bound) / bound x the
        time over which the rate is measured. Rounded up; Kafka rounds to the nearest."""
        size_bytes, window_ms = self.observe(now_ms)
        excess = size_bytes * 1000 - bytes_per_second * window_ms
        return max(0, -(-excess // bytes_per_second))
