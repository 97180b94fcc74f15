"""fetch_pool: who reads for many askers at once, within a quota, and ends each fetch in time?

    with FetchPool(source, PoolOptions(quota=...), SystemClock()) as pool:
        answer = pool.fetch_records(FetchRequest(topic="orders", partition=0, offset=2592))

As Kafka's reader of the remote tier: a few workers (`remote.log.reader.threads`), a bound on the fetches that wait
(`remote.log.reader.max.pending.tasks`; beyond it UNKNOWN_SERVER_ERROR), and the read quota (`FetchQueue`). A fetch is
planned from the tables, so that its bytes are known; then it is offered to the queue: one whose turn would come too
late is answered THROTTLING_QUOTA_EXCEEDED at once, with the time to stay away. An attempt that failed is made again
after a pause that grows, until the fetch's time is over: REQUEST_TIMED_OUT.

A worker never waits: not for a turn, not for a pause, not for another read. The keeper of the time, a thread that reads
nothing, brings back what is due and answers those whose time is over, though a worker may still hang in their read.
One read of a partition runs at a time, so that a partition whose archive hangs takes one worker and no more.

Time comes from the clock that is passed in. Without threads (`start` was not called), `keep_time` and `work` do what is
due in the caller's thread.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

from coldlog.errors import RetriableError, UsageError
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest
from coldlog.records.fetch.backoff import Backoff
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.fetch.timed_out import timed_out
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.fetch_quota import FetchQueue, Throttled
from coldlog.tiering.rules.quota_config import QuotaConfig

_Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Defaults are Kafka's."""

    quota: QuotaConfig = field(default_factory=QuotaConfig)
    threads: int = 10
    max_pending: int = 100
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.threads < 1 or self.max_pending < 1:
            raise UsageError(f"a pool needs a thread and room for a fetch: {self.threads}, {self.max_pending}")


@dataclass(slots=True, eq=False, kw_only=True)
class _Fetch:
    """A fetch under way; `future` is None when it is over, `log_slice` and `accepted_bytes` are there while the queue
    counts it."""

    request: FetchRequest
    deadline_ms: int
    future: Future[FetchAnswer] | None
    log_slice: LogSlice | None = None
    accepted_bytes: int = 0
    failures: int = 0
    failed: RetriableError | None = None
    is_running: bool = False

    @property
    def is_over(self) -> bool:
        return self.future is None

    @property
    def place(self) -> _Place:
        return self.request.topic, self.request.partition


_Outcome = LogSlice | FetchAnswer | Exception
"""Of a piece of work: what is to be read, the answer, or why there is none."""


