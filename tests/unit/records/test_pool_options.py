"""Test that the limits of the settings are those of a pool of fetches, also while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import cast

import pytest

from coldlog.errors import UsageError
from coldlog.fetcher import follow_settings
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.records.fetch.fetch_pool import FetchPool
from coldlog.records.fetch.opened_source import pool_options
from coldlog.records.fetch.pool_fetch import PoolOptions
from coldlog.records.fetch.record_source import RecordSource
from coldlog.runtime.settings_sources import settings_of
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.system_clock import SystemClock


def test_every_limit_of_the_settings_reaches_a_pool() -> None:
    values = {
        "remote.log.reader.threads": "3",
        "remote.log.reader.max.pending.tasks": "5",
        "remote.log.manager.fetch.max.bytes.per.second": "10MiB",
        "remote.log.manager.fetch.quota.window.num": "13",
        "remote.log.manager.fetch.quota.window.size.seconds": "2",
    }
    assert pool_options(settings_of(values, "a test")) == PoolOptions(
        threads=3,
        max_pending=5,
        quota=QuotaConfig(bytes_per_second=10 << 20, window_count=13, window_ms=2_000),
    )
    assert pool_options(settings_of({}, "a test")) == PoolOptions()


ENDS = PartitionEnds(log_start_offset=0, end_offset=0, last_stable_offset=0)


@dataclass(frozen=True, slots=True)
class HeldSource:
    """Nothing is archived. It says so when it is allowed to."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    may_end: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def plan(self, request: FetchRequest) -> FetchedRecords:
        self.begun.release()
        self.may_end.acquire()
        return FetchedRecords(records=(), next_offset=request.offset, ends=ENDS, read_bytes=0)


def test_as_many_fetches_are_read_and_may_wait_as_the_settings_of_the_pool_say_now() -> None:
    source, before = HeldSource(), set(threading.enumerate())
    options = PoolOptions(threads=1, max_pending=2)
    with FetchPool(cast(RecordSource, source), options, SystemClock()) as pool:
        asked = [pool.submit(FetchRequest(topic="orders", partition=0, offset=0))]
        source.begun.acquire()
        asked += [pool.submit(FetchRequest(topic="orders", partition=number, offset=0)) for number in (1, 2)]
        refused = pool.fetch_records(FetchRequest(topic="orders", partition=3, offset=0))
        assert isinstance(refused, FetchFailure)
        assert refused.error is FetchErrorCode.UNKNOWN_SERVER_ERROR
        follow_settings(pool, ["remote.log.reader.threads=3", "remote.log.reader.max.pending.tasks=3"])
        for _ in range(2):
            source.begun.acquire()
        asked += [pool.submit(FetchRequest(topic="orders", partition=number, offset=0)) for number in (3, 4, 5)]
        assert (pool.running_count, pool.pending_count) == (3, 3), "more are read, and more may wait"
        pool.resize(threads=1, max_pending=3)
        workers = [each for each in set(threading.enumerate()) - before if each.name != "coldlog-reader-time"]
        source.may_end.release(6)
        assert [type(each.result()) for each in asked] == [FetchedRecords] * 6, "what waits or is read is answered"
        while sum(worker.is_alive() for worker in workers) > 1:
            for worker in workers:
                worker.join(0.01)
        for _ in range(6):
            source.begun.acquire(blocking=False)
        late = [pool.submit(FetchRequest(topic="orders", partition=number, offset=0)) for number in (0, 1)]
        source.begun.acquire()
        assert (pool.running_count, pool.pending_count) == (1, 1), "fewer are read"
        source.may_end.release(2)
        assert [type(each.result()) for each in late] == [FetchedRecords] * 2
        with pytest.raises(UsageError, match="at least 1 thread"):
            pool.resize(threads=0, max_pending=3)
