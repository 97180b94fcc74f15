"""Replay one task through a pool of readers, within the read quota.

    with open_replayer({("orders", 0): None}, ["warehouse.uri=/data/coldlog", "archive.uri=/mnt/tiered"]) as replayer:
        for each in replayer: ...

The pool has the threads and the read quota of the settings (`open_pool` of `coldlog.fetcher`), so that a replay and
everything else that reads through pools keep one quota, also between processes with `fetch.share_quota`. A fetch over
the quota is made again after its throttle time: the quota slows a replay down and never stops it. Several replays may
share one pool, each with a `PooledReader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from coldlog.model.fetch import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT_MS,
    FetchAnswer,
    FetchErrorCode,
    FetchFailure,
    FetchRequest,
    PartitionEnds,
)
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.fetch_pool import FetchPool
from coldlog.records.fetch.opened_source import open_source, pool_options, shared_allowances
from coldlog.replay.positions import EndsReader, TopicPartition
from coldlog.replay.task_replayer import ReplayedTo, ReplayOptions, TaskReplayer
from coldlog.runtime.settings_sources import load_settings
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.system_clock import SystemClock


class RequestPool(Protocol):
    """What answers fetches, such as a `FetchPool` with threads."""

    def fetch_records(self, request: FetchRequest) -> FetchAnswer:
        """Fetch and wait for the answer."""


@dataclass(slots=True, kw_only=True)
class PooledReader:
    """A RecordReader that fetches through a pool. `ends` knows the tables of that pool. `throttled_ms` is how long
    fetches waited before they were made again."""

    pool: RequestPool
    ends: EndsReader
    clock: Clock
    throttled_ms: int = field(default=0, init=False)

    def fetch_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> FetchAnswer:
        """Fetch as a `RecordFetcher` does, as soon as the quota allows it."""
        request = FetchRequest(
            topic=topic,
            partition=partition,
            offset=offset,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            timeout_ms=timeout_ms,
        )
        while True:
            answer = self.pool.fetch_records(request)
            if not isinstance(answer, FetchFailure) or answer.error is not FetchErrorCode.THROTTLING_QUOTA_EXCEEDED:
                return answer
            self.clock.wait_ms(answer.throttle_ms)
            self.throttled_ms += answer.throttle_ms

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        """The first and last offsets of a partition; None if the archive does not have the partition."""
        return self.ends.partition_ends(topic, partition)

    def refresh(self) -> None:
        """Open the newest version of the tables."""
        self.ends.refresh()


@contextmanager
def open_replayer(
    start: Mapping[TopicPartition, ReplayedTo | None],
    assignments: Sequence[str] = (),
    env: str = "local",
    options: ReplayOptions | None = None,
) -> Iterator[TaskReplayer]:
    """A replay of the task's partitions within the read quota of the settings; `assignments` are `key=value` as after
    `--set`. Without `options`, it waits as `max.task.idle.ms` of the settings says."""
    settings, clock = load_settings(env, list(assignments)), SystemClock()
    source, allowances = open_source(settings, is_whole_log=True), shared_allowances(settings, clock)
    options = options or ReplayOptions(max_task_idle_ms=settings.replay.max_task_idle_ms)
    with closing(source), FetchPool(source, pool_options(settings), clock, allowances=allowances) as pool:
        yield TaskReplayer(PooledReader(pool=pool, ends=source, clock=clock), clock, start, options)
