"""Test that processes keep one read quota together, with a second's worth for each commit."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tiering.rules.fetch_quota import Accepted, FetchQueue, Throttled
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.read_allowances import ReadAllowances
from coldlog.tiering.shared_quota import READERS, SharedQuota
from virtual_clock import VirtualClock

RATE = 10_000


@dataclass(slots=True, kw_only=True)
class Table:
    """Rows in memory that change as those of a SmallTable."""

    rows: list[dict[str, object]] = field(default_factory=list)
    commits: int = 0

    def change(self, change: object) -> list[dict[str, object]]:
        changed = change(self.rows)  # type: ignore[operator]
        self.commits += changed != self.rows
        self.rows = changed
        return self.rows


def over(table: Table, clock: VirtualClock) -> ReadAllowances:
    """The allowances of one process."""
    shared = SharedQuota(table=table, broker_id=READERS, bytes_per_second=RATE, clock=clock)  # type: ignore[arg-type]
    return ReadAllowances(RATE, clock, shared)


@pytest.mark.parametrize("readers", [1, 4, 16])
@pytest.mark.parametrize("size_bytes", [300, 6_000, 25_000])
def test_readers_together_keep_the_quota_over_any_minute_with_a_commit_a_second(readers: int, size_bytes: int) -> None:
    """Each reads as much as it may, and each read has up to `size_bytes`."""
    clock, table, chance = VirtualClock(), Table(), random.Random(readers)
    processes = [over(table, clock) for _ in range(readers)]
    begin_ms, reads = clock.time_ms, list[tuple[int, int]]()
    turns = [(clock.time_ms, number, 0) for number in range(readers)]
    seconds = 600
    while turns[0][0] < begin_ms + seconds * 1000:
        clock.time_ms, number, read_bytes = heapq.heappop(turns)
        if read_bytes:
            reads.append((clock.time_ms, read_bytes))
        read_bytes = chance.randint(1, size_bytes)
        answer = processes[number].reserve(read_bytes, timeout_ms=120_000)
        assert isinstance(answer, Accepted)
        heapq.heappush(turns, (clock.time_ms + answer.wait_ms, number, read_bytes))
    assert table.commits <= seconds + readers + 1
    minutes = [
        sum(read_bytes for at_ms, read_bytes in reads if from_ms <= at_ms < from_ms + 60_000)
        for from_ms in range(begin_ms + 60_000, begin_ms + (seconds - 60) * 1000, 7_000)
    ]
    allowed = 60 * RATE
    assert max(minutes) <= allowed * 1.05 + size_bytes
    assert min(minutes) >= allowed * 0.95 - 2 * size_bytes


def test_reads_of_a_second_need_one_commit_and_others_wait_for_it() -> None:
    clock, table = VirtualClock(), Table()
    one, two = over(table, clock), over(table, clock)
    assert [one.reserve(2_500, 0) for _ in range(4)] == [Accepted(wait_ms=0)] * 4
    assert table.commits == 1
    assert two.reserve(1, 999) == Throttled(throttle_ms=1_000)
    assert table.commits == 1, "a throttled read reserves nothing"
    assert two.reserve(1, 1_000) == Accepted(wait_ms=1_000)
    assert two.reserve(1, 999) == Throttled(throttle_ms=1_000), "of an allowance whose time comes later"
    assert one.reserve(1, 5_000) == Accepted(wait_ms=2_000)


def test_rest_of_an_allowance_goes_into_the_next_one() -> None:
    clock, table = VirtualClock(), Table()
    one = over(table, clock)
    one.reserve(6_000, 0)
    assert one.reserve(6_000, 5_000) == Accepted(wait_ms=1_000)
    assert one.reserve(8_000, 5_000) == Accepted(wait_ms=1_000)
    assert (table.commits, table.rows[0]["taken_bytes"]) == (2, 20_000)


def test_read_of_more_than_a_second_reserves_its_own_bytes() -> None:
    clock, table = VirtualClock(), Table()
    one, two = over(table, clock), over(table, clock)
    assert one.reserve(45_000, 0) == Accepted(wait_ms=0)
    assert two.reserve(1, 9_000) == Accepted(wait_ms=4_500)


def test_unused_bytes_return_with_the_next_reservation_within_two_seconds() -> None:
    for late_ms in (1_500, 2_001):
        clock, table = VirtualClock(), Table()
        one, two = over(table, clock), over(table, clock)
        one.reserve(3_000, 0)
        two.reserve(40_000 + late_ms * RATE // 1000, 9_000)
        clock.time_ms += 1_000 + late_ms
        # two has reserved until 5 s and late_ms; at 1 s and late_ms, 4 s are left, of which 0.7 s come back.
        answer = one.reserve(1, 9_000)
        assert answer == Accepted(wait_ms=3_300 if late_ms <= 2_000 else 4_000), late_ms


def test_unused_bytes_return_once() -> None:
    clock, table = VirtualClock(), Table()
    one = over(table, clock)
    one.reserve(4_000, 0)
    clock.time_ms += 1_000
    one.reserve(10_000, 0)
    one.reserve(10_000, 5_000)
    assert (table.commits, table.rows[0]["taken_bytes"]) == (3, 24_000)


def test_clock_that_was_ahead_stops_readers_only_for_the_largest_segment() -> None:
    clock, ahead, table = VirtualClock(), VirtualClock(), Table()
    ahead.time_ms += 365 * 86_400_000
    over(table, ahead).reserve(1, 0)
    longest_ms = -(-(2**31) * 1000 // RATE)
    assert over(table, clock).reserve(1, 2**31 - 1) == Accepted(wait_ms=longest_ms)


def test_process_that_ends_returns_what_it_did_not_use(tmp_path: Path) -> None:
    clock = VirtualClock()
    one, two = (ReadAllowances(RATE, clock, SharedQuota.below(str(tmp_path), READERS, RATE, clock)) for _ in range(2))
    assert one.reserve(2_000, 0) == Accepted(wait_ms=0)
    one.close()
    one.close()
    assert two.reserve(2_000, 500) == Accepted(wait_ms=200)
    (row,) = SmallTable(uri=str(tmp_path), table=TIER_QUOTAS).read()
    assert (row["broker_id"], row["taken_bytes"]) == (READERS, 12_000)


def test_queue_gives_a_read_its_reserved_turn_and_reserves_nothing_for_one_that_it_refuses() -> None:
    clock, table = VirtualClock(), Table()
    config = QuotaConfig(bytes_per_second=RATE)
    one, two = (FetchQueue[str](config, clock, over(table, clock)) for _ in range(2))
    reserved = one.reserve(10_000, 0)
    assert one.offer("a", size_bytes=10_000, timeout_ms=0, reserved=reserved) == Accepted(wait_ms=0)
    assert one.take() is not None
    slower = FetchQueue[str](QuotaConfig(bytes_per_second=RATE // 2), clock, over(table, clock))
    slower.offer("c", size_bytes=10_000, timeout_ms=0)
    assert slower.take() is not None
    # The own quota alone refuses it, without a commit.
    assert slower.reserve(1, 1_500) == Throttled(throttle_ms=2_000)
    assert table.commits == 1
    reserved = two.reserve(10_000, 1_500)
    assert reserved == Accepted(wait_ms=1_000)
    clock.time_ms += 800
    # The commit took 800 ms: less than the reserved wait is left, and the turn is kept.
    assert two.offer("b", size_bytes=10_000, timeout_ms=700, reserved=reserved) == Accepted(wait_ms=1_000)
    clock.time_ms += 999
    assert two.take() is None
    clock.time_ms += 1
    assert two.take() is not None
