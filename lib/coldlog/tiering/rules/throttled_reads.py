"""Count the reads that a quota throttled: how many, and for how long.

Kafka's `remote-fetch-throttle-time` (KIP-956) is the average and the maximum of these times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ThrottledReads:
    """The reads that waited for a quota, or were told to ask again later."""

    count: int = 0
    total_ms: int = 0
    longest_ms: int = 0

    def add(self, throttle_ms: int) -> None:
        """Count one read, unless it was not throttled."""
        if throttle_ms > 0:
            self.count += 1
            self.total_ms += throttle_ms
            self.longest_ms = max(self.longest_ms, throttle_ms)

    def add_all(self, others: ThrottledReads) -> None:
        """Count the reads of somebody else too."""
        self.count += others.count
        self.total_ms += others.total_ms
        self.longest_ms = max(self.longest_ms, others.longest_ms)
