"""Test what a terminal shows while records are written elsewhere."""

from __future__ import annotations

import io

from coldlog.command.shared.reading_progress import ReadingProgress

ERASED = "\r\x1b[K"


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_says_how_far_it_is_at_which_rate_and_how_long_it_takes() -> None:
    clock, shown = _Clock(), io.StringIO()
    progress = ReadingProgress(shown, clock)
    progress.begin("orders-0", 1_000, 13_000)
    clock.now_s += 1.9
    progress.reach(2_000)
    assert not shown.getvalue(), "short work shows nothing"
    clock.now_s += 0.1
    progress.reach(5_000)
    clock.now_s += 0.5
    progress.reach(6_000)
    clock.now_s += 0.5
    progress.begin("orders-1", 0, 10)
    progress.reach(0)
    progress.close()
    assert shown.getvalue().split(ERASED) == [
        "",
        "orders-0: 4,000 of 12,000 offsets, 2,000 a second, 4.0 s left",
        "orders-1: 0 of 10 offsets",
        "",
    ]


def test_nothing_is_written_without_a_terminal_or_for_short_work() -> None:
    clock, shown = _Clock(), io.StringIO()
    short = ReadingProgress(shown, clock)
    short.begin("orders-0", 0, 10)
    short.reach(10)
    short.close()
    assert not shown.getvalue()
    unseen = ReadingProgress(None, clock)
    unseen.begin("orders-0", 0, 10)
    clock.now_s += 10
    unseen.reach(5)
    unseen.close()
