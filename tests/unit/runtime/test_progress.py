"""Test what is said of work that takes long."""

from __future__ import annotations

from coldlog.runtime.progress import Progress


def test_share_rate_and_time_left_are_those_of_the_work_so_far() -> None:
    now_s = iter([100.0, 100.0, 110.0, 310.0])
    progress = Progress(5_000_000_000, clock=lambda: next(now_s))
    assert progress.text(0) == "0 B of 5.0 GB done"
    assert progress.text(1_200_000_000) == "1.2 GB of 5.0 GB done, 120.0 MB/s, 31.7 s left"
    assert progress.text(5_000_000_000) == "5.0 GB of 5.0 GB done, 23.8 MB/s, 0.0 s left"
