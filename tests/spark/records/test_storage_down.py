"""Test a bucket whose server stops, stalls or fails at random: fetches report it and continue."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack
from pathlib import Path

import pytest

from coldlog.archive.stores.s3_client import close_clients
from coldlog.fetcher import RecordFetcher
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest
from coldlog.records.fetch.fetch_pool import FetchPool
from coldlog.records.fetch.opened_source import open_source
from coldlog.records.fetch.pool_fetch import PoolOptions
from coldlog.runtime.settings_sources import load_settings
from fetching import as_truth, fetch_all, of_truth, true_records
from servers.s3_proxy import Fault, Request, S3Proxy, running_proxy
from servers.s3_server import Bucket, running_moto
from virtual_clock import VirtualClock


class Hooked(VirtualClock):
    """Calls `then` after each wait."""

    then: Callable[[int], None]

    def wait_ms(self, duration_ms: int) -> None:
        VirtualClock.wait_ms(self, duration_ms)
        self.then(len(self.waits))


def settings(golden_uri: str, uri: str) -> list[str]:
    return [f"warehouse.uri={golden_uri}", f"archive.uri={uri}", "s3.read_timeout_ms=300"]


def put(bucket: Bucket, archive: Path, *partitions: str) -> str:
    for partition in partitions:
        for folder in archive.glob(f"*/{partition}-*"):
            bucket.put_directory(folder, f"archive/{folder.relative_to(archive)}")
    return bucket.uri("archive")


def test_fetches_continue_when_a_stopped_server_is_started_again(
    golden_uri: str, golden_archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        (tmp_path / "first").mkdir()
        (tmp_path / "second").mkdir()
        server = first.enter_context(running_moto(tmp_path / "first"))
        proxy = stack.enter_context(running_proxy(server.endpoint))
        stack.callback(close_clients)
        for name, value in server.environment(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        bucket = server.make_bucket()
        uri = put(bucket, golden_archive, "orders-0")
        clock = Hooked()
        clock.then = lambda _: None
        source = open_source(load_settings("local", settings(golden_uri, uri)))
        fetcher = stack.enter_context(RecordFetcher(source, clock=clock, chance=lambda: 0.5))
        assert isinstance(fetcher.fetch_records("orders", 0, 0), FetchedRecords)

        first.close()
        refused = fetcher.fetch_records("orders", 0, 0, timeout_ms=5_000)
        assert isinstance(refused, FetchFailure)
        assert refused.error is FetchErrorCode.REQUEST_TIMED_OUT
        assert "no answer within 5000 ms; 9 attempts failed, the last one: " in refused.message
        assert uri in refused.message

        def start(wait_count: int) -> None:
            if wait_count == 3:
                started = stack.enter_context(running_moto(tmp_path / "second"))
                again = Bucket(server=started, name=bucket.name, client=started.client())
                again.client.create_bucket(
                    Bucket=again.name, CreateBucketConfiguration={"LocationConstraint": "eu-north-1"}
                )
                put(again, golden_archive, "orders-0")
                proxy.upstream = started.endpoint

        clock.waits.clear()
        clock.then = start
        walk = fetch_all(fetcher, "orders", 0, 0, 100_000)
        assert len(clock.waits) == 3, "it continues by itself"
        truths = true_records("orders", 0)
        assert as_truth(walk.records, truths) == of_truth(truths)


@pytest.fixture
def pool_source(golden_uri: str, golden_archive: Path, bucket: Bucket) -> Iterator[Callable[[VirtualClock], FetchPool]]:
    """Make pools over the sample's orders-0 and payments-1 in a bucket."""
    uri = put(bucket, golden_archive, "orders-0", "payments-1")
    source = open_source(load_settings("local", settings(golden_uri, uri)))
    yield lambda clock: FetchPool(source, PoolOptions(threads=2), clock, chance=lambda: 0.5)
    source.close()


def is_of_orders(request: Request) -> bool:
    return "/orders-0-" in request.path


def ask(topic: str, partition: int, offset: int = 0, timeout_ms: int = 10_000) -> FetchRequest:
    return FetchRequest(topic=topic, partition=partition, offset=offset, max_bytes=50_000, timeout_ms=timeout_ms)


def work_all(pool: FetchPool) -> int | None:
    while True:
        wait_ms = pool.keep_time()
        if not pool.work():
            return wait_ms


def test_stalling_server_is_asked_again_and_affects_no_other_partition(
    pool_source: Callable[[VirtualClock], FetchPool], s3_proxy: S3Proxy
) -> None:
    clock = VirtualClock(0)
    s3_proxy.strikes = is_of_orders
    s3_proxy.faults = [Fault(hangs=True)] * 3
    with pool_source(clock) as pool:
        stalled = pool.submit(ask("orders", 0))
        for offset in range(0, 600, 50):
            answer = pool.submit(ask("payments", 1, offset)).result(timeout=60)
            assert isinstance(answer, FetchedRecords)
            assert answer.records
        # An attempt ends after s3.read_timeout_ms without data; then the clock ends the pause.
        while not stalled.done():
            wait([stalled], timeout=0.02)
            if pool.running_count == 0:
                clock.time_ms += 100
                pool.keep_time()
        answer = stalled.result(timeout=0)
        assert isinstance(answer, FetchedRecords)
        assert answer.records[0].offset == 0
    assert s3_proxy.faults == []
    assert sum(is_of_orders(each) for each in s3_proxy.requests) == 4


def test_random_errors_cost_time_and_no_record(
    pool_source: Callable[[VirtualClock], FetchPool], s3_proxy: S3Proxy
) -> None:
    chance = random.Random(4)
    kinds = [
        Fault(status=503, code="SlowDown"), Fault(status=500, code="InternalError"), Fault(body_bytes=100),
        Fault(is_reset=True), Fault(status=429),
    ]  # fmt: skip
    s3_proxy.faults = chance.choices(kinds, k=10_000)
    s3_proxy.strikes = lambda request: is_of_orders(request) and chance.random() < 0.5
    clock = VirtualClock(0)
    pool = pool_source(clock)
    walked: dict[str, list[object]] = {"orders": [], "payments": []}
    offsets, timed_out = {("orders", 0): 0, ("payments", 1): 0}, 0
    ends = {("orders", 0): 3_953, ("payments", 1): 918}
    for _ in range(200):
        futures = {place: pool.submit(ask(*place, offset)) for place, offset in offsets.items() if offset < ends[place]}
        begun_ms = clock.time_ms
        while not all(each.done() for each in futures.values()):
            clock.time_ms += work_all(pool) or 0
        for place, future in futures.items():
            answer = future.result(timeout=0)
            if isinstance(answer, FetchFailure):
                assert (answer.error, place[0]) == (FetchErrorCode.REQUEST_TIMED_OUT, "orders")
                timed_out += 1
                continue
            walked[place[0]] += answer.records
            offsets[place] = answer.next_offset
        if len(futures) == 1 and ("payments", 1) in futures:
            assert clock.time_ms == begun_ms
    assert offsets == ends
    assert [each.offset for each in walked["orders"]] == [each["o"] for each in true_records("orders", 0)]  # type: ignore[attr-defined]
    assert [each.offset for each in walked["payments"]] == [each["o"] for each in true_records("payments", 1)]  # type: ignore[attr-defined]
    assert clock.time_ms > 1_000
    assert len(s3_proxy.faults) < 9_990
