"""shared_quota: how do several processes keep one broker's write quota?

Whoever takes a segment moves a time on that is kept in the table `tier_quotas`, by compare and set: by as long as the
segment takes at the quota. Nobody takes one before that time. So all of them together copy, in any time at all, no more
than the quota and one segment, as long as their clocks agree; clocks that differ by a second let a second's bytes more
through. What was taken is also owed by the next run. Nobody owes longer than the largest segment takes: where a time
lies farther off, the clock of whoever wrote it was ahead, and the others wait for that long and no longer.

A table that does not answer lets nobody take anything (`RetriableError`).
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.tables.definitions.tier_quotas import TIER_QUOTAS
from coldlog.tables.delta.small_table import Row, SmallTable
from coldlog.tiering.rules.clock import Clock

_US_A_SECOND = 1_000_000
_LARGEST_SEGMENT_BYTES = 2**31
"""Kafka's segment.bytes is a 32-bit number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedQuota:
    """The quota of one broker, below the warehouse at `uri`; for all threads."""

    table: SmallTable
    broker_id: int
    bytes_per_second: int
    clock: Clock

    @staticmethod
    def below(uri: str, broker_id: int, bytes_per_second: int, clock: Clock) -> SharedQuota:
        """Of a warehouse."""
        table = SmallTable(uri=uri, table=TIER_QUOTAS)
        return SharedQuota(table=table, broker_id=broker_id, bytes_per_second=bytes_per_second, clock=clock)

    def take(self, size_bytes: int) -> int:
        """Takes a segment of that size and returns 0; or returns for how many milliseconds it may not be taken yet."""
        owed_us = 0

        def change(rows: list[Row]) -> list[Row]:
            nonlocal owed_us
            now_us = self.clock.now_ms() * 1_000
            own = [row for row in rows if row["broker_id"] == self.broker_id]
            paid_until_us, taken = (int(str(own[0][name])) for name in _NUMBERS) if own else (0, 0)
            longest_us = self._spent_us(_LARGEST_SEGMENT_BYTES)
            owed_us = min(max(0, paid_until_us - now_us), longest_us)
            if owed_us and paid_until_us <= now_us + longest_us:
                return rows
            paid_until_us = now_us + (owed_us or self._spent_us(size_bytes))
            row = (self.broker_id, paid_until_us, taken if owed_us else taken + size_bytes)
            return [
                *(row for row in rows if row["broker_id"] != self.broker_id),
                dict(zip(("broker_id", *_NUMBERS), row, strict=True)),
            ]

        self.table.change(change)
        return -(-owed_us // 1_000)

    def _spent_us(self, size_bytes: int) -> int:
        return -(-size_bytes * _US_A_SECOND // self.bytes_per_second)


_NUMBERS = ("paid_until_us", "taken_bytes")
