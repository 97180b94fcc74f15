"""clock: what time is it, and how does one wait?

The tier takes its time from whoever calls it, so that a test is over in no time and a rule can be held to any moment.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time of one process; for all of its threads."""

    def now_ms(self) -> int:
        """Epoch milliseconds, as events and retention mean them; may be set back."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never goes back."""

    def wait_ms(self, duration_ms: int) -> None:
        """Returns after that long, or later."""
