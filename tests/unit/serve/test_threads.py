"""Test what the pools of an endpoint say of themselves, which its metrics show."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing

import pytest

from coldlog.serve.threads import QueueFullError, Threads


def test_waiting_calls_idle_threads_and_late_calls_are_counted() -> None:
    begun, done = threading.Semaphore(0), threading.Event()

    def hold() -> int:
        begun.release()
        done.wait()
        return 7

    async def run(threads: Threads) -> None:
        began_s = time.monotonic()
        assert (threads.waiting, threads.idle_share, threads.expired) == (0, 1, 0)
        asked = [asyncio.create_task(threads.run(hold, 3600)) for _ in range(5)]
        await asyncio.sleep(0)
        for _ in range(2):
            begun.acquire()
        assert (threads.waiting, threads.idle_share) == (3, 0)
        with pytest.raises(TimeoutError):
            await threads.run(hold, 0)
        assert (threads.waiting, threads.expired) == (3, 1), "a call that has not begun in time never does"
        assert (threads.count, threads.busy_seconds) == (2, 0)
        done.set()
        assert await asyncio.gather(*asked) == [7] * 5
        assert (threads.waiting, threads.expired) == (0, 1)
        assert 0 < threads.busy_seconds < 2 * (time.monotonic() - began_s), "of both threads"

    with closing(Threads("test", 2)) as threads:
        asyncio.run(run(threads))


def test_calls_above_the_bound_of_the_queue_are_refused_until_there_is_room() -> None:
    begun, done = threading.Semaphore(0), threading.Event()

    def hold() -> int:
        begun.release()
        done.wait()
        return 7

    async def run(threads: Threads) -> None:
        asked = [asyncio.create_task(threads.run(hold, 3600))]
        await asyncio.sleep(0)
        begun.acquire()
        asked += [asyncio.create_task(threads.run(hold, 3600)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await threads.run(hold, 3600)
        assert (threads.waiting, threads.refused, threads.expired) == (2, 1, 0)
        threads.resize(1, 3)
        asked.append(asyncio.create_task(threads.run(hold, 3600)))
        await asyncio.sleep(0)
        assert (threads.waiting, threads.refused) == (3, 1)
        threads.resize(3, 3)
        for _ in range(2):
            begun.acquire()  # Two more threads have begun.
        done.set()
        assert await asyncio.gather(*asked) == [7] * 4

    with closing(Threads("test", 1, 2)) as threads:
        asyncio.run(run(threads))
