"""Hold the quota of one broker's copies or reads.

The values are Kafka's `remote.log.manager.copy.max.bytes.per.second` (or `fetch`), `quota.window.num` and
`quota.window.size.seconds` (RemoteLogManagerConfig).
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.errors import UsageError

NO_QUOTA = 2**63 - 1
"""Kafka's default: no rate reaches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig:
    """A rate, and the window over which it is measured."""

    bytes_per_second: int = NO_QUOTA
    window_count: int = 11
    window_ms: int = 1000

    def __post_init__(self) -> None:
        if min(self.bytes_per_second, self.window_count, self.window_ms) < 1:
            raise UsageError(f"a quota and its windows must be positive: {self}")

    @property
    def is_unlimited(self) -> bool:
        """True if nothing has to wait."""
        return self.bytes_per_second >= NO_QUOTA
