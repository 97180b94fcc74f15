"""Test replays from a real broker's archive, of which parts may be missing, unreachable or not indexed yet."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from delta.tables import DeltaTable

from builders.broker_directory import write_broker_directory
from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint
from builders.segment_builder import Batch, Record, build_segment
from coldlog.archive.open_archive import open_archive
from coldlog.errors import RetriableError
from coldlog.fetcher import RecordFetcher, open_fetcher
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.model.fetch import FetchedRecords, FetchErrorCode
from coldlog.model.states import IsolationLevel
from coldlog.replay.order import Head, TopicPartition
from coldlog.replay.pooled_replay import open_replayer
from coldlog.replay.task_replayer import (
    ReplayedRecord,
    ReplayedTo,
    ReplayError,
    ReplayOptions,
    RetriableReplayError,
    TaskReplayer,
)
from coldlog.replay.tasks import co_partitioned_tasks, one_task
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from contents.merged_logs import iter_merged
from fetching import HookedLayout, open_fetcher_over, true_records
from virtual_clock import VirtualClock
from worlds.golden_warehouse import golden_partitions

PARTITIONS = [
    (str(each["topic"]), int(str(each["partition"])))
    for each in golden_partitions()
    if int(str(each["archive_end"])) >= int(str(each["log_start"]))
]
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class Hooked(VirtualClock):
    """Calls `then` when time has passed."""

    then: Callable[[], None]

    def wait_ms(self, duration_ms: int) -> None:
        VirtualClock.wait_ms(self, duration_ms)
        self.then()


@pytest.fixture(scope="module")
def fetcher(golden_uri: str, golden_archive: Path) -> Iterator[RecordFetcher]:
    with open_fetcher_over(golden_uri, partial(open_archive, str(golden_archive), "local_tiered_storage")) as opened:
        yield opened


def truth(fetcher: RecordFetcher, place: tuple[str, int], isolation_level: IsolationLevel) -> list[tuple[int, int]]:
    """Return timestamp and offset of the records that a consumer got of a partition."""
    ends = fetcher.partition_ends(*place)
    assert ends is not None
    is_committed = isolation_level is COMMITTED
    end = ends.readable_end(is_committed=is_committed)
    return [(row["ts"], row["o"]) for row in true_records(*place) if row["o"] < end and (row["rc"] or not is_committed)]


def stamp(each: ReplayedRecord) -> tuple[TopicPartition, Head]:
    return (each.topic, each.partition), (each.record.timestamp_ms, each.record.offset)


def stamps(replayed: Iterable[ReplayedRecord]) -> list[tuple[TopicPartition, Head]]:
    return [stamp(each) for each in replayed]


@pytest.mark.parametrize(("isolation_level", "max_task_idle_ms"), [(UNCOMMITTED, 0), (COMMITTED, 10_000)])
def test_records_of_a_broker_are_replayed_in_the_order_of_timestamps(
    fetcher: RecordFetcher, isolation_level: IsolationLevel, max_task_idle_ms: int
) -> None:
    options = ReplayOptions(
        max_task_idle_ms=max_task_idle_ms, isolation_level=isolation_level, max_bytes=50_000, max_metadata_age_ms=60_000
    )
    replayer = TaskReplayer(fetcher, VirtualClock(), dict.fromkeys(PARTITIONS), options)
    found = stamps(replayer)
    assert found == list(iter_merged({place: truth(fetcher, place, isolation_level) for place in PARTITIONS}))
    assert len(found) > 60_000
    assert {replayer.current_lag(*place) for place in PARTITIONS} == {0}
    assert all(to is not None and to.topic_id for to in replayer.replayed.values())
    assert (replayer.counts.late_records, replayer.counts.records) == (0, len(found))
    assert replayer.counts.negative_timestamps == sum(timestamp_ms < 0 for _, (timestamp_ms, _) in found)


def test_replay_through_a_pool_has_the_same_records_and_keeps_the_read_quota(
    fetcher: RecordFetcher, golden_uri: str, golden_archive: Path
) -> None:
    places = [("orders", 0), ("payments", 0)]
    logs = [log for topic, number in places for log in golden_archive.glob(f"*/{topic}-{number}-*/*.log")]
    total_bytes = sum(log.stat().st_size for log in logs)
    assignments = [
        f"warehouse.uri={golden_uri}",
        f"archive.uri={golden_archive}",
        f"remote.log.manager.fetch.max.bytes.per.second={total_bytes // 3}",
    ]
    options, began_s = ReplayOptions(max_bytes=50_000), time.monotonic()
    with open_replayer(dict.fromkeys(places), assignments, options=options) as replayer:
        found = stamps(replayer)
    took_s = time.monotonic() - began_s
    assert found == list(iter_merged({place: truth(fetcher, place, UNCOMMITTED) for place in places}))
    assert took_s > 2.5, "all bytes at the quota take 3 s, the last read waits for none"
    assert replayer.counts.failed_fetches == 0


def test_replay_goes_on_in_the_log_directory_where_the_archive_ends(
    fetcher: RecordFetcher, golden_uri: str, golden_archive: Path, tmp_path: Path
) -> None:
    places = [("orders", 0), ("payments", 0)]
    write_broker_directory(tmp_path, {"orders", "payments"})
    tier = LogDirectoryTier(str(tmp_path), DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20))
    expected, ends = {place: truth(fetcher, place, UNCOMMITTED) for place in places}, dict[tuple[str, int], int]()
    for topic, number in places:
        state = tier.read_state(topic, number)
        assert state is not None
        begin, ends[topic, number] = state.high_watermark, state.high_watermark + 2
        added = Batch(base_offset=begin, records=tuple(Record(timestamp_ms=2**42, value=b"new") for _ in range(2)))
        active = max((tmp_path / f"{topic}-{number}").glob("*.log"))
        active.write_bytes(active.read_bytes() + build_segment([added]))
        expected[topic, number] += [(2**42, begin), (2**42, begin + 1)]
    write_offset_checkpoint(tmp_path / HIGH_WATERMARKS, ends)
    settings = [f"warehouse.uri={golden_uri}", f"archive.uri={golden_archive}", f"fetch.log_directory={tmp_path}"]
    with open_replayer(dict.fromkeys(places), settings, options=ReplayOptions(max_bytes=50_000)) as replayer:
        assert stamps(replayer) == list(iter_merged(expected))
    with open_fetcher(settings) as whole:
        for place, end in ends.items():
            found = whole.partition_ends(*place)
            assert found is not None
            assert found.end_offset == end
            answer = whole.fetch_records(*place, end - 1)
            assert isinstance(answer, FetchedRecords)
            assert [record.value for record in answer.records] == [b"new"]


def test_replay_continues_where_another_stopped(fetcher: RecordFetcher) -> None:
    counts = {topic: 1 + max(partition for name, partition in PARTITIONS if name == topic) for topic, _ in PARTITIONS}
    tasks = co_partitioned_tasks([["orders", "payments"]], counts)
    whole = one_task({"orders": counts["orders"], "payments": counts["payments"]})
    assert sorted(place for own in tasks.values() for place in own) == list(whole)
    for places in tasks.values():
        start: dict[tuple[str, int], ReplayedTo | None] = dict.fromkeys(places)
        expected = list(iter_merged({place: truth(fetcher, place, UNCOMMITTED) for place in places}))
        found = []
        while True:
            replayer = TaskReplayer(fetcher, VirtualClock(), start, ReplayOptions(max_bytes=100_000))
            polled = replayer.poll(len(expected) // 3)
            if not polled:
                break
            found += stamps(polled)
            assert replayer.counts.late_records == 0
            start = replayer.replayed
        assert found == expected


def test_missing_segment_is_skipped_only_by_a_seek(golden_uri: str, golden_archive: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    for folder in golden_archive.glob("*/orders-0-*"):
        shutil.copytree(folder, archive / folder.relative_to(golden_archive))
    logs = sorted(archive.glob("*/orders-0-*/*.log"))
    gone, following = (int(log.name[:20]) for log in logs[1:3])
    for path in logs[1].parent.glob(f"{logs[1].stem}*"):
        path.unlink()
    with open_fetcher_over(golden_uri, partial(open_archive, str(archive), "local_tiered_storage")) as fetcher:
        replayer = TaskReplayer(fetcher, VirtualClock(), {("orders", 0): None})
        iterator, offsets = iter(replayer), list[int]()
        with pytest.raises(ReplayError, match=rf"offset {gone} of orders-0: OFFSET_OUT_OF_RANGE: .* missing") as caught:
            offsets.extend(each.record.offset for each in iterator)
        assert not isinstance(caught.value, RetriableError)
        assert replayer.replayed["orders", 0].next_offset == gone  # type: ignore[union-attr]
        assert caught.value.failure.resume_offset == following
        replayer.seek("orders", 0, following)
        rest = [each.record.offset for each in replayer]
    own = [row["o"] for row in true_records("orders", 0)]
    assert rest == [offset for offset in own if offset >= following]


def test_store_that_is_down_interrupts_the_replay_and_loses_nothing(golden_uri: str, golden_archive: Path) -> None:
    layout = open_archive(str(golden_archive), "local_tiered_storage")
    down = {"is": False}

    def before_read(segment_id: str) -> None:
        if down["is"]:
            raise RetriableError("connection refused")

    hooked = HookedLayout(layout=layout, before_read=before_read)
    clock = VirtualClock()
    with open_fetcher_over(golden_uri, lambda: hooked, clock) as fetcher:
        replayer = TaskReplayer(
            fetcher, clock, {("orders", 0): None}, ReplayOptions(max_bytes=20_000, fetch_timeout_ms=7_000)
        )
        found = replayer.poll(10)
        down["is"] = True
        found += replayer.poll(100_000)
        began_ms, reached = clock.time_ms, replayer.replayed
        with pytest.raises(RetriableReplayError, match="orders-0: REQUEST_TIMED_OUT: .*connection refused") as caught:
            replayer.poll()
        assert caught.value.failure.error is FetchErrorCode.REQUEST_TIMED_OUT
        assert clock.time_ms - began_ms == 7_000
        assert replayer.replayed == reached
        down["is"] = False
        found += list(replayer)
        assert [head for _, head in stamps(found)] == truth(fetcher, ("orders", 0), UNCOMMITTED)


def test_records_indexed_during_a_wait_are_replayed_in_their_place(
    golden: Warehouse, golden_archive: Path, tmp_path: Path
) -> None:
    """At first the tables say that payments-0 ends after its first ten segments."""
    warehouse = shutil.copytree(golden.uri, tmp_path / "warehouse")
    metadata = DeltaTable.forPath(golden.spark, str(warehouse / PARTITION_METADATA.name))
    metadata.update("topic = 'payments' AND partition = 0", {"latest_tiered_offset": "1247"})
    clock = Hooked()
    indexed_ms = clock.time_ms + 20_000

    def grow() -> None:
        if clock.time_ms == indexed_ms:
            metadata.restoreToVersion(1)

    clock.then = grow
    places = ("orders", 0), ("payments", 0)
    opener = partial(open_archive, str(golden_archive), "local_tiered_storage")
    with open_fetcher_over(str(warehouse), opener, clock) as fetcher:
        hasty = TaskReplayer(fetcher, clock, dict.fromkeys(places))
        early = stamps(hasty)
        waiting = TaskReplayer(
            fetcher,
            clock,
            dict.fromkeys(places),
            ReplayOptions(max_task_idle_ms=30_000, max_metadata_age_ms=5_000),
        )
        found = [stamp(each) for each in waiting]
        logs = {place: truth(fetcher, place, UNCOMMITTED) for place in places}
        assert found == list(iter_merged(logs))
        # Until it was indexed, and at the ends of both.
        assert clock.time_ms - indexed_ms == 60_000
        assert (waiting.counts.late_records, waiting.counts.waited_ms) == (0, 80_000)
        # The other did not wait, so the records that it skipped come late.
        late = list(hasty)
        assert len(early) + len(late) == len(found)
        assert early == list(iter_merged(logs | {places[1]: [each for each in logs[places[1]] if each[1] < 1248]}))
        assert [stamp(each) for each in late] == [(places[1], each) for each in logs[places[1]] if each[1] >= 1248]
        assert hasty.counts.late_records == sum(each.late_ms is not None for each in late) > 0
        assert hasty.counts.greatest_lateness_ms == early[-1][1][0] - late[0].record.timestamp_ms
