"""Test that an endpoint keeps the read quota for fetches and lookups, alone and together with other processes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest

from coldlog.serve.read_quota import ReadQuota
from coldlog.serve.telemetry.metrics import RecentMaximum
from coldlog.serve.threads import Threads
from coldlog.tiering.process_pace import ProcessPace
from coldlog.tiering.rules.fetch_quota import Accepted
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.read_allowances import ReadAllowances
from coldlog.tiering.shared_quota import READERS, SharedQuota
from read_quotas import taken_bytes
from virtual_clock import VirtualClock

RATE = 10_000
CONFIG = QuotaConfig(bytes_per_second=RATE, window_count=2)


def allowances(uri: Path, clock: VirtualClock) -> ReadAllowances:
    return ReadAllowances(RATE, clock, SharedQuota.below(str(uri), READERS, RATE, clock))


def test_fetches_of_endpoints_that_share_the_quota_come_in_turn_with_readers_that_wait(tmp_path: Path) -> None:
    clock = VirtualClock()
    one, two = (ReadQuota(CONFIG, clock, allowances(tmp_path, clock)) for _ in range(2))
    reader = ProcessPace(RATE, clock, allowances(tmp_path, clock))
    assert one.charge(RATE) == 0
    assert two.charge(RATE) == 1_000, "the quota of this second is used up"
    assert reader.reserve(RATE, 10_000).wait_ms == 2_000, "behind the turn that the client was told"  # type: ignore[union-attr]
    assert (two.charge(RATE), two.charge(1)) == (1_000, 1_000), "it has a turn, and no second one"
    clock.time_ms += 1_000
    assert two.charge(RATE) == 0
    assert one.charge(RATE) == 2_000
    assert taken_bytes(tmp_path) == 4 * RATE
    for quota in (one, two):
        quota.close()
    assert taken_bytes(tmp_path) == 3 * RATE, "what nobody read returns"


def test_endpoint_has_its_turn_beside_readers_that_always_wait(tmp_path: Path) -> None:
    clock = VirtualClock()
    readers = [ProcessPace(RATE, clock, allowances(tmp_path, clock)) for _ in range(8)]
    quota = ReadQuota(CONFIG, clock, allowances(tmp_path, clock))
    turns = [0] * len(readers)
    served = 0
    for _ in range(60):
        for number, reader in enumerate(readers):
            if clock.time_ms >= turns[number]:
                answer = reader.reserve(RATE, 3_600_000)
                assert isinstance(answer, Accepted)
                turns[number] = clock.time_ms + answer.wait_ms
        served += quota.charge(RATE // 2) == 0
        clock.time_ms += 1_000
    assert served >= 5, "a ninth of the time is the endpoint's"


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_time_that_an_answer_has_no_room_for_is_told_as_the_longest_one(tmp_path: Path, *, is_shared: bool) -> None:
    """A throttle time has 32 bits, which is 24 days: at 1 byte a second that of 2 MiB."""
    clock = VirtualClock()
    order = SharedQuota.below(str(tmp_path), READERS, 1, clock)
    shared = ReadAllowances(1, clock, order) if is_shared else None
    quota = ReadQuota(QuotaConfig(bytes_per_second=1), clock, shared)
    assert quota.charge(1 << 30) == 0
    assert quota.charge(1 << 30) == 2**31 - 1


def test_lookups_wait_for_the_quota_of_fetches() -> None:
    clock = VirtualClock()
    quota = ReadQuota(CONFIG, clock)
    assert quota.charge(3 * RATE) == 0
    began_ms, throttle_ms = clock.time_ms, quota.charge(RATE)
    assert throttle_ms > 0
    quota.wait_for(3 * RATE)
    assert throttle_ms <= clock.time_ms - began_ms < throttle_ms + 100
    assert quota.charge(RATE) > 0, "what a lookup reads counts"
    quota.wait_for(0)


class HeldClock(VirtualClock):
    """Who waits goes on when that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def wait_ms(self, duration_ms: int) -> None:
        self.begun.set()
        self.may_go_on.wait()


def test_lookup_that_nobody_waits_for_stops_waiting_for_the_quota() -> None:
    clock = HeldClock()
    quota = ReadQuota(CONFIG, clock)
    quota.charge(1_000 * RATE)
    ended = list[BaseException]()

    def look_up() -> None:
        try:
            quota.wait_for(RATE)
        except TimeoutError as given_up:
            ended.append(given_up)
            raise

    async def ask(threads: Threads) -> None:
        asked = asyncio.create_task(threads.run(look_up, 3600))
        await asyncio.to_thread(clock.begun.wait)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        clock.may_go_on.set()
        while threads.given_up:
            await asyncio.sleep(0)

    with closing(Threads("lookup", 1)) as threads:
        asyncio.run(ask(threads))
    assert len(ended) == 1


def test_longest_throttle_time_is_that_of_the_last_minute() -> None:
    now_s = [1_000.0]
    longest = RecentMaximum(lambda: now_s[0])
    assert longest.read() == 0
    longest.add(0.5)
    longest.add(2.0)
    longest.add(1.0)
    now_s[0] += 30
    assert longest.read() == 2.0
    longest.add(0.25)
    now_s[0] += 30
    assert longest.read() == 0.25
    now_s[0] += 3_000
    assert longest.read() == 0
