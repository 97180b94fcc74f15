"""backoff: how long is the pause before something is tried again?

It doubles with each failure up to a bound and is lengthened or shortened at random, so that many that failed together
do not come back together: Kafka's ExponentialBackoff with the defaults of its clients (retry.backoff.ms 100,
retry.backoff.max.ms 1000, jitter 0.2).
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses from `first_ms` to `most_ms`, give or take the share `jitter`."""

    first_ms: int = 100
    most_ms: int = 1000
    jitter: float = 0.2

    def pause_ms(self, failures: int, chance: float) -> int:
        """Behind the failure of that number, from 1; `chance` is in [0, 1). 1 at least."""
        whole = min(self.most_ms, self.first_ms << min(failures - 1, _MOST_DOUBLINGS))
        return max(1, round(whole * (1 + self.jitter * (2 * chance - 1))))
