"""Test the quotas of the tier: rates as Kafka measures them, limits over any period, and who waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import UsageError
from coldlog.tiering.rules.byte_limiter import ByteLimiter
from coldlog.tiering.rules.copy_quota import CopyQuota
from coldlog.tiering.rules.fetch_quota import Accepted, FetchQueue, Taken, Throttled
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.windowed_rate import WindowedRate
from virtual_clock import VirtualClock, most_over_quota

MB, GIB = 1_000_000, 1 << 30
Copied = list[tuple[int, int]]
"""Time and bytes of each segment."""


def kafkas_rate() -> WindowedRate:
    return WindowedRate(sample_count=11, sample_ms=1000)


def test_rate_of_the_first_second_is_taken_over_a_whole_one() -> None:
    rate = kafkas_rate()
    rate.record(5_000, 0)
    assert rate.observe(0) == (5_000, 1000)
    assert rate.observe(400) == (5_000, 1000)
    assert rate.observe(4_000) == (5_000, 4_000)


def test_throttle_time_is_what_brings_the_rate_down_to_the_bound() -> None:
    """(observed - bound) / bound x window, as in Kafka's QuotaUtils: 5,000 bytes at 1,000 a second take 5 s."""
    rate = kafkas_rate()
    rate.record(5_000, 0)
    assert rate.throttle_ms(1_000, 0) == 4_000
    assert rate.throttle_ms(1_000, 1_000) == 4_000
    assert rate.throttle_ms(1_000, 3_000) == 2_000
    assert rate.throttle_ms(1_000, 5_000) == 0


def test_sample_counts_until_its_last_record_is_eleven_seconds_old() -> None:
    rate = kafkas_rate()
    rate.record(100, 0)
    rate.record(100, 900)
    rate.record(7, 5_000)
    assert rate.observe(11_899) == (207, 11_899)
    assert rate.observe(11_900) == (7, 6_900)
    # The first sample began again when it was found expired, and is now the oldest.
    assert rate.observe(16_000) == (0, 4_100)
    assert rate.observe(17_500) == (0, 5_600)


def test_there_are_twelve_samples_at_most() -> None:
    rate = kafkas_rate()
    for second in range(13):
        rate.record(1, second * 1000)
    # Of those at 0 and 1 s the last record is older than the window.
    assert rate.observe(12_000) == (11, 10_000)
    steady = kafkas_rate()
    for tenth in range(0, 13_000, 100):
        steady.record(1, tenth)
    assert steady.observe(12_900)[0] in (110, 119, 120)


def test_window_alone_admits_large_segments_at_a_multiple_of_the_quota() -> None:
    """Why there is a second rate: 1 GiB at 10 MB/s take 107 s, and the window forgets them after 11."""
    rate, now_ms, sizes = kafkas_rate(), 0, 0
    while now_ms < 600_000:
        throttle_ms = rate.throttle_ms(10 * MB, now_ms)
        if throttle_ms:
            now_ms += min(throttle_ms, 1000)
        else:
            rate.record(GIB, now_ms)
            sizes += GIB
    assert sizes / 600 > 95 * MB
    copied = copy_all(QuotaConfig(bytes_per_second=10 * MB), [GIB] * 6, VirtualClock(0))
    assert copied[-1][0] == pytest.approx(5 * GIB / 10_000, abs=5)


def copy_all(config: QuotaConfig, sizes: Sequence[int], clock: VirtualClock) -> Copied:
    quota, copied = CopyQuota(config, clock), Copied()
    for size_bytes in sizes:
        assert quota.take(size_bytes)
        copied.append((clock.time_ms, size_bytes))
    return copied


SIZES = st.lists(st.one_of(st.integers(1, 5_000), st.integers(1, 2_000_000)), min_size=1, max_size=60)


