"""Compute the pause before an attempt is repeated.

The pause doubles with each failure up to a maximum, and is varied at random, so that many attempts that failed together
are not repeated together. This is Kafka's ExponentialBackoff with the defaults of its clients (retry.backoff.ms 100,
retry.backoff.max.ms 1000, jitter 0.2).
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses from `first_ms` to `most_ms`, varied by up to the share `jitter`."""

    first_ms: int = 100
    most_ms: int = 1000
    jitter: float = 0.2

    def pause_ms(self, failures: int, chance: float) -> int:
        """Return the pause after failure number `failures`, counted from 1; at least 1. `chance` is in [0, 1)."""
        whole = min(self.most_ms, self.first_ms << min(failures - 1, _MOST_DOUBLINGS))
        return max(1, round(whole * (1 + self.jitter * (2 * chance - 1))))
