"""Run fetches of many callers in a few worker threads, within a read quota, and end each fetch in time.

    with FetchPool(source, PoolOptions(quota=...), SystemClock()) as pool:
        answer = pool.fetch_records(FetchRequest(topic="orders", partition=0, offset=2592))

This works as Kafka's reader of the remote tier: a few workers (`remote.log.reader.threads`), a limit of waiting fetches
(`remote.log.reader.max.pending.tasks`; beyond it UNKNOWN_SERVER_ERROR), and the read quota (`FetchQueue`). A fetch is
first planned from the tables, so that its bytes are known. Then it is offered to the queue. If its turn would come too
late, it is answered THROTTLING_QUOTA_EXCEEDED at once, with the time after which to try again. A failed attempt is
repeated after a pause that grows, until the fetch's timeout: REQUEST_TIMED_OUT.

A worker never waits: not for a turn, a pause or another read. The timekeeper, a thread that reads nothing, makes due
fetches ready and answers those whose timeout is over, also while a worker hangs in their read. Only one read of a
partition runs at a time, so that a partition whose archive hangs occupies only one worker.

No thread ends by an error. An error of one fetch, of whatever type, is that fetch's answer. An error outside of all
fetches, such as that of a clock, is the answer of every fetch in progress; the next ones are tried as before.

The clock is passed in. Without threads (`start` was not called), `keep_time` and `work` do what is due in the caller's
thread.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from coldlog.errors import RetriableError
from coldlog.model.fetch import DEFAULT_MAX_WAIT_MS, FetchAnswer, FetchRequest
from coldlog.records.fetch.pool_fetch import Outcome, Place, PoolAnswers, PoolFetch, PoolOptions, read_bytes
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.refused_fetches import closed, full, throttled, timed_out
from coldlog.records.fetch.slices import LogSlice
from coldlog.runtime.opened_here import OpenedHere
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.fetch_quota import FetchQueue, SharedReads, Throttled
from coldlog.tiering.rules.throttled_reads import ThrottledReads

_AFTER_ERROR_S = 0.1
_LONGEST_WAIT_MS = 3_600_000
"""A thread can wait only for a limited time; it then looks again."""


class FetchPool:
    """Workers that read from one source. All threads of a process may use it."""

    def __init__(
        self,
        source: RecordSource,
        options: PoolOptions,
        clock: Clock,
        *,
        allowances: SharedReads | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._source = source
        self._options = options
        self._clock = clock
        self._chance = chance
        self._queue: FetchQueue[PoolFetch] = FetchQueue(options.quota, clock, allowances)
        self._ready: deque[PoolFetch] = deque()
        self._pauses: list[tuple[int, int, PoolFetch]] = []
        self._deadlines: list[tuple[int, int, PoolFetch]] = []
        self._busy: set[Place] = set()
        self._waiting: dict[Place, deque[PoolFetch]] = {}
        self._answers = PoolAnswers()
        self._number = 0
        self._pending_count = 0
        self._running_count = 0
        self._worker_count = 0
        self._is_started = self._is_closed = False
        self.throttled: dict[str, ThrottledReads] = {}
        """By topic, the fetches that waited for the quota, or were told to ask again later."""
        self._opened = OpenedHere("the pool")
        self._lock = threading.RLock()
        self._has_work = threading.Condition(self._lock)
        self._has_dates = threading.Condition(self._lock)

    @property
    def pending_count(self) -> int:
        """Return how many fetches wait for a worker, a turn, or the end of a pause."""
        return self._pending_count

    @property
    def running_count(self) -> int:
        """Return how many workers plan or read."""
        return self._running_count

    def submit(self, request: FetchRequest, max_wait_ms: int | None = None) -> Future[FetchAnswer]:
        """Start a fetch. The future gets the answer in time, or an exception for an error of coldlog or the caller.

        A fetch that the quota allows after `max_wait_ms` (default: its timeout) is throttled.
        """
        self._opened.check()  # first: in a forked process the lock may be held for ever
        place = request.topic, request.partition
        hash(place)  # a TypeError is the caller's
        with self._lock:
            future: Future[FetchAnswer] = Future()
            future.set_running_or_notify_cancel()
            now_ms = self._clock.monotonic_ms()
            longest_ms = request.timeout_ms if max_wait_ms is None else min(max_wait_ms, request.timeout_ms)
            fetch = PoolFetch(
                request=request,
                place=place,
                deadline_ms=now_ms + request.timeout_ms,
                turn_by_ms=now_ms + longest_ms,
                future=future,
            )
            self._pending_count += 1
            if self._is_closed or self._pending_count > self._options.max_pending:
                options = self._options
                self._finish(fetch, closed() if self._is_closed else full(options.max_pending, options.threads))
            else:
                heapq.heappush(self._deadlines, (fetch.deadline_ms, self._next_number(), fetch))
                self._make_ready(fetch)
                self._has_dates.notify()
        self._answers.deliver()
        return future

    def fetch_records(self, request: FetchRequest) -> FetchAnswer:
        """Fetch and wait for the answer; the pool must have threads."""
        return self.submit(request).result()

    def fetch_many(self, requests: Sequence[FetchRequest], max_wait_ms: int = DEFAULT_MAX_WAIT_MS) -> list[FetchAnswer]:
        """Fetch of several partitions and wait for all answers, which are in the order of the requests; the pool must
        have threads.

        As in Kafka's Fetch, nobody waits longer than `max_wait_ms` for the quota: fetches over it are answered
        THROTTLING_QUOTA_EXCEEDED with their throttle time, and the others get their records.
        """
        futures = [self.submit(request, max_wait_ms) for request in requests]
        return [future.result() for future in futures]

    def keep_time(self) -> int | None:
        """Answer the fetches that timed out and make due ones ready. Return the ms until the next is due; None: nothing
        is due before something else happens."""
        with self._lock:
            wait_ms = self._bring_due()
        self._answers.deliver()
        return wait_ms

    def work(self) -> bool:
        """Do one piece of work. Return False if there is none."""
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
            self._settle(fetch, read_bytes(fetch.log_slice, outcome))
            try:
                if not fetch.is_over:
                    self._follow(fetch, outcome)
            except BaseException as failed:  # noqa: BLE001 - the caller gets it, whatever it is
                self._settle(fetch, 0)
                self._finish(fetch, failed)
        self._answers.deliver()
        return True

    def start(self) -> None:
        """Start the workers and the timekeeper. They end with the process, or after `close`."""
        with self._lock:
            self._is_started = True
            self._start_workers()
        self._start_thread("coldlog-reader-time", self._keep_time_on)

    def resize(self, *, threads: int, max_pending: int) -> None:
        """Go on with so many workers, and so many fetches that may wait. What waits or is read already is answered: a
        worker that is too many ends after its read."""
        self._opened.check()
        with self._lock:
            self._options = replace(self._options, threads=threads, max_pending=max_pending)
            if self._is_started and not self._is_closed:
                self._start_workers()
            self._has_work.notify_all()

    def close(self) -> None:
        """Answer all fetches in progress and end the threads. A read that hangs is not waited for."""
        if self._opened.is_forked:
            return
        with self._lock:
            self._is_closed = True
            self._finish_all(closed())
            self._has_work.notify_all()
            self._has_dates.notify_all()
        self._answers.deliver()
        with suppress(RetriableError):
            self._queue.close()

    def __enter__(self) -> FetchPool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_workers(self) -> None:
        while self._worker_count < self._options.threads:
            self._start_thread(f"coldlog-reader-{self._worker_count}", self._work_on)
            self._worker_count += 1

    def _start_thread(self, name: str, step: Callable[[], bool]) -> None:
        threading.Thread(target=self._run_on, args=(step,), name=name, daemon=True).start()

    def _take(self) -> PoolFetch | None:
        """Return the next fetch to work on. Reads whose turn has come are first, then new fetches: so bytes of fetches
        that were given up return to the quota before new ones are offered."""
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

    def _is_free(self, fetch: PoolFetch) -> bool:
        """True if the fetch may run now. If another fetch of its partition runs, it is queued after that one."""
        if fetch.is_over:
            self._settle(fetch, 0)
            return False
        if fetch.place in self._busy:
            waiting = self._waiting.setdefault(fetch.place, deque())
            while waiting and waiting[0].is_over:
                self._settle(waiting.popleft(), 0)
            waiting.append(fetch)
            return False
        return True

    def _attempt(self, fetch: PoolFetch) -> Outcome:
        """Do the next step of a fetch, without holding the lock."""
        try:
            if fetch.log_slice is not None:
                return self._source.read(fetch.log_slice)
            planned = self._source.plan(fetch.request)
            if isinstance(planned, LogSlice):
                fetch.reserved = self._queue.reserve(planned.size_bytes, self._left_ms(fetch))
            return planned
        except BaseException as error:  # noqa: BLE001 - the caller gets it, also a panic of delta-rs
            return error

    def _left_ms(self, fetch: PoolFetch) -> int:
        return max(0, fetch.turn_by_ms - self._clock.monotonic_ms())

    def _follow(self, fetch: PoolFetch, outcome: Outcome) -> None:
        if isinstance(outcome, LogSlice):
            self._offer(fetch, outcome)
        elif isinstance(outcome, RetriableError):
            self._pause(fetch, outcome)
        else:
            self._finish(fetch, outcome)

    def _leave(self, fetch: PoolFetch) -> None:
        """Free the worker and the partition."""
        self._running_count -= 1
        fetch.is_running = False
        if not fetch.is_over:
            self._pending_count += 1
        self._busy.discard(fetch.place)
        waiting = self._waiting.pop(fetch.place, None)
        if waiting:
            self._ready.extendleft(reversed(waiting))
            self._has_work.notify()

    def _offer(self, fetch: PoolFetch, planned: LogSlice) -> None:
        """Offer a read, whose bytes are now known, to the queue."""
        left_ms = self._left_ms(fetch)
        offered = self._queue.offer(fetch, size_bytes=planned.size_bytes, timeout_ms=left_ms, reserved=fetch.reserved)
        throttle_ms = offered.throttle_ms if isinstance(offered, Throttled) else offered.wait_ms
        self.throttled.setdefault(fetch.request.topic, ThrottledReads()).add(throttle_ms)
        if isinstance(offered, Throttled):
            self._finish(fetch, throttled(fetch.request, offered, left_ms))
            return
        fetch.log_slice, fetch.accepted_bytes = planned, planned.size_bytes
        self._has_work.notify()
        self._has_dates.notify()

    def _pause(self, fetch: PoolFetch, failed: RetriableError) -> None:
        """Wait before the attempt is repeated; the last attempt is made at the timeout."""
        fetch.failures, fetch.failed = fetch.failures + 1, failed
        now_ms = self._clock.monotonic_ms()
        if now_ms >= fetch.deadline_ms:
            self._finish(fetch, timed_out(fetch.request, fetch.failures, failed))
            return
        pause_ms = self._options.backoff.pause_ms(fetch.failures, self._chance())
        due_ms = min(fetch.deadline_ms, now_ms + pause_ms)
        heapq.heappush(self._pauses, (due_ms, self._next_number(), fetch))
        self._has_dates.notify()

    def _settle(self, fetch: PoolFetch, fetched_bytes: int, *, is_settled: bool = False) -> None:
        """Correct the quota from the accepted bytes to the bytes that were read."""
        if fetch.log_slice is not None and not is_settled:
            self._queue.settle(accepted_bytes=fetch.accepted_bytes, fetched_bytes=fetched_bytes)
        fetch.log_slice, fetch.accepted_bytes = None, 0

    def _finish_all(self, answer: FetchAnswer | BaseException) -> None:
        """Set the answer of all fetches in progress."""
        for _, _, fetch in self._deadlines:
            self._finish(fetch, answer)
        self._deadlines.clear()
        self._pauses.clear()

    def _finish(self, fetch: PoolFetch, answer: FetchAnswer | BaseException) -> None:
        """Set the answer of a fetch, once. The caller gets it when the lock is released."""
        if fetch.future is None:
            return
        self._answers.add(fetch.future, answer)
        # The fetch may stay in a heap for a while; its answer must not.
        fetch.future = None
        if not fetch.is_running:
            self._pending_count -= 1

    def _bring_due(self) -> int | None:
        """Do the work of `keep_time` while the lock is held."""
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

    def _make_ready(self, fetch: PoolFetch) -> None:
        if not fetch.is_over:
            self._ready.append(fetch)
            self._has_work.notify()

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _run_on(self, step: Callable[[], bool]) -> None:
        """Repeat a step until the pool is closed, whatever the step raises."""
        while True:
            try:
                if step():
                    return
            except BaseException as failed:  # noqa: BLE001 - a thread that ended would leave all callers waiting
                with self._lock:
                    self._finish_all(failed)
                self._answers.deliver()
                time.sleep(_AFTER_ERROR_S)

    def _work_on(self) -> bool:
        """Do a piece of work, or wait for one. Return True if the pool is closed, or has a worker too many."""
        with self._lock:
            if self._worker_count > self._options.threads:
                self._worker_count -= 1
                self._has_work.notify()  # This worker may have been woken up for a piece of work.
                return True
        if self.work():
            return False
        with self._lock:
            is_wanted = not self._is_closed and self._worker_count <= self._options.threads
            if is_wanted and not self._ready and self._queue.next_turn_ms() != 0:
                self._has_work.wait()
            return self._is_closed

    def _keep_time_on(self) -> bool:
        """Do what is due, and wait for what is due next. Return True if the pool is closed."""
        with self._lock:
            if self._is_closed:
                return True
            wait_ms = self._bring_due()
            if not self._answers:
                self._has_dates.wait(None if wait_ms is None else min(wait_ms, _LONGEST_WAIT_MS) / 1000)
        self._answers.deliver()
        return False