@given(sizes=SIZES, pauses=st.lists(st.integers(0, 30_000), min_size=60, max_size=60), rate=st.integers(1_000, 200_000))
def test_at_most_the_quota_and_one_segment_are_copied_in_any_period(
    sizes: list[int], pauses: list[int], rate: int
) -> None:
    clock, copied = VirtualClock(0), Copied()
    quota = CopyQuota(QuotaConfig(bytes_per_second=rate), clock)
    for size_bytes, pause_ms in zip(sizes, pauses, strict=False):
        clock.time_ms += pause_ms * (pause_ms % 3 == 0)
        quota.take(size_bytes)
        copied.append((clock.time_ms, size_bytes))
    assert most_over_quota(copied, rate) <= max(sizes) + rate // 1000


def test_log_with_a_permanent_backlog_is_copied_at_exactly_the_quota() -> None:
    sizes = [3 * MB, 500_000, 8 * MB, 1] * 50
    copied = copy_all(QuotaConfig(bytes_per_second=2 * MB), sizes, VirtualClock(0))
    assert sum(sizes) / (copied[-1][0] / 1000) == pytest.approx(2 * MB, rel=0.02)


def test_no_task_waits_without_a_quota() -> None:
    clock = VirtualClock()
    copy_all(QuotaConfig(), [GIB] * 1000, clock)
    assert clock.waits == []


def test_room_is_what_a_task_that_may_not_wait_would_get_and_without_it_gives_up() -> None:
    clock = VirtualClock(0)
    quota = CopyQuota(QuotaConfig(bytes_per_second=1_000), clock)
    assert quota.has_room() is True
    report = quota.report()
    assert (report.waited_count, report.gave_up_count, report.waited_ms, report.longest_throttle_ms) == (0, 0, 0, 0)
    assert quota.take(5_000)
    assert quota.has_room() is False
    assert quota.report().gave_up_count == 1


def test_task_that_may_not_wait_is_refused_over_the_quota_and_records_nothing() -> None:
    clock = VirtualClock()
    quota = CopyQuota(QuotaConfig(bytes_per_second=1_000), clock)
    assert quota.take(5_000, may_wait=False)
    assert not quota.take(1, may_wait=False)
    assert (quota.throttle_ms(), clock.waits) == (5_000, [])
    clock.time_ms += 5_000
    assert quota.take(1, may_wait=False)


def test_waiting_is_reported() -> None:
    clock = VirtualClock()
    quota = CopyQuota(QuotaConfig(bytes_per_second=1_000), clock)
    quota.take(2_500)
    quota.take(100, may_wait=False)
    quota.take(100)
    report = quota.report()
    assert (report.waited_count, report.gave_up_count) == (1, 1)
    assert (report.waited_ms, report.longest_throttle_ms) == (2_500, 2_500)
    assert clock.waits == [1_000, 1_000, 500]


