"""Fetch archived records from a service or a notebook, without Spark.

    from coldlog.fetcher import open_fetcher
    with open_fetcher(["warehouse.uri=/data/coldlog", "archive.uri=/mnt/tiered"]) as fetcher:
        answer = fetcher.fetch_records("orders", 0, 2592, max_bytes=1 << 20)   # FetchedRecords or FetchFailure

This is Kafka's Fetch of one partition, from the archive. The tables say which segment has the offset, and where; one
ranged read gets whole batches. The result of a fetch is a value: `FetchedRecords`, or `FetchFailure` with Kafka's code,
the available offsets and the offset to continue at. Only wrong arguments are a `UsageError`.

With `fetch.log_directory`, a broker's log directory answers from the end of the archive on, and with
`fetch.bootstrap_servers` the brokers do. A question to a broker has what is left of the fetch's timeout.

The fetcher answers from the table versions that it opened, as of `warehouse.as_of`, until `refresh`. If a segment was
removed since then, it opens the newest versions once. All threads of a process can share one fetcher, but not a forked
process. A fetch runs in its caller's thread and waits there for the read quota. It may exceed its timeout by this wait
and by one read of the store. For many callers, `open_pool` gives a pool of workers: it ends every fetch in time, and
answers those over the quota at once (`coldlog.records.fetch.fetch_pool`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from coldlog.errors import RetriableError
from coldlog.lookups.local.local_tier import FoundOffset
from coldlog.model.fetch import DEFAULT_MAX_BYTES, DEFAULT_TIMEOUT_MS, FetchAnswer, FetchRequest, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.model.transactions import AbortedTransaction, FoundSegment, FoundTxnSegment
from coldlog.records.fetch.backoff import Backoff
from coldlog.records.fetch.fetch_pool import FetchPool
from coldlog.records.fetch.opened_source import open_source, pool_options, shared_allowances
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.refused_fetches import timed_out
from coldlog.records.fetch.slices import LogSlice
from coldlog.runtime.settings_sources import load_settings
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.system_clock import SystemClock


class RecordFetcher:
    """Fetch records from one warehouse and one archive."""

    def __init__(
        self,
        source: RecordSource,
        *,
        clock: Clock | None = None,
        backoff: Backoff | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._source = source
        self._clock = clock or SystemClock()
        self._backoff = backoff or Backoff()
        self._chance = chance

    def fetch_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> FetchAnswer:
        """Records from `offset` on: whole batches of at most `max_bytes`, but at least one batch.

        Retriable failures are retried until `timeout_ms` have passed; then the answer is REQUEST_TIMED_OUT.
        """
        request = FetchRequest(
            topic=topic,
            partition=partition,
            offset=offset,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            timeout_ms=timeout_ms,
        )
        deadline_ms = self._clock.monotonic_ms() + request.timeout_ms
        attempt, failures = request, 0
        while True:
            try:
                planned = self._source.plan(attempt)
                return self._source.read(planned) if isinstance(planned, LogSlice) else planned
            except RetriableError as failed:
                failures += 1
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    return timed_out(request, failures, failed)
            self._clock.wait_ms(min(left_ms, self._backoff.pause_ms(failures, self._chance())))
            attempt = replace(request, timeout_ms=max(0, deadline_ms - self._clock.monotonic_ms()))

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        """The first and last offsets of a partition; None if the archive does not have the partition."""
        return self._source.partition_ends(topic, partition)

    def find_later_offset(self, topic: str, partition: int, timestamp_ms: int) -> FoundOffset | None:
        """The first record at or after a time in what is not archived yet; None without `fetch.log_directory`, or if
        there is none."""
        return self._source.find_later_offset(topic, partition, timestamp_ms)

    def next_segment_with_txn_index(
        self, topic: str, partition: int, leader_epoch: int | None, offset: int
    ) -> FoundTxnSegment | None:
        """As `OffsetReader.next_segment_with_txn_index`."""
        return self._source.segments.next_segment_with_txn_index(topic, partition, leader_epoch, offset)

    def segment_for_offset(
        self, topic: str, partition: int, leader_epoch: int | None, offset: int
    ) -> FoundSegment | None:
        """As `OffsetReader.segment_for_offset`."""
        return self._source.segments.segment_for_offset(topic, partition, leader_epoch, offset)

    def aborted_transactions(
        self, topic: str, partition: int, fetch_offset: int, upper_bound_offset: int
    ) -> list[AbortedTransaction]:
        """As `OffsetReader.aborted_transactions`."""
        return self._source.segments.aborted_transactions(topic, partition, fetch_offset, upper_bound_offset)

    def refresh(self) -> None:
        """Open the newest version of the tables."""
        self._source.refresh()

    @property
    def rows_read(self) -> int:
        """The number of table rows read from storage since opening; rows answered from memory do not count."""
        return self._source.rows_read

    def close(self) -> None:
        """Close the files."""
        self._source.close()

    def __enter__(self) -> RecordFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_fetcher(assignments: Sequence[str] = (), env: str = "local") -> RecordFetcher:
    """A fetcher for the warehouse and the archive of the settings; `assignments` are `key=value` as after `--set`."""
    return RecordFetcher(open_source(load_settings(env, list(assignments)), is_paced=True, is_whole_log=True))


@contextmanager
def open_pool(assignments: Sequence[str] = (), env: str = "local") -> Iterator[FetchPool]:
    """A pool for many concurrent callers within the read quota of the settings; its threads run until the end of the
    block."""
    settings = load_settings(env, list(assignments))
    source, clock = open_source(settings, is_whole_log=True), SystemClock()
    allowances = shared_allowances(settings, clock)
    with closing(source), FetchPool(source, pool_options(settings), clock, allowances=allowances) as pool:
        yield pool


def follow_settings(pool: FetchPool, assignments: Sequence[str] = (), env: str = "local") -> None:
    """Read the settings again, and go on with as many workers and waiting fetches as they have now. The read quota
    stays that of `open_pool`."""
    options = pool_options(load_settings(env, list(assignments)))
    pool.resize(threads=options.threads, max_pending=options.max_pending)
