"""Measure the recent bytes per second as Kafka's quotas do.

This is Kafka's SimpleRate over a sampled sum (org.apache.kafka.common.metrics.stats: SimpleRate, SampledStat; KIP-956).
A record is added to the current sample. If that one began `sample_ms` ago or earlier, the next of `sample_count + 1`
samples is emptied and becomes the current one. A sample whose last record is `sample_count * sample_ms` old is emptied
when the rate is observed. An emptied sample begins at that moment, and stays: it can be the oldest later. The rate is
the sum of all samples over the time since the oldest began, at least one `sample_ms`.

A window forgets. A record that takes longer than the window at the rate (a segment of 1 GiB takes 107 s at 10 MB/s, the
window is 11 s) stops others only for the length of the window; `pacer` does not forget.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Sample:
    start_ms: int
    last_record_ms: int
    size_bytes: int = 0

    def empty(self, now_ms: int) -> None:
        """Begin again."""
        self.start_ms, self.last_record_ms, self.size_bytes = now_ms, now_ms, 0


@dataclass(slots=True, kw_only=True)
class WindowedRate:
    """Bytes over a moving window. All times must be of one clock that never goes back."""

    sample_count: int
    sample_ms: int
    _samples: list[_Sample] = field(default_factory=list)
    _current: int = 0

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Record that so many bytes were copied or read now."""
        if not self._samples:
            self._samples.append(_Sample(start_ms=now_ms, last_record_ms=now_ms))
        elif now_ms - self._samples[self._current].start_ms >= self.sample_ms:
            self._current = (self._current + 1) % (self.sample_count + 1)
            if self._current == len(self._samples):
                self._samples.append(_Sample(start_ms=now_ms, last_record_ms=now_ms))
            self._samples[self._current].empty(now_ms)
        current = self._samples[self._current]
        current.size_bytes += size_bytes
        current.last_record_ms = now_ms

    def observe(self, now_ms: int) -> tuple[int, int]:
        """Return the bytes that count now, and over how many milliseconds they are spread."""
        expired_ms = now_ms - self.sample_count * self.sample_ms
        for sample in self._samples:
            if sample.last_record_ms <= expired_ms:
                sample.empty(now_ms)
        if not self._samples:
            self._samples.append(_Sample(start_ms=now_ms, last_record_ms=now_ms))
        size_bytes = sum(each.size_bytes for each in self._samples)
        return size_bytes, max(now_ms - min(each.start_ms for each in self._samples), self.sample_ms)

    def throttle_ms(self, bytes_per_second: int, now_ms: int) -> int:
        """Return how long nothing may be recorded until the rate is within the bound: (rate - bound) / bound x the
        time over which the rate is measured. Rounded up; Kafka rounds to the nearest."""
        size_bytes, window_ms = self.observe(now_ms)
        excess = size_bytes * 1000 - bytes_per_second * window_ms
        return max(0, -(-excess // bytes_per_second))