def test_threads_share_one_quota() -> None:
    clock, copied, lock = VirtualClock(0), Copied(), threading.Lock()
    quota = CopyQuota(QuotaConfig(bytes_per_second=10_000), clock)

    def copy(size_bytes: int) -> None:
        for _ in range(40):
            quota.take(size_bytes)
            with lock:
                copied.append((clock.time_ms, size_bytes))

    threads = [threading.Thread(target=copy, args=(size_bytes,)) for size_bytes in (100, 2_000, 3_000, 7_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(size_bytes for _, size_bytes in copied)
    assert total == 40 * 12_100
    # The last segment is not paid yet when its copy begins.
    assert clock.time_ms >= (total - 7_000) / 10_000 * 1000


def test_thread_that_is_stopped_while_it_waits_lets_the_next_one_continue() -> None:
    class Stopping(VirtualClock):
        def wait_ms(self, duration_ms: int) -> None:
            raise InterruptedError

    clock = Stopping()
    quota = CopyQuota(QuotaConfig(bytes_per_second=1_000), clock)
    quota.take(2_000)
    with pytest.raises(InterruptedError):
        quota.take(1)
    clock.time_ms += 2_000
    assert quota.take(1)


def test_run_that_stops_does_not_wait_any_longer() -> None:
    clock = VirtualClock()
    quota = CopyQuota(QuotaConfig(bytes_per_second=1_000), clock)
    quota.take(100_000)
    assert not quota.take(1, is_stopping=lambda: len(clock.waits) == 3)
    assert clock.waits == [1_000] * 3
    assert quota.throttle_ms() == 97_000


def test_quota_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="must be positive"):
        QuotaConfig(bytes_per_second=0)


def test_bytes_inside_a_segment_are_spread_over_time() -> None:
    clock = VirtualClock(0)
    limiter = ByteLimiter(1_000, clock)
    passed = Copied()
    for size_bytes in (500, 500, 100, 900, 1):
        limiter.wait_for(size_bytes)
        passed.append((clock.time_ms, size_bytes))
    assert [time_ms for time_ms, _ in passed] == [0, 500, 1000, 1100, 2000]


def test_read_is_accepted_if_its_turn_comes_in_time_and_throttled_otherwise() -> None:
    clock = VirtualClock()
    queue: FetchQueue[str] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)
    assert queue.offer("a", size_bytes=2_000, timeout_ms=500) == Accepted(wait_ms=0)
    assert queue.offer("b", size_bytes=1_000, timeout_ms=500) == Throttled(throttle_ms=2_000)
    assert queue.offer("c", size_bytes=1_000, timeout_ms=2_000) == Accepted(wait_ms=2_000)
    assert queue.offer("d", size_bytes=1_000, timeout_ms=2_000) == Throttled(throttle_ms=3_000)
    assert clock.waits == []


def test_throttled_read_does_not_delay_others() -> None:
    clock = VirtualClock()
    queue: FetchQueue[str] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)
    queue.offer("a", size_bytes=1_000, timeout_ms=0)
    for _ in range(100):
        queue.offer("greedy", size_bytes=50_000, timeout_ms=999)
    assert queue.offer("b", size_bytes=10, timeout_ms=1_000) == Accepted(wait_ms=1_000)


def test_no_worker_waits_for_a_turn_and_stale_reads_are_not_made() -> None:
    clock = VirtualClock()
    queue: FetchQueue[str] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)
    queue.offer("a", size_bytes=1_000, timeout_ms=100)
    queue.offer("b", size_bytes=1_000, timeout_ms=1_500)
    assert queue.take() == Taken(read="a", size_bytes=1_000, is_stale=False)
    queue.settle(accepted_bytes=1_000, fetched_bytes=1_000)
    assert queue.take() is None
    clock.time_ms += 1_600
    assert queue.take() == Taken(read="b", size_bytes=1_000, is_stale=True)
    assert queue.throttle_ms() == 0
    assert clock.waits == []


def test_read_that_fetched_less_than_accepted_gives_the_rest_back() -> None:
    clock = VirtualClock()
    queue: FetchQueue[str] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)
    queue.offer("a", size_bytes=10_000, timeout_ms=0)
    queue.take()
    assert queue.throttle_ms() == 10_000
    queue.settle(accepted_bytes=10_000, fetched_bytes=100)
    assert queue.throttle_ms() == 100


READS = st.tuples(st.integers(1, 5_000), st.integers(0, 9_000), st.integers(0, 2_000), st.booleans())
"""Bytes, timeout, the pause after it, and whether the first attempt fails."""


def test_bytes_that_a_failed_read_gives_back_bring_the_next_one_forward_and_no_two_at_once() -> None:
    clock = VirtualClock()
    queue: FetchQueue[str] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)
    queue.offer("a", size_bytes=1_000, timeout_ms=0)
    queue.offer("b", size_bytes=1_000, timeout_ms=5_000)
    assert queue.take() == Taken(read="a", size_bytes=1_000, is_stale=False)
    queue.settle(accepted_bytes=1_000, fetched_bytes=0)
    assert queue.offer("a", size_bytes=1_000, timeout_ms=5_000) == Accepted(wait_ms=1_000)
    assert queue.take() == Taken(read="b", size_bytes=1_000, is_stale=False)
    assert (queue.take(), queue.next_turn_ms()) == (None, 1_000)
    clock.time_ms += 1_000
    assert queue.take() == Taken(read="a", size_bytes=1_000, is_stale=False)


