"""Test the windowed rate against the answers of Kafka's own RLMQuotaManager (tests/golden/kafka-quotas)."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from coldlog.tiering.rules.windowed_rate import WindowedRate

ANSWERS = Path(__file__).resolve().parents[2] / "golden" / "kafka-quotas" / "answers.jsonl.gz"
LIVES: list[dict[str, Any]] = [json.loads(line) for line in gzip.decompress(ANSWERS.read_bytes()).splitlines()]


@pytest.mark.parametrize("seed", range(len(LIVES)))
def test_every_answer_is_that_of_kafkas_quota_manager(seed: int) -> None:
    life, now_ms = LIVES[seed], 0
    quota, rate = life["quota"], WindowedRate(sample_count=life["samples"], sample_ms=life["seconds"] * 1000)
    for pause_ms, size_bytes, *answer in life["steps"]:
        now_ms += pause_ms
        if size_bytes is not None:
            rate.record(size_bytes, now_ms)
            continue
        kafkas_throttle_ms, kafkas_rate = answer
        observed_bytes, window_ms = rate.observe(now_ms)
        assert observed_bytes * 1000 / window_ms == pytest.approx(kafkas_rate, rel=1e-12)
        throttle_ms = rate.throttle_ms(quota, now_ms)
        # Kafka rounds to the nearest millisecond, coldlog up: it never lets a read pass too early.
        exact_ms = max(Fraction(0), Fraction(observed_bytes * 1000, quota) - window_ms)
        assert abs(kafkas_throttle_ms - exact_ms) <= Fraction(1, 2)
        assert 0 <= throttle_ms - exact_ms < 1


def test_answers_hold_many_throttled_and_many_free_moments() -> None:
    throttles = [step[2] for life in LIVES for step in life["steps"] if step[1] is None]
    assert sum(each > 0 for each in throttles) > 500
    assert sum(each == 0 for each in throttles) > 500


def test_time_to_wait_is_rounded_up_and_never_negative() -> None:
    rate = WindowedRate(sample_count=3, sample_ms=1000)
    rate.record(1_001, 0)
    assert rate.throttle_ms(1_000, 0) == 1, "1,001 bytes in 1,000 ms are 1 ms too many"
    assert rate.throttle_ms(3_000, 0) == 0
    rate.record(2_000, 0)
    # 3,001 bytes over 1,000 ms at 2,000 a second: (3,001 x 1,000 - 2,000 x 1,000) / 2,000 = 500.5.
    assert rate.throttle_ms(2_000, 0) == 501
    assert rate.throttle_ms(2_000, 1_500) == 1
    assert rate.throttle_ms(2_000, 1_501) == 0
