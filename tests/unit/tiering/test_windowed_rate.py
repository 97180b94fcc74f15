"""Test the windowed rate number by number against Kafka's SimpleRate over a SampledStat."""

from __future__ import annotations

import pytest

from coldlog.tiering.rules.windowed_rate import WindowedRate


def three_seconds() -> WindowedRate:
    return WindowedRate(sample_count=3, sample_ms=1000)


def test_empty_rate_is_zero_and_the_window_begins_at_the_first_observation() -> None:
    rate = three_seconds()
    assert rate.observe(500) == (0, 1000)
    assert rate.observe(1_700) == (0, 1_200)
    rate.record(40, 1_900)
    assert rate.observe(1_900) == (40, 1_400), "the first look began the sample that counts"


@pytest.mark.parametrize(
    ("times", "now_ms", "expected"),
    [
        # Up to 999 ms after its beginning a sample takes records; at 1000 ms a new one begins. A sample lies in
        # the window until its last record is 3,000 ms old.
        ((0, 999), 3_998, (2, 3_998)),
        ((0, 999), 3_999, (0, 1_000)),
        ((0, 1_000), 3_000, (1, 2_000)),
        ((0, 1_000), 2_999, (2, 2_999)),
        # A record moves only the end of its own sample.
        ((0, 500, 1_400), 3_499, (3, 3_499)),
        ((0, 500, 1_400), 3_500, (1, 2_100)),
        # Samples that have ended are dropped together.
        ((0, 1_000, 2_000, 2_500), 5_499, (2, 3_499)),
        ((0, 1_000, 2_000, 2_500), 5_500, (0, 1_000)),
    ],
)
def test_a_sample_counts_as_a_whole_until_its_last_record_has_left_the_window(
    times: tuple[int, ...], now_ms: int, expected: tuple[int, int]
) -> None:
    rate = three_seconds()
    for time_ms in times:
        rate.record(1, time_ms)
    assert rate.observe(now_ms) == expected


def test_there_is_one_more_sample_than_the_window_and_the_oldest_is_dropped() -> None:
    rate = three_seconds()
    for number, time_ms in enumerate((0, 1_000, 2_000, 3_000)):
        rate.record(10**number, time_ms)
        # A second record keeps the sample alive until almost the end of the window after it.
        rate.record(10**number, time_ms + 900)
    assert rate.observe(3_900) == (2_220, 2_900), "the first left the window at 3,900 ms"
    crowded = three_seconds()
    for number, time_ms in enumerate((0, 1_000, 2_000, 3_000)):
        crowded.record(10**number, time_ms)
        crowded.record(10**number, time_ms + 999)
    assert crowded.observe(3_998) == (2_222, 3_998), "four samples, of which the first has 1 ms left"
    crowded.record(1, 4_000)
    assert crowded.observe(3_998) == (2_221, 2_998), "the fifth takes the place of the first, whatever time it has"


def test_time_to_wait_is_rounded_up_and_never_negative() -> None:
    rate = three_seconds()
    rate.record(1_001, 0)
    assert rate.throttle_ms(1_000, 0) == 1, "1,001 bytes in 1,000 ms are 1 ms too many"
    assert rate.throttle_ms(3_000, 0) == 0
    rate.record(2_000, 0)
    # 3,001 bytes over 1,000 ms at 2,000 a second: (3,001 x 1,000 - 2,000 x 1,000) / 2,000 = 500.5.
    assert rate.throttle_ms(2_000, 0) == 501
    assert rate.throttle_ms(2_000, 1_500) == 1
    assert rate.throttle_ms(2_000, 1_501) == 0
