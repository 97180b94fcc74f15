"""Test that a replay through a pool waits for the read quota, and fails only for what a fetch fails."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from coldlog.model.fetch import FetchAnswer, FetchErrorCode, FetchFailure, FetchRequest
from coldlog.replay.pooled_replay import PooledReader
from coldlog.replay.task_replayer import ReplayError, ReplayOptions, TaskReplayer
from virtual_clock import VirtualClock
from worlds.growing_archive import GrowingArchive, Uploaded

A, B = ("a", 0), ("b", 0)
THROTTLED_MS = 1_500


@dataclass(slots=True, kw_only=True)
class SlowPool:
    """A pool whose quota allows a fetch every `THROTTLED_MS`, and answers all others at once."""

    archive: GrowingArchive
    next_ms: int = 0
    refused_count: int = 0

    def fetch_records(self, request: FetchRequest) -> FetchAnswer:
        now_ms = self.archive.clock.monotonic_ms()
        if now_ms < self.next_ms:
            self.refused_count += 1
            return FetchFailure(
                error=FetchErrorCode.THROTTLING_QUOTA_EXCEEDED, message="later", throttle_ms=self.next_ms - now_ms
            )
        self.next_ms = now_ms + THROTTLED_MS
        return self.archive.fetch_records(
            request.topic, request.partition, request.offset, request.max_bytes, timeout_ms=request.timeout_ms
        )


def opened(archive: GrowingArchive) -> tuple[SlowPool, PooledReader]:
    pool = SlowPool(archive=archive)
    return pool, PooledReader(pool=pool, ends=archive, clock=archive.clock)


def grown() -> GrowingArchive:
    uploads = {
        A: [Uploaded(from_ms=0, stamps=((0, 10), (1, 30)), end_offset=2)],
        B: [Uploaded(from_ms=0, stamps=((0, 20), (1, 40)), end_offset=2)],
    }
    return GrowingArchive(clock=VirtualClock(time_ms=1_000), uploads=uploads)


def test_quota_slows_a_replay_down_and_never_stops_it() -> None:
    archive = grown()
    pool, reader = opened(archive)
    replayer = TaskReplayer(reader, archive.clock, dict.fromkeys((A, B)), ReplayOptions(max_bytes=1))
    assert [each.record.timestamp_ms for each in replayer] == [10, 20, 30, 40]
    assert replayer.counts.failed_fetches == 0
    # Each fetch but the first is refused once.
    assert pool.refused_count == replayer.counts.fetches - 1 > 2
    assert reader.throttled_ms == THROTTLED_MS * pool.refused_count == sum(archive.clock.waits)


def test_other_failures_of_a_pool_stop_the_replay() -> None:
    archive = grown()
    archive.failures[B] = FetchFailure(error=FetchErrorCode.CORRUPT_MESSAGE, message="damaged")
    pool, reader = opened(archive)
    replayer = TaskReplayer(reader, archive.clock, dict.fromkeys((A, B)))
    with pytest.raises(ReplayError, match="b-0: CORRUPT_MESSAGE: damaged"):
        list(replayer)
    assert pool.refused_count == 1
