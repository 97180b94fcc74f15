"""Define the clock that the tier uses.

The caller passes the clock. So a test does not have to wait, and can set any time.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The time of one process; its threads share it."""

    def now_ms(self) -> int:
        """Return epoch milliseconds, as events and retention use them. The clock may be set back."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since some moment. Never goes back."""

    def wait_ms(self, duration_ms: int) -> None:
        """Wait at least that long."""
