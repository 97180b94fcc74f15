"""Test many fetches at once: workers, the read quota, pauses and deadlines, with a clock that the tests move."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldlog.archive.open_archive import open_archive
from coldlog.errors import RetriableError, UsageError
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest
from coldlog.records.fetch.fetch_pool import FetchPool
from coldlog.records.fetch.pool_fetch import PoolOptions
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.source.archived_log import ArchivedLogs
from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.read_allowances import ReadAllowances
from coldlog.tiering.shared_quota import READERS, SharedQuota
from coldlog.tiering.system_clock import SystemClock
from contents.record_rows import true_batches
from fetching import LIMITS, HookedLayout
from virtual_clock import VirtualClock, most_over_quota

PLACES = (("orders", 0), ("payments", 0), ("payments", 1), ("payments", 2), ("late.events", 0), ("late.events", 1))


@dataclass(slots=True)
class Archive:
    """The sample archive; `before_read` is called with the id of each segment that is read."""

    uri: str
    directory: Path
    before_read: Callable[[str], None] = field(default=lambda _: None)
    reads: list[str] = field(default_factory=list)

    def open_layout(self) -> HookedLayout:
        """Open a layout for one thread."""
        layout = open_archive(str(self.directory), "local_tiered_storage")
        return HookedLayout(layout=layout, before_read=self._read)

    def _read(self, segment_id: str) -> None:
        self.reads.append(segment_id)
        self.before_read(segment_id)

    def segment_ids(self, topic: str, partition: int) -> set[str]:
        return {each["segment_id"] for each in true_batches(topic, partition)}


@pytest.fixture
def archive(golden_uri: str, golden_archive: Path) -> Archive:
    return Archive(golden_uri, golden_archive)


@pytest.fixture
def source(archive: Archive) -> Iterator[RecordSource]:
    opened = RecordSource(archive.uri, archive.open_layout, LIMITS)
    yield opened
    opened.close()


def make_pool(source: RecordSource, clock: VirtualClock, quota: int | None = None, **options: int) -> FetchPool:
    config = QuotaConfig() if quota is None else QuotaConfig(bytes_per_second=quota)
    return FetchPool(source, PoolOptions(quota=config, **options), clock, chance=lambda: 0.5)  # type: ignore[arg-type]


def work_all(pool: FetchPool) -> int | None:
    """Do all work that is due; return how long until more is due."""
    while True:
        wait_ms = pool.keep_time()
        worked = False
        while pool.work():
            worked = True
        if not worked:
            return wait_ms


def ask(topic: str, partition: int, offset: int = 0, max_bytes: int = 20_000, timeout_ms: int = 1_000) -> FetchRequest:
    return FetchRequest(topic=topic, partition=partition, offset=offset, max_bytes=max_bytes, timeout_ms=timeout_ms)


def fetched(future: Future[FetchAnswer]) -> FetchedRecords:
    answer = future.result(timeout=0)
    assert isinstance(answer, FetchedRecords), str(answer)
    return answer


def failed(future: Future[FetchAnswer]) -> FetchFailure:
    answer = future.result(timeout=0)
    assert isinstance(answer, FetchFailure)
    return answer


def test_reads_over_the_quota_are_throttled_at_once_and_not_made(source: RecordSource, archive: Archive) -> None:
    clock = VirtualClock(0)
    pool = make_pool(source, clock, quota=10_000)
    first = pool.submit(ask("orders", 0))
    work_all(pool)
    size = fetched(first).read_bytes
    assert 10_000 < size <= 20_000
    second = pool.submit(ask("payments", 0))
    work_all(pool)
    refused = failed(second)
    assert refused.error is FetchErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert refused.throttle_ms == pytest.approx(size / 10, abs=1)
    assert f"used up for {refused.throttle_ms} ms, longer than the remaining 1000 ms" in refused.message
    assert len(archive.reads) == 1
    known = pool.throttled["payments"]
    assert (known.count, known.total_ms, known.longest_ms) == (1, refused.throttle_ms, refused.throttle_ms)
    assert pool.throttled["orders"].count == 0
    # A fetch after the throttle time is read; refused fetches use no quota.
    clock.time_ms += refused.throttle_ms
    third = pool.submit(ask("payments", 0))
    work_all(pool)
    assert fetched(third).records
    assert clock.waits == [], "no fetch waited"


def test_waiting_reads_occupy_no_worker_and_answers_without_a_read_are_immediate(
    source: RecordSource, archive: Archive
) -> None:
    clock = VirtualClock(0)
    pool = make_pool(source, clock, quota=10_000, threads=1)
    first = pool.submit(ask("orders", 0))
    work_all(pool)
    waiting = [pool.submit(ask(*place, timeout_ms=60_000)) for place in PLACES[1:]]
    due_ms = work_all(pool)
    assert due_ms is not None
    assert due_ms == pytest.approx(fetched(first).read_bytes / 10, abs=1)
    assert (pool.running_count, pool.pending_count) == (0, 5)
    assert not any(each.done() for each in waiting)
    # A fetch that reads nothing uses no quota, and does not wait behind others.
    at_end = source.partition_ends("orders", 0)
    assert at_end is not None
    others = [pool.submit(ask("orders", 0, at_end.end_offset)), pool.submit(ask("nobody's", 0))]
    work_all(pool)
    assert fetched(others[0]).records == ()
    assert failed(others[1]).error is FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    reads, done_ms = list[tuple[int, int]](), dict[int, int]()
    while not all(each.done() for each in waiting):
        step_ms = work_all(pool)
        for number, each in enumerate(waiting):
            if each.done() and number not in done_ms:
                done_ms[number] = clock.time_ms
                reads.append((clock.time_ms, fetched(each).read_bytes))
        assert pool.running_count == 0
        clock.time_ms += step_ms or 0
    assert len(archive.reads) == 6
    assert list(done_ms) == [0, 1, 2, 3, 4], "in the order asked"
    most = max(size for _, size in reads)
    assert most_over_quota([(0, fetched(first).read_bytes), *reads], 10_000) <= most + 10
    assert clock.waits == []


def test_of_many_fetches_those_over_the_quota_get_their_throttle_time_and_the_others_records(
    source: RecordSource,
) -> None:
    clock = VirtualClock(0)
    pool = make_pool(source, clock, quota=100_000)
    futures = [pool.submit(ask(*place, timeout_ms=30_000), max_wait_ms=200) for place in PLACES]
    while (step_ms := work_all(pool)) is not None and not all(each.done() for each in futures):
        clock.time_ms += step_ms
    assert clock.time_ms <= 200, "nobody waited longer"
    answers = [each.result(timeout=0) for each in futures]
    sizes = [each.read_bytes for each in answers if isinstance(each, FetchedRecords)]
    refused = [each for each in answers if isinstance(each, FetchFailure)]
    assert sizes
    assert refused
    assert sum(sizes[:-1]) / 100 <= 200
    assert {each.error for each in refused} == {FetchErrorCode.THROTTLING_QUOTA_EXCEEDED}
    # All are throttled until the accepted ones are paid; a throttled one delays nobody.
    assert {each.throttle_ms for each in refused} == {-(-sum(sizes) // 100)}
    clock.time_ms = refused[0].throttle_ms
    again = pool.submit(ask(*PLACES[-1]), max_wait_ms=0)
    work_all(pool)
    assert fetched(again).records


def test_pools_of_several_processes_keep_one_quota_together(source: RecordSource, tmp_path: Path) -> None:
    clock, rate = VirtualClock(), 10_000
    config = QuotaConfig(bytes_per_second=rate)
    pools = []
    for _ in range(3):
        shared = SharedQuota.below(str(tmp_path), READERS, rate, clock)
        allowances = ReadAllowances(rate, clock, shared)
        pools.append(FetchPool(source, PoolOptions(quota=config), clock, allowances=allowances))
    reads = list[tuple[int, int]]()
    under_way = [pool.submit(ask(*place, timeout_ms=300_000)) for place in PLACES for pool in pools]
    begin_ms = clock.time_ms
    while under_way:
        for pool in pools:
            work_all(pool)
        reads += [(clock.time_ms, fetched(each).read_bytes) for each in under_way if each.done()]
        under_way = [each for each in under_way if not each.done()]
        clock.time_ms += 10
    most = max(size for _, size in reads)
    # An allowance is a second's worth, and one pool's ends where another's begins.
    assert most_over_quota(reads, rate) <= most + 2 * rate
    total, spent_s = sum(size for _, size in reads), (clock.time_ms - begin_ms) / 1000
    assert total / rate - 4 <= spent_s <= total / rate + 2
    late = pools[0].submit(ask("orders", 0), max_wait_ms=0)
    again = pools[1].submit(ask("orders", 0), max_wait_ms=0)
    for pool in pools:
        work_all(pool)
    assert {failed(each).error for each in (late, again)} == {FetchErrorCode.THROTTLING_QUOTA_EXCEEDED}
    pools[0].close()
    (row,) = SmallTable(uri=str(tmp_path), table=TIER_QUOTAS).read()
    assert total <= int(str(row["taken_bytes"])) <= total + 3 * rate


def test_many_fetches_are_answered_in_their_order(source: RecordSource) -> None:
    requests = [*(ask(*place) for place in PLACES), ask("nobody's", 0)]
    with FetchPool(source, PoolOptions(threads=3), SystemClock()) as pool:
        answers = pool.fetch_many(requests)
    for request, answer in zip(requests, answers, strict=True):
        planned = source.plan(request)
        assert answer == (source.read(planned) if isinstance(planned, LogSlice) else planned)
    assert [isinstance(each, FetchedRecords) for each in answers] == [True] * 6 + [False]


def test_stale_read_is_not_made_and_uses_no_quota(source: RecordSource, archive: Archive) -> None:
    clock = VirtualClock(0)
    pool = make_pool(source, clock, quota=10_000)
    first = pool.submit(ask("orders", 0))
    work_all(pool)
    turn_ms = round(fetched(first).read_bytes / 10)
    late = pool.submit(ask("payments", 0, timeout_ms=turn_ms + 50))
    work_all(pool)
    # No worker took it in time.
    clock.time_ms += turn_ms + 51
    work_all(pool)
    assert failed(late).error is FetchErrorCode.REQUEST_TIMED_OUT
    assert "no attempt has ended" in failed(late).message
    assert len(archive.reads) == 1
    following = pool.submit(ask("payments", 1, timeout_ms=0))
    work_all(pool)
    assert fetched(following).records


def test_read_after_one_that_was_not_made_keeps_the_quota(source: RecordSource) -> None:
    clock = VirtualClock(0)
    pool = make_pool(source, clock, quota=10_000)
    first = pool.submit(ask("orders", 0))
    work_all(pool)
    turn_ms = round(fetched(first).read_bytes / 10)
    gone = pool.submit(ask("payments", 0, timeout_ms=turn_ms + 50))
    behind = pool.submit(ask("payments", 1, timeout_ms=60_000))
    work_all(pool)
    clock.time_ms += turn_ms + 51
    last = pool.submit(ask("payments", 2, timeout_ms=0))
    work_all(pool)
    assert failed(gone).error is FetchErrorCode.REQUEST_TIMED_OUT
    throttle_ms = failed(last).throttle_ms
    clock.time_ms += 60_000 - turn_ms - 51
    work_all(pool)
    # It was taken late, and counts from 10 ms before.
    assert throttle_ms == pytest.approx(fetched(behind).read_bytes / 10 - 10, abs=1), "what was not read is not owed"


def test_fetches_over_max_pending_are_refused_and_waiting_ones_unaffected(
    source: RecordSource, archive: Archive
) -> None:
    clock = VirtualClock(0)
    pool = make_pool(source, clock, max_pending=3)
    accepted = [pool.submit(ask(*place)) for place in PLACES[:3]]
    refused = failed(pool.submit(ask(*PLACES[3])))
    assert refused.error is FetchErrorCode.UNKNOWN_SERVER_ERROR
    assert refused.message.startswith("3 fetches are waiting (remote.log.reader.max.pending.tasks)")
    work_all(pool)
    assert all(fetched(each).records for each in accepted)
    assert pool.pending_count == 0
    again = pool.submit(ask(*PLACES[3]))
    work_all(pool)
    assert fetched(again).records


def test_failed_attempts_are_repeated_after_pauses_until_the_timeout(source: RecordSource, archive: Archive) -> None:
    down = archive.segment_ids("payments", 0)

    def before_read(segment_id: str) -> None:
        if segment_id in down:
            raise RetriableError("the store said 503")

    archive.before_read = before_read
    clock = VirtualClock(0)
    pool = make_pool(source, clock, threads=1)
    asked = pool.submit(ask("payments", 0, timeout_ms=1_000))
    pauses = []
    while not asked.done():
        wait_ms = work_all(pool)
        assert (pool.running_count, pool.pending_count) == (0, 0 if asked.done() else 1)
        other = pool.submit(ask("orders", 0))
        work_all(pool)
        assert fetched(other).records, "others are read for in the pause"
        if wait_ms is not None and not asked.done():
            pauses.append(wait_ms)
            clock.time_ms += wait_ms
    assert pauses == [100, 200, 400, 300]
    refused = failed(asked)
    assert refused.error is FetchErrorCode.REQUEST_TIMED_OUT
    assert refused.message.endswith("within 1000 ms; 5 attempts failed, the last one: the store said 503")
    # The archive answers again.
    asked = pool.submit(ask("payments", 0))
    work_all(pool)
    down.clear()
    clock.time_ms += 100
    work_all(pool)
    assert fetched(asked).records
    assert clock.waits == []


def test_bytes_of_a_failed_read_return_to_the_quota(source: RecordSource, archive: Archive) -> None:
    def before_read(segment_id: str) -> None:
        if len(archive.reads) == 1:
            raise RetriableError("the store said 503")

    archive.before_read = before_read
    clock = VirtualClock(0)
    pool = make_pool(source, clock, quota=10_000)
    asked = pool.submit(ask("payments", 0))
    work_all(pool)
    other = pool.submit(ask("orders", 0, timeout_ms=0))
    work_all(pool)
    assert fetched(other).records
    clock.time_ms += 100
    work_all(pool)
    assert failed(asked).error is FetchErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.fixture
def stalled(archive: Archive) -> Iterator[threading.Event]:
    """Reads of payments-0 return only when the event is set."""
    released, hanging = threading.Event(), archive.segment_ids("payments", 0)

    def before_read(segment_id: str) -> None:
        if segment_id in hanging:
            released.wait()

    archive.before_read = before_read
    yield released
    released.set()


def test_partition_that_hangs_occupies_one_worker_and_every_fetch_is_answered_in_time(
    source: RecordSource, archive: Archive, stalled: threading.Event
) -> None:
    clock = VirtualClock(0)
    with make_pool(source, clock, threads=2) as pool:
        hanging = [pool.submit(ask("payments", 0, offset, timeout_ms=5_000)) for offset in (0, 10, 20)]
        for place in PLACES * 20:
            if place != ("payments", 0):
                answer = pool.submit(ask(*place, timeout_ms=60_000)).result(timeout=60)
                assert isinstance(answer, FetchedRecords), "others go on"
        assert not any(each.done() for each in hanging)
        assert (pool.running_count, pool.pending_count) == (1, 2)
        clock.time_ms += 5_001
        pool.keep_time()
        for each in hanging:
            assert failed(each).error is FetchErrorCode.REQUEST_TIMED_OUT
        assert pool.running_count == 1
        late = pool.submit(ask("payments", 0, timeout_ms=60_000))
        stalled.set()
        answer = late.result(timeout=60)
        assert isinstance(answer, FetchedRecords), "when the archive is back"
        assert answer.records[0].offset == 0


def test_kept_rows_are_returned_without_waiting_for_other_reads(
    source: RecordSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released, batches = threading.Event(), threading.Event(), ArchivedLogs.batches

    def read(logs: ArchivedLogs, *place: Any) -> Any:
        begun.set()
        released.wait()
        return batches(logs, *place)

    with make_pool(source, VirtualClock(0), threads=2) as pool:
        first = pool.submit(ask("orders", 0, timeout_ms=60_000)).result(timeout=60)
        monkeypatch.setattr(ArchivedLogs, "batches", read)
        try:
            hanging = pool.submit(ask("payments", 0, timeout_ms=60_000))
            assert begun.wait(timeout=60)
            assert pool.submit(ask("orders", 0, timeout_ms=60_000)).result(timeout=20) == first
            assert not hanging.done()
        finally:
            released.set()
        assert isinstance(hanging.result(timeout=60), FetchedRecords)


def test_threads_answer_every_fetch(source: RecordSource, archive: Archive) -> None:
    with make_pool(source, VirtualClock(0), threads=4) as pool:
        futures = [
            (place, offset, pool.submit(ask(*place, offset, timeout_ms=60_000)))
            for offset in (0, 7, 100, 350)
            for place in PLACES
        ]
        for place, offset, future in futures:
            answer = future.result(timeout=60)
            assert isinstance(answer, FetchedRecords), str(answer)
            alone = pool.fetch_records(ask(*place, offset, timeout_ms=60_000))
            assert alone == answer
        assert (pool.running_count, pool.pending_count) == (0, 0)


def test_closed_pool_answers_waiting_fetches_and_refuses_new_ones(
    source: RecordSource, stalled: threading.Event
) -> None:
    pool = make_pool(source, VirtualClock(0), threads=1)
    pool.start()
    waiting = [pool.submit(ask("payments", 0)), pool.submit(ask("orders", 0))]
    pool.close()
    for each in (*waiting[:1], pool.submit(ask("orders", 0))):
        assert failed(each).message == "the pool is closed"
    assert waiting[1].result(timeout=60) is not None


def test_unexpected_exception_reaches_the_caller(source: RecordSource, archive: Archive) -> None:
    def before_read(segment_id: str) -> None:
        raise ZeroDivisionError(segment_id)

    archive.before_read = before_read
    pool = make_pool(source, VirtualClock(0))
    asked = pool.submit(ask("orders", 0))
    work_all(pool)
    with pytest.raises(ZeroDivisionError):
        asked.result(timeout=0)
    assert (pool.running_count, pool.pending_count) == (0, 0)
    with pytest.raises(UsageError, match="a pool needs at least 1 thread"):
        PoolOptions(threads=0)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(PLACES), st.integers(0, 300), st.integers(0, 4_000)),
        st.integers(1, 900),
    ),
    max_size=40,
)


@dataclass(slots=True)
class Askers:
    """The callers of a pool; checks the invariants after every step."""

    pool: FetchPool
    clock: VirtualClock
    under_way: list[tuple[FetchRequest, int, Future[FetchAnswer]]] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    """When bytes came, and how many."""

    def ask(self, request: FetchRequest) -> None:
        self.under_way.append((request, self.clock.time_ms, self.pool.submit(request)))
        self.look()

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass; a worker asks every 10 ms."""
        for _ in range(0, duration_ms, 10):
            self.clock.time_ms += 10
            self.look()

    def look(self) -> None:
        work_all(self.pool)
        assert self.pool.running_count == 0
        self.under_way = [each for each in self.under_way if not self._has_answer(*each)]
        assert self.pool.pending_count == len(self.under_way)

    def _has_answer(self, request: FetchRequest, begun_ms: int, future: Future[FetchAnswer]) -> bool:
        left_ms = begun_ms + request.timeout_ms - self.clock.time_ms
        if not future.done():
            assert left_ms >= 0, "late"
            return False
        answer = future.result(timeout=0)
        if isinstance(answer, FetchedRecords):
            assert answer.next_offset > request.offset
            self.reads.append((self.clock.time_ms, answer.read_bytes))
        elif answer.error is FetchErrorCode.THROTTLING_QUOTA_EXCEEDED:
            assert answer.throttle_ms > left_ms
        else:
            assert answer.error in (FetchErrorCode.REQUEST_TIMED_OUT, FetchErrorCode.UNKNOWN_SERVER_ERROR)
        return True


@given(actions=ACTIONS, quota=st.integers(5_000, 60_000), failing=st.randoms(use_true_random=False))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_quota_is_kept_and_every_fetch_is_answered_in_time_whatever_fails(
    source: RecordSource, archive: Archive, actions: list[Any], quota: int, failing: random.Random
) -> None:
    """A number in the steps is time that passes."""

    def before_read(_: str) -> None:
        if failing.random() < 0.3:
            raise RetriableError("the store said 503")

    archive.before_read = before_read
    clock = VirtualClock(0)
    askers = Askers(make_pool(source, clock, quota=quota, max_pending=8), clock)
    for action in [*actions, 5_000]:
        if isinstance(action, int):
            askers.pass_time(action)
        else:
            (topic, partition), offset, timeout_ms = action
            askers.ask(ask(topic, partition, offset, max_bytes=8_000, timeout_ms=timeout_ms))
    assert askers.under_way == []
    # A fetch has 8,000 bytes or one batch; a turn is up to 10 ms late, and the next one in time.
    if askers.reads:
        most = max(size for _, size in askers.reads)
        assert most_over_quota(askers.reads, quota) <= most + quota // 100 + 1
    assert clock.waits == []
