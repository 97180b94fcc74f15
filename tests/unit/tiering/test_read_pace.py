"""Test that reads of an archive outside of pools wait for the read quota, alone and together with other processes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.layout import SegmentFileKind
from coldlog.archive.layouts.paced_layout import PacedLayout
from coldlog.archive.open_archive import open_archive
from coldlog.errors import AnsweredTooLateError
from coldlog.lookups.lookup_settings import list_offsets_options, lookup_options
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tiering import system_clock
from coldlog.tiering.process_pace import ProcessPace
from coldlog.tiering.read_pace import ForkedPace, ForkedReads, ReadPace, paced_opener
from coldlog.tiering.rules.read_allowances import ReadAllowances
from coldlog.tiering.shared_quota import READERS, SharedQuota
from virtual_clock import VirtualClock

RATE = 10_000


class NotedPace:
    """A pace that lets everything through."""

    def __init__(self) -> None:
        self.asked = list[int]()

    def wait_for(self, size_bytes: int, until_s: float | None = None) -> None:
        self.asked.append(size_bytes)


def test_process_reads_at_the_quota_and_saves_nothing_up() -> None:
    clock = VirtualClock()
    pace, begin_ms = ProcessPace(RATE, clock), clock.time_ms
    for _ in range(30):
        pace.wait_for(RATE // 2)
    assert clock.time_ms - begin_ms == 29 * 500
    began_ms = clock.time_ms
    pace.wait_for(0)
    assert clock.time_ms == began_ms, "a read of nothing does not wait"
    clock.time_ms += 60_000
    began_ms = clock.time_ms
    for _ in range(3):
        pace.wait_for(RATE)
    assert clock.time_ms - began_ms == 2_000


def test_read_that_would_wait_beyond_its_deadline_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    clock = VirtualClock()
    shared = ReadAllowances(RATE, clock, SharedQuota.below(str(tmp_path), READERS, RATE, clock))
    for pace in (ProcessPace(RATE, clock), ProcessPace(RATE, clock, shared)):
        pace.wait_for(2 * RATE)
        began_ms, until_s = clock.time_ms, clock.time_ms / 1000 + 1.999
        for _ in range(100):
            with pytest.raises(AnsweredTooLateError, match="used up for 2000 ms"):
                pace.wait_for(RATE, until_s)
        assert clock.time_ms == began_ms, "it does not wait for nothing"
        pace.wait_for(RATE, until_s + 0.001)
        assert clock.time_ms - began_ms == 2_000
        assert pace.read_bytes == 3 * RATE
        assert (pace.throttled.count, pace.throttled.longest_ms, pace.throttled.total_ms) == (101, 2_000, 202_000)
        clock.time_ms += 60_000


def test_processes_share_the_quota_and_return_what_they_do_not_use(tmp_path: Path) -> None:
    clock = VirtualClock()
    shared = SharedQuota.below(str(tmp_path), READERS, RATE, clock)
    one, two = (ProcessPace(RATE, clock, ReadAllowances(RATE, clock, shared)) for _ in range(2))
    begin_ms = clock.time_ms
    for _ in range(20):
        one.wait_for(RATE // 4)
        two.wait_for(RATE // 4)
    assert 9_000 <= clock.time_ms - begin_ms <= 11_000
    one.close()
    two.close()
    (row,) = SmallTable(uri=str(tmp_path), table=TIER_QUOTAS).read()
    assert row["taken_bytes"] == 10 * RATE


def test_read_waits_for_the_bytes_that_it_gets(tmp_path: Path) -> None:
    records = tuple(Record(timestamp_ms=0, value=b"v" * 500) for _ in range(4))
    segment_of_four = Segment(batches=(Batch(base_offset=0, records=records),))
    write_archive(tmp_path, {TopicPartition(topic="orders", partition=0): [segment_of_four]})
    layout, pace = open_archive(str(tmp_path), "local_tiered_storage"), NotedPace()
    paced = PacedLayout(layout=layout, pace=pace)
    (directory,) = paced.list_partition_directories().directories
    (segment,) = paced.list_segments(directory).segments
    assert pace.asked == [], "listings do not wait"
    size_bytes = paced.log_size_bytes(segment)
    assert len(paced.read_log_range(segment, 100, 1 << 30)) == size_bytes - 100
    assert len(paced.read_log_range(segment, size_bytes, 5)) == 0
    snapshot = paced.read_small_file(segment, SegmentFileKind.PRODUCER_SNAPSHOT)
    assert pace.asked == [size_bytes - 100, 0, len(snapshot)]


def test_archive_is_paced_only_with_a_quota_and_shared_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "kafka-tiered-storage").mkdir()
    plain = [f"archive.uri={tmp_path}", "warehouse.uri=/data/coldlog"]
    limited = [*plain, f"remote.log.manager.fetch.max.bytes.per.second={RATE}"]
    assert not isinstance(paced_opener(load_settings("local", plain))(), PacedLayout)
    opened = [
        pickle.loads(pickle.dumps(paced_opener(load_settings("local", each))))()
        for each in (limited, [*limited, "fetch.share_quota=true"])
    ]
    assert [each.pace for each in opened] == [
        ReadPace(bytes_per_second=RATE),
        ReadPace(bytes_per_second=RATE, shared_uri="/data/coldlog"),
    ]


def test_lookups_read_their_batches_at_the_quota(tmp_path: Path) -> None:
    (tmp_path / "kafka-tiered-storage").mkdir()
    limit = f"remote.log.manager.fetch.max.bytes.per.second={RATE}"
    settings, pace = load_settings("local", [f"archive.uri={tmp_path}", limit]), ReadPace(bytes_per_second=RATE)
    for read_options in (lookup_options, list_offsets_options):
        for opener, expected in ((paced_opener, pace), (ForkedReads().opener, ForkedPace(pace=pace))):
            batches = read_options(settings, opener).batches
            assert batches is not None
            opened = batches.until(7.5).open_layout()
            assert isinstance(opened, PacedLayout)
            assert (opened.pace, opened.until_s) == (expected, 7.5)
    unlimited = load_settings("local", [f"archive.uri={tmp_path}"])
    assert ForkedReads().figures(unlimited) == {}
    batches = lookup_options(unlimited, ForkedReads().opener).batches
    assert batches is not None
    assert not isinstance(batches.until(7.5).open_layout(), PacedLayout)


def test_all_that_has_the_same_quota_in_a_process_has_one_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(system_clock, "SystemClock", lambda: clock)
    begin_ms = clock.time_ms
    for pace in (ReadPace(bytes_per_second=777), pickle.loads(pickle.dumps(ReadPace(bytes_per_second=777)))):
        pace.wait_for(777)
        pace.wait_for(777)
    assert clock.time_ms - begin_ms == 3_000
