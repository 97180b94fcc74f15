"""Test stores that are down for hours, stall or fail at random: every run reports it, and later runs catch up."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.local_tiered_storage import ROOT_DIRECTORY, SUFFIXES
from coldlog.archive.stores.object_writer import BytesContent
from coldlog.archive.stores.s3_client import close_clients
from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.runtime.settings import S3Settings
from coldlog.tiering.tier_schedule import TierTask
from copying_tier import ORDERS, REQUIRED, Tier, stem_of
from servers.s3_proxy import Fault, Request, S3Proxy, running_proxy
from servers.s3_server import Bucket
from virtual_clock import VirtualClock

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
NOW, HOUR = 1_700_000_000_000, 3_600_000
PAYMENTS = TopicIdPartition(topic="payments", partition=0, topic_id="A" * 22)
ASKS_ONCE = S3Settings(max_attempts=1, first_delay_ms=1)


def segment(first: int, time_ms: int) -> Segment:
    records = tuple(Record(timestamp_ms=time_ms, value=b"v" * 50) for _ in range(10))
    return Segment(batches=(Batch(base_offset=first, records=records),), index_interval_bytes=0)


def write_logs(tier: Tier) -> None:
    """Write three closed segments of orders-0 and payments-0, an hour apart."""
    for topic in ("orders", "payments"):
        write_partition(tier.logs, topic, 0, [segment(n * 10, NOW - (2 - n) * HOUR) for n in range(4)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 40, ("payments", 0): 40})


@dataclass(slots=True)
class Store:
    """A network store that can be stopped and restarted with its objects."""

    bucket: Bucket
    proxy: S3Proxy
    _running: ExitStack = field(default_factory=ExitStack)
    _port: int = 0

    def start(self) -> None:
        self.proxy = self._running.enter_context(running_proxy(self.bucket.server.endpoint, self._port))
        self._port = urlsplit(self.proxy.endpoint).port or 0

    def stop(self) -> None:
        self._running.close()

    def require_sound(self, tier: Tier) -> None:
        """Check that every finished segment has its objects, and that deleted ones have none."""
        keys = self.bucket.keys()
        for partition, segments in tier.segments().items():
            for each in segments:
                stem = f"tier/{ROOT_DIRECTORY}/{stem_of(partition, each)}"
                if each.state is FINISHED:
                    assert {f"{stem}{SUFFIXES[kind]}" for kind in REQUIRED} <= keys
                if each.state is DELETED:
                    assert not [key for key in keys if key.startswith(stem)]


@pytest.fixture
def store(bucket: Bucket, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    found = Store(bucket, s3_proxy)
    found.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", found.proxy.endpoint)
    yield found
    found.proxy.begin()
    close_clients()
    found.stop()


@pytest.fixture
def tier(store: Store, tmp_path: Path) -> Tier:
    found = Tier(root=tmp_path / "tier", uri=store.bucket.uri("tier"), s3=ASKS_ONCE)
    write_logs(found)
    return found


def outcomes_of_copy(tier: Tier) -> dict[str, str]:
    return {each.topic: each.outcome.value for each in tier.copy(tier.schedule("copier")).partitions}


def outcomes_of_expiry(tier: Tier, retention_ms: int) -> dict[str, str]:
    summary = tier.expire(retention_ms, schedule=tier.schedule("expirer"))
    return {each.partition.topic: each.outcome.value for each in summary.partitions}


def both(outcome: str) -> dict[str, str]:
    return {"orders": outcome, "payments": outcome}


def test_store_that_is_down_for_hours_is_retried_and_caught_up(tier: Tier, store: Store, tmp_path: Path) -> None:
    other = Tier(root=tmp_path / "other", clock=tier.clock)
    write_logs(other)
    store.stop()
    for _ in range(5):
        assert outcomes_of_copy(tier) == both("retriable")
        entry = tier.schedule().entries(TierTask.COPY)[ORDERS]
        assert entry.next_processing_ms == tier.clock.now_ms() + 30_000
        assert entry.last_error
        assert entry.failed_ms == tier.clock.now_ms()
        assert outcomes_of_copy(tier) == both("not_due")
        tier.clock.time_ms += HOUR
    # Another archive is not affected.
    assert outcomes_of_copy(other) == both("done")
    store.start()
    assert outcomes_of_copy(tier) == both("done")
    assert {each.last_error for each in tier.schedule().entries(TierTask.COPY).values()} == {None}
    assert tier.finished(ORDERS) == tier.finished(PAYMENTS) == [(0, 9), (10, 19), (20, 29)]
    store.require_sound(tier)


def test_expiry_continues_when_a_store_that_went_down_is_back(tier: Tier, store: Store) -> None:
    assert outcomes_of_copy(tier) == both("done")
    deletes = 0

    def strike_from_the_third_delete(request: Request) -> bool:
        nonlocal deletes
        deletes += request.method == "DELETE"
        return deletes > 3

    store.proxy.strikes, store.proxy.faults = strike_from_the_third_delete, [Fault(is_reset=True)] * 1_000
    retention_ms = HOUR // 2
    assert "retriable" in outcomes_of_expiry(tier, retention_ms).values()
    store.stop()
    for _ in range(3):
        tier.clock.time_ms += 30_000
        assert "retriable" in outcomes_of_expiry(tier, retention_ms).values()
    assert any(each.last_error for each in tier.schedule().entries(TierTask.EXPIRE).values())
    store.start()
    tier.clock.time_ms += 30_000
    assert outcomes_of_expiry(tier, retention_ms) == both("done")
    assert tier.finished(ORDERS) == tier.finished(PAYMENTS) == [(20, 29)]
    assert (tier.log_start(ORDERS), tier.log_start(PAYMENTS)) == (20, 20)
    store.require_sound(tier)


@pytest.mark.parametrize("fault", [Fault(hangs=True), Fault(status=503, code="SlowDown")], ids=["stalls", "throttles"])
def test_store_that_does_not_answer_for_one_partition_affects_no_other(tier: Tier, store: Store, fault: Fault) -> None:
    store.proxy.strikes = lambda request: "orders-0" in request.path or "orders-0" in str(request.query)
    store.proxy.faults = [fault] * 1_000
    tier.s3 = replace(ASKS_ONCE, read_timeout_ms=2_000)
    assert outcomes_of_copy(tier) == {"orders": "retriable", "payments": "done"}
    assert outcomes_of_expiry(tier, HOUR // 2) == {"orders": "retriable", "payments": "done"}
    assert tier.finished(PAYMENTS) == [(20, 29)]
    store.proxy.begin()
    tier.clock.time_ms += 30_000
    tier.s3 = ASKS_ONCE
    assert outcomes_of_copy(tier)["orders"] == "done"
    assert outcomes_of_expiry(tier, HOUR // 2)["orders"] == "done"
    assert tier.finished(ORDERS) == [(20, 29)]
    store.require_sound(tier)


@pytest.mark.parametrize("seed", range(3))
def test_store_that_fails_at_random_loses_nothing_and_the_work_ends(tier: Tier, store: Store, seed: int) -> None:
    """This includes lost answers of requests that were executed."""
    chance = random.Random(seed)
    kinds = [Fault(status=500, is_done=True), Fault(status=503, code="SlowDown"), Fault(is_reset=True)]
    store.proxy.strikes = lambda _: chance.random() < 0.06
    store.proxy.faults = [chance.choice(kinds) for _ in range(10_000)]
    failed_count = 0
    for _ in range(60):
        outcomes = [*outcomes_of_copy(tier).values(), *outcomes_of_expiry(tier, HOUR // 2).values()]
        failed_count += "retriable" in outcomes
        store.require_sound(tier)
        tier.clock.time_ms += 60_000
        if set(outcomes) == {"done"} and tier.finished(ORDERS) == tier.finished(PAYMENTS):
            break
    assert failed_count > 0
    for partition in (ORDERS, PAYMENTS):
        assert set(tier.finished(partition)) <= {(20, 29)}
        copied = {each.start_offset for each in tier.segments()[partition] if each.was_copied}
        assert copied == {0, 10, 20}


def test_old_object_of_an_unknown_segment_in_a_bucket_is_deleted_and_an_unexplained_never(
    store: Store, tmp_path: Path
) -> None:
    """Objects of a bucket have the machine's time; the segments here are two days later."""
    now_ms, day = time.time_ns() // 1_000_000, 24 * HOUR
    tier = Tier(root=tmp_path / "tier", uri=store.bucket.uri("tier"), s3=ASKS_ONCE, clock=VirtualClock(time_ms=now_ms))
    write_partition(tier.logs, "orders", 0, [segment(n * 10, now_ms + 2 * day) for n in range(3)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30})
    assert outcomes_of_copy(tier) == {"orders": "done"}
    copied = store.bucket.keys()
    folder = f"orders-0-{ORDERS.topic_id}"
    unknown, stranger = f"{70:020d}-{'B' * 21}A", f"payments-0-{'C' * 21}A"
    orphans = {f"{folder}/{unknown}.log", f"{folder}/{unknown}.index"}
    strays = {f"{folder}/{unknown}.backup", f"{folder}/notes.txt", f"{stranger}/{unknown}.log", "notes.txt"}
    archive = tier.open_archive()
    for name in orphans | strays:
        archive.put(name, BytesContent(b"content"))

    def expire() -> tuple[int, int]:
        (found,) = tier.expire(HOUR).partitions
        return found.removed_object_count, found.waiting_orphan_count

    tier.clock.time_ms = now_ms + day - HOUR
    assert expire() == (0, 2)
    tier.clock.time_ms = now_ms + day + HOUR
    assert expire() == (2, 0)
    assert store.bucket.keys() == copied | {f"tier/{ROOT_DIRECTORY}/{name}" for name in strays}
    assert tier.finished() == [(0, 9), (10, 19)]
    store.require_sound(tier)
