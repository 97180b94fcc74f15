"""pacer: since when has all that was let through been paid for?

Whatever was let through is paid off at the rate, and nothing is saved up while nothing is asked. Who lets something
through only when `throttle_ms` is 0 lets through, in any time at all, no more than the rate allows for it, and the last
one beside it: each one waits for as long as those before it took to be paid.

Counted in whole numbers (milliseconds times bytes a second), so that nothing is lost to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Pacer:
    """Bytes at a rate. Times are of one clock that never goes back."""

    bytes_per_second: int
    _paid_at: int = 0

    def add(self, size_bytes: int, now_ms: int) -> None:
        """Lets that much through, whatever is owed."""
        self._paid_at = max(self._paid_at, now_ms * self.bytes_per_second) + size_bytes * 1000

    def give_back(self, size_bytes: int) -> None:
        """Of what was let through, so much was not used after all."""
        self._paid_at -= size_bytes * 1000

    def throttle_ms(self, now_ms: int) -> int:
        """For how long something is owed, rounded up."""
        owed = self._paid_at - now_ms * self.bytes_per_second
        return max(0, -(-owed // self.bytes_per_second))