def test_reads_that_the_window_holds_back_are_spread_over_time() -> None:
    clock = VirtualClock()
    queue: FetchQueue[str] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)
    queue.offer("slow", size_bytes=2_000, timeout_ms=0)
    queue.take()
    clock.time_ms += 20_000
    queue.settle(accepted_bytes=2_000, fetched_bytes=2_000)
    # Paid long ago, but 2,000 bytes came in the last second.
    assert queue.offer("b", size_bytes=1_000, timeout_ms=9_000) == Accepted(wait_ms=1_000)
    assert queue.offer("c", size_bytes=1_000, timeout_ms=9_000) == Accepted(wait_ms=2_000)


def test_read_that_is_taken_late_shifts_those_behind_it_by_what_is_above_ten_milliseconds() -> None:
    clock = VirtualClock()
    queue: FetchQueue[int] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)
    for number in range(3):
        queue.offer(number, size_bytes=100, timeout_ms=9_000)
    clock.time_ms += 7
    assert queue.take() is not None
    assert queue.next_turn_ms() == 93
    clock.time_ms += 93 + 50
    assert queue.take() is not None
    assert queue.next_turn_ms() == 90


@given(reads=st.lists(READS, max_size=80))
def test_reads_stay_within_the_quota_and_one_read_also_when_some_fail_and_are_offered_again(
    reads: list[tuple[int, int, int, bool]],
) -> None:
    clock, fetched = VirtualClock(0), Copied()
    queue: FetchQueue[tuple[int, bool]] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)
    again = list[int]()

    def work() -> None:
        for size_bytes in again:
            queue.offer((size_bytes, False), size_bytes=size_bytes, timeout_ms=3_000)
        again.clear()
        while (taken := queue.take()) is not None:
            size_bytes, fails = taken.read
            if not taken.is_stale and fails:
                queue.settle(accepted_bytes=size_bytes, fetched_bytes=0)
                again.append(size_bytes)
            elif not taken.is_stale:
                fetched.append((clock.time_ms, size_bytes))
                queue.settle(accepted_bytes=size_bytes, fetched_bytes=size_bytes)

    for size_bytes, timeout_ms, pause_ms, fails in reads:
        queue.offer((size_bytes, fails), size_bytes=size_bytes, timeout_ms=timeout_ms)
        for _ in range(pause_ms // 10):
            work()
            clock.time_ms += 10
    # A worker asks every 10 ms, so a turn may be late and the next one in time.
    assert most_over_quota(fetched, 1_000) <= 5_000 + 10


@given(
    reads=st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 9_000), st.integers(0, 2_000)), max_size=80),
)
def test_accepted_read_has_its_turn_by_the_time_that_was_said(reads: list[tuple[int, int, int]]) -> None:
    clock = VirtualClock(0)
    queue: FetchQueue[int] = FetchQueue(QuotaConfig(bytes_per_second=1_000), clock)

    def work_for(duration_ms: int) -> None:
        end_ms = clock.time_ms + duration_ms
        while True:
            while (taken := queue.take()) is not None:
                assert not taken.is_stale
                assert clock.time_ms <= taken.read, "later than what was said"
                queue.settle(accepted_bytes=taken.size_bytes, fetched_bytes=taken.size_bytes)
            turn_ms = queue.next_turn_ms()
            if turn_ms is None or clock.time_ms + turn_ms > end_ms:
                break
            clock.time_ms += turn_ms
        clock.time_ms = end_ms

    for size_bytes, timeout_ms, pause_ms in reads:
        said_ms = clock.time_ms + queue.throttle_ms()
        queue.offer(said_ms, size_bytes=size_bytes, timeout_ms=timeout_ms)
        work_for(pause_ms)
    work_for(3_600_000)
    assert queue.next_turn_ms() is None
