"""Test how long a fetch pauses before its next attempt."""

from __future__ import annotations

from coldlog.records.fetch.backoff import Backoff


def test_pauses_double_up_to_a_second_and_vary_by_a_fifth() -> None:
    backoff = Backoff()
    assert [backoff.pause_ms(number, 0.5) for number in range(1, 7)] == [100, 200, 400, 800, 1000, 1000]
    assert (backoff.pause_ms(1, 0.0), backoff.pause_ms(1, 0.999_999)) == (80, 120)
    assert backoff.pause_ms(10_000, 0.5) == 1000
