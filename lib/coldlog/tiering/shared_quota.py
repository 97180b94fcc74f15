"""Share one broker's write quota, or the read quota of an archive, between several processes.

The table `tier_quotas` holds a time. A process that takes a segment moves this time forward by compare and set, by as
long as the segment takes at the quota. Nobody takes a segment before that time. So in any period all processes together
copy at most the quota plus one segment, if their clocks agree. If two clocks differ by a second, the bytes of one more
second can pass. The next run also waits for what earlier runs took. A wait is never longer than the largest segment
takes: if the stored time is further in the future, the clock of its writer was ahead, and the others wait that long and
no longer.

Reads of the archive share one row. They reserve: `reserve` moves the time forward also when others are before it, and
says when the turn of the bytes comes (`rules.read_allowances`).

If the table does not answer, nobody takes or reserves anything (`RetriableError`).
"""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.delta.small_table import Row, SmallTable
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.fetch_quota import Accepted, Throttled

_US_A_SECOND = 1_000_000
_LARGEST_SEGMENT_BYTES = 2**31
"""Kafka's segment.bytes is a 32-bit number."""
_LATEST_US = 100_000
READERS = -1
"""The row of all that read the archive, instead of a broker's; Kafka's replica id of a consumer."""


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
            paid_until_us, taken_bytes = self._read(rows)
            longest_us = self._spent_us(_LARGEST_SEGMENT_BYTES)
            owed_us = min(max(0, paid_until_us - now_us), longest_us)
            if owed_us and paid_until_us <= now_us + longest_us:
                return rows
            paid_until_us = now_us + (owed_us or self._spent_us(size_bytes))
            return self._with(rows, paid_until_us, taken_bytes if owed_us else taken_bytes + size_bytes)

        self.table.change(change)
        return -(-owed_us // 1_000)

    def reserve(self, size_bytes: int, *, returned_bytes: int, longest_wait_ms: int) -> Accepted | Throttled:
        """Return bytes and reserve others behind all that are reserved, or do neither, if their time is too late."""
        wait_us = 0

        def change(rows: list[Row]) -> list[Row]:
            nonlocal wait_us
            now_us = self.clock.now_ms() * 1_000
            paid_until_us, taken_bytes = self._read(rows)
            paid_until_us = min(paid_until_us, now_us + self._spent_us(_LARGEST_SEGMENT_BYTES))
            paid_until_us -= self._spent_us(returned_bytes)
            wait_us = max(0, paid_until_us - now_us)
            if wait_us > longest_wait_ms * 1_000:
                return rows
            # Somebody who reads all the time asks a little after the end of the last allowance, and loses nothing.
            begin_us = paid_until_us if paid_until_us >= now_us - _LATEST_US else now_us
            return self._with(rows, begin_us + self._spent_us(size_bytes), taken_bytes + size_bytes - returned_bytes)

        self.table.change(change)
        wait_ms = -(-wait_us // 1_000)
        return Accepted(wait_ms=wait_ms) if wait_ms <= longest_wait_ms else Throttled(throttle_ms=wait_ms)

    def give_back(self, returned_bytes: int) -> None:
        """Return bytes that were reserved and not used."""

        def change(rows: list[Row]) -> list[Row]:
            paid_until_us, taken_bytes = self._read(rows)
            return self._with(rows, paid_until_us - self._spent_us(returned_bytes), taken_bytes - returned_bytes)

        self.table.change(change)

    def _read(self, rows: list[Row]) -> tuple[int, int]:
        stored = [row for row in rows if row["broker_id"] == self.broker_id]
        paid_until_us, taken_bytes = (int(str(stored[0][name])) for name in _NUMBERS) if stored else (0, 0)
        return paid_until_us, taken_bytes

    def _with(self, rows: list[Row], paid_until_us: int, taken_bytes: int) -> list[Row]:
        row = (self.broker_id, paid_until_us, taken_bytes)
        return [
            *(row for row in rows if row["broker_id"] != self.broker_id),
            dict(zip(("broker_id", *_NUMBERS), row, strict=True)),
        ]

    def _spent_us(self, size_bytes: int) -> int:
        return -(-size_bytes * _US_A_SECOND // self.bytes_per_second)


_NUMBERS = ("paid_until_us", "taken_bytes")