class FetchPool:
    """Workers over one source; for all threads of a process."""

    def __init__(
        self,
        source: RecordSource,
        options: PoolOptions,
        clock: Clock,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._source = source
        self._options = options
        self._clock = clock
        self._chance = chance
        self._queue: FetchQueue[_Fetch] = FetchQueue(options.quota, clock)
        self._ready: deque[_Fetch] = deque()
        self._pauses: list[tuple[int, int, _Fetch]] = []
        self._deadlines: list[tuple[int, int, _Fetch]] = []
        self._busy: set[_Place] = set()
        self._behind: dict[_Place, deque[_Fetch]] = {}
        self._answers: deque[tuple[Future[FetchAnswer], FetchAnswer | Exception]] = deque()
        self._number = 0
        self._pending_count = 0
        self._running_count = 0
        self._is_closed = False
        self._lock = threading.RLock()
        self._has_work = threading.Condition(self._lock)
        self._has_dates = threading.Condition(self._lock)

    @property
    def pending_count(self) -> int:
        """Fetches that wait: for a worker, a turn, or the end of a pause."""
        return self._pending_count

    @property
    def running_count(self) -> int:
        """Workers that are planning or reading."""
        return self._running_count

    def submit(self, request: FetchRequest) -> Future[FetchAnswer]:
        """The answer comes in time; it is an error of coldlog, or of the caller, where the future has an exception."""
        with self._lock:
            future: Future[FetchAnswer] = Future()
            future.set_running_or_notify_cancel()
            deadline_ms = self._clock.monotonic_ms() + request.timeout_ms
            fetch = _Fetch(request=request, deadline_ms=deadline_ms, future=future)
            self._pending_count += 1
            if self._is_closed or self._pending_count > self._options.max_pending:
                why = "the pool is closed" if self._is_closed else _full(self._options)
                self._finish(fetch, FetchFailure(error=FetchErrorCode.UNKNOWN_SERVER_ERROR, message=why))
            else:
                heapq.heappush(self._deadlines, (fetch.deadline_ms, self._next_number(), fetch))
                self._make_ready(fetch)
                self._has_dates.notify()
        self._tell()
        return future

    def fetch_records(self, request: FetchRequest) -> FetchAnswer:
        """The answer, in time; where the pool has threads."""
        return self.submit(request).result()

    def keep_time(self) -> int | None:
        """Answers those whose time is over and brings back what is due; then how many ms until something is (None: not
        before something else happens)."""
        with self._lock:
            wait_ms = self._bring_due()
        self._tell()
        return wait_ms

    def work(self) -> bool:
        """Does one piece of work, if there is one."""
        with self._lock:
            fetch = self._take()
            if fetch is None:
                return False
            self._running_count += 1
            self._pending_count -= 1
            fetch.is_running = True
            self._busy.add(fetch.place)
            if self._ready or self._queue.next_turn_ms() == 0:
                self._has_work.notify()
            self._has_dates.notify()
        outcome = self._attempt(fetch)
        with self._lock:
            self._leave(fetch)
            self._settle(fetch, _read_bytes(fetch.log_slice, outcome))
            if not fetch.is_over:
                self._follow(fetch, outcome)
        self._tell()
        return True

    def start(self) -> None:
        """Starts workers and the keeper of the time; they end with the process, or behind `close`."""
        for number in range(self._options.threads):
            threading.Thread(target=self._work_on, name=f"coldlog-reader-{number}", daemon=True).start()
        threading.Thread(target=self._keep_time_on, name="coldlog-reader-time", daemon=True).start()

    def close(self) -> None:
        """Answers all that is under way, and lets the threads end; a read that hangs is not waited for."""
        with self._lock:
            self._is_closed = True
            for _, _, fetch in self._deadlines:
                if not fetch.is_over:
                    closed = FetchFailure(error=FetchErrorCode.UNKNOWN_SERVER_ERROR, message="the pool is closed")
                    self._finish(fetch, closed)
            self._has_work.notify_all()
            self._has_dates.notify_all()
        self._tell()

    def __enter__(self) -> FetchPool:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> _Fetch | None:
        """The next fetch that a worker can do something for: reads whose turn has come go before new fetches, which are
        offered when those that are not made any more are given back."""
        while (taken := self._queue.take()) is not None:
            fetch = taken.read
            if taken.is_stale or fetch.is_over:
                self._settle(fetch, 0, is_settled=taken.is_stale)
                self._finish(fetch, timed_out(fetch.request, fetch.failures, fetch.failed))
            elif self._is_free(fetch):
                return fetch
        while self._ready:
            fetch = self._ready.popleft()
            if self._is_free(fetch):
                return fetch
        return None

    def _is_free(self, fetch: _Fetch) -> bool:
        """It may run now; if another one of its partition does, it stands behind that."""
        if fetch.is_over:
            self._settle(fetch, 0)
            return False
        if fetch.place in self._busy:
            behind = self._behind.setdefault(fetch.place, deque())
            while behind and behind[0].is_over:
                self._settle(behind.popleft(), 0)
            behind.append(fetch)
            return False
        return True

    def _attempt(self, fetch: _Fetch) -> _Outcome:
        """The next step of a fetch, outside the lock."""
        try:
            return self._source.plan(fetch.request) if fetch.log_slice is None else self._source.read(fetch.log_slice)
        except Exception as error:  # noqa: BLE001 - whatever it is, the asker has to be told
            return error

    def _follow(self, fetch: _Fetch, outcome: _Outcome) -> None:
        if isinstance(outcome, LogSlice):
            self._offer(fetch, outcome)
        elif isinstance(outcome, RetriableError):
            self._pause(fetch, outcome)
        else:
            self._finish(fetch, outcome)

    def _leave(self, fetch: _Fetch) -> None:
        """The worker is free again, and so is the partition."""
        self._running_count -= 1
        fetch.is_running = False
        if not fetch.is_over:
            self._pending_count += 1
        self._busy.discard(fetch.place)
        behind = self._behind.pop(fetch.place, None)
        if behind:
            self._ready.extendleft(reversed(behind))
            self._has_work.notify()

    def _offer(self, fetch: _Fetch, planned: LogSlice) -> None:
        """A read whose bytes are known now."""
        left_ms = max(0, fetch.deadline_ms - self._clock.monotonic_ms())
        told = self._queue.offer(fetch, size_bytes=planned.size_bytes, timeout_ms=left_ms)
        if isinstance(told, Throttled):
            self._finish(fetch, _throttled(fetch.request, told, left_ms))
            return
        fetch.log_slice, fetch.accepted_bytes = planned, planned.size_bytes
        self._has_work.notify()
        self._has_dates.notify()

    def _pause(self, fetch: _Fetch, failed: RetriableError) -> None:
        """Until the attempt is made again; the last one is made when the time is over."""
        fetch.failures, fetch.failed = fetch.failures + 1, failed
        now_ms = self._clock.monotonic_ms()
        if now_ms >= fetch.deadline_ms:
            self._finish(fetch, timed_out(fetch.request, fetch.failures, failed))
            return
        pause_ms = self._options.backoff.pause_ms(fetch.failures, self._chance())
        due_ms = min(fetch.deadline_ms, now_ms + pause_ms)
        heapq.heappush(self._pauses, (due_ms, self._next_number(), fetch))
        self._has_dates.notify()

    def _settle(self, fetch: _Fetch, fetched_bytes: int, *, is_settled: bool = False) -> None:
        """The queue counts what was read for what was accepted."""
        if fetch.log_slice is not None and not is_settled:
            self._queue.settle(accepted_bytes=fetch.accepted_bytes, fetched_bytes=fetched_bytes)
        fetch.log_slice, fetch.accepted_bytes = None, 0

    def _finish(self, fetch: _Fetch, answer: FetchAnswer | Exception) -> None:
        """Once; who asked is told outside the lock."""
        if fetch.future is None:
            return
        self._answers.append((fetch.future, answer))
        # It may stay in a heap for a while, and its answer need not.
        fetch.future = None
        if not fetch.is_running:
            self._pending_count -= 1

    def _tell(self) -> None:
        while True:
            try:
                future, answer = self._answers.popleft()
            except IndexError:
                return
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _bring_due(self) -> int | None:
        """As `keep_time`."""
        now_ms = self._clock.monotonic_ms()
        while self._pauses and self._pauses[0][0] <= now_ms:
            self._make_ready(heapq.heappop(self._pauses)[2])
        while self._deadlines and (self._deadlines[0][2].is_over or self._deadlines[0][0] < now_ms):
            fetch = heapq.heappop(self._deadlines)[2]
            self._finish(fetch, timed_out(fetch.request, fetch.failures, fetch.failed))
        dates = [self._pauses[0][0]] if self._pauses else []
        dates += [self._deadlines[0][0] + 1] if self._deadlines else []
        turn_ms = self._queue.next_turn_ms()
        if turn_ms == 0:
            self._has_work.notify()
        elif turn_ms is not None:
            dates.append(now_ms + turn_ms)
        return max(1, min(dates) - now_ms) if dates else None

    def _make_ready(self, fetch: _Fetch) -> None:
        if not fetch.is_over:
            self._ready.append(fetch)
            self._has_work.notify()

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _work_on(self) -> None:
        while True:
            if self.work():
                continue
            with self._lock:
                if self._is_closed:
                    return
                if not self._ready and self._queue.next_turn_ms() != 0:
                    self._has_work.wait()

    def _keep_time_on(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
                wait_ms = self._bring_due()
                if not self._answers:
                    self._has_dates.wait(None if wait_ms is None else wait_ms / 1000)
            self._tell()


def _read_bytes(log_slice: LogSlice | None, outcome: _Outcome) -> int:
    """What the archive was read for; a damaged batch was read too."""
    if isinstance(outcome, FetchedRecords):
        return outcome.read_bytes
    is_damaged = isinstance(outcome, FetchFailure) and outcome.error is FetchErrorCode.CORRUPT_MESSAGE
    return log_slice.size_bytes if is_damaged and log_slice is not None else 0


def _throttled(request: FetchRequest, told: Throttled, left_ms: int) -> FetchFailure:
    return FetchFailure(
        error=FetchErrorCode.THROTTLING_QUOTA_EXCEEDED,
        message=f"{request}: the read quota (remote.log.manager.fetch.max.bytes.per.second) is used up for "
        f"{told.throttle_ms} ms, longer than the {left_ms} ms that are left; ask again after that",
        throttle_ms=told.throttle_ms,
    )


def _full(options: PoolOptions) -> str:
    return (
        f"{options.max_pending} fetches wait already (remote.log.reader.max.pending.tasks), and "
        f"{options.threads} workers read (remote.log.reader.threads); ask again later"
    )
