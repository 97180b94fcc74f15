"""Share one broker's write quota between several processes.

The table `tier_quotas` holds a time. A process that takes a segment moves this time forward by compare and set, by as
long as the segment takes at the quota. Nobody takes a segment before that time. So in any period all processes together
copy at most the quota plus one segment, if their clocks agree. If two clocks differ by a second, the bytes of one more
second can pass. The next run also waits for what earlier runs took. A wait is never longer than the largest segment
takes: if the stored time is further in the future, the clock of its writer was ahead, and the others wait that long and
no longer.

If the table does not answer, nobody takes a segment (`RetriableError`).
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
    """The quota of one broker, in the warehouse at `uri`. Threads may share it."""

    table: SmallTable
    broker_id: int
    bytes_per_second: int
    clock: Clock

    @staticmethod
    def below(uri: str, broker_id: int, bytes_per_second: int, clock: Clock) -> SharedQuota:
        """Return the quota of a broker in the warehouse at `uri`."""
        table = SmallTable(uri=uri, table=TIER_QUOTAS)
        return SharedQuota(table=table, broker_id=broker_id, bytes_per_second=bytes_per_second, clock=clock)

    def take(self, size_bytes: int) -> int:
        """Take a segment of that size and return 0, or return how many milliseconds to wait before the next try."""
        owed_us = 0

        def change(rows: list[Row]) -> list[Row]:
            nonlocal owed_us
            now_us = self.clock.now_ms() * 1_000
            stored = [row for row in rows if row["broker_id"] == self.broker_id]
            paid_until_us, taken = (int(str(stored[0][name])) for name in _NUMBERS) if stored else (0, 0)
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
