"""Pace bytes at a constant rate that never forgets what it let through.

Bytes that were let through are paid off at the rate; idle time is not saved up. A caller that lets bytes through only
when `throttle_ms` is 0 lets through, in any period, at most what the rate allows plus the last piece, because each
piece waits until those before it are paid.

All counts are integers (milliseconds times bytes per second), so that nothing is lost to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Pacer:
    """Bytes at a rate. All times must be of one clock that never goes back."""

    bytes_per_second: int
    _paid_at: int = 0

    def add(self, size_bytes: int, now_ms: int) -> None:
        """Let that many bytes through, whatever is still to be paid."""
        self._paid_at = max(self._paid_at, now_ms * self.bytes_per_second) + size_bytes * 1000

    def give_back(self, size_bytes: int) -> None:
        """Take back bytes that were let through but not used."""
        self._paid_at -= size_bytes * 1000

    def paid_at_ms(self) -> int:
        """Return the time at which everything is paid, rounded up."""
        return -(-self._paid_at // self.bytes_per_second)

    def throttle_ms(self, now_ms: int) -> int:
        """Return how long it takes until everything is paid, rounded up."""
        return max(0, self.paid_at_ms() - now_ms)
