"""Test that several processes, and later runs, keep one broker's write quota."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.runtime.installation import ROOT
from coldlog.tables.definitions.tier.tier_quotas import TIER_QUOTAS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tiering.copying.copy_partition import CopyOutcome
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.shared_quota import SharedQuota
from copying_tier import Tier
from servers.s3_server import Bucket
from virtual_clock import VirtualClock, most_over_quota

RATE, SEGMENT_BYTES, SEGMENTS = 100_000, 5_000, 12
TAKING = f"""
import sys
from coldlog.tiering.shared_quota import SharedQuota
from coldlog.tiering.system_clock import SystemClock

class Noting(SystemClock):
    asked_ms = 0
    def now_ms(self):
        self.asked_ms = super().now_ms()
        return self.asked_ms

clock = Noting()
quota = SharedQuota.below(sys.argv[1], 7, {RATE}, clock)
for _ in range({SEGMENTS}):
    while wait_ms := quota.take({SEGMENT_BYTES}):
        clock.wait_ms(wait_ms)
    print(clock.asked_ms)
"""


def test_processes_that_copy_at_once_share_one_quota(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TAKING, str(tmp_path / "warehouse")], env=environment, stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    taken = [int(line) for each in started for line in each.communicate()[0].splitlines()]
    assert [each.returncode for each in started] == [0, 0, 0]
    assert len(taken) == 3 * SEGMENTS
    assert most_over_quota([(at_ms, SEGMENT_BYTES) for at_ms in sorted(taken)], RATE) <= SEGMENT_BYTES
    (row,) = SmallTable(uri=str(tmp_path / "warehouse"), table=TIER_QUOTAS).read()
    assert (row["broker_id"], row["taken_bytes"]) == (7, 3 * SEGMENTS * SEGMENT_BYTES)


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_processes_wait_for_each_others_segments_and_brokers_do_not_share(
    place: str, bucket: Bucket, tmp_path: Path
) -> None:
    uri, clock = str(tmp_path) if place == "folder" else bucket.uri("tables"), VirtualClock()
    one, two = (SharedQuota.below(uri, 7, 1_000, clock) for _ in range(2))
    assert (one.take(2_500), two.take(1), one.take(1)) == (0, 2_500, 2_500)
    clock.time_ms += 2_499
    assert two.take(1) == 1
    clock.time_ms += 1
    assert two.take(1) == 0
    assert one.take(1) == 1
    assert SharedQuota.below(uri, 8, 1_000, clock).take(9_000) == 0
    assert one.take(1) == 1, "what the other broker took is not forgotten"


def test_wait_below_a_millisecond_is_rounded_up(tmp_path: Path) -> None:
    quota = SharedQuota.below(str(tmp_path), 7, 3_000, VirtualClock())
    assert (quota.take(1), quota.take(1)) == (0, 1)


def test_clock_that_is_a_day_ahead_stops_others_only_for_the_largest_segment(tmp_path: Path) -> None:
    rate, clock = 2**31 // 100, VirtualClock()
    ahead = VirtualClock()
    ahead.time_ms = clock.time_ms + 24 * 3_600_000
    assert SharedQuota.below(str(tmp_path), 7, rate, ahead).take(rate) == 0
    quota, longest_ms = SharedQuota.below(str(tmp_path), 7, rate, clock), 100_000
    assert longest_ms <= quota.take(1) <= longest_ms + 1
    clock.time_ms += 40_000
    assert longest_ms - 40_000 <= quota.take(1) <= longest_ms - 39_999
    clock.time_ms += longest_ms - 39_999
    assert (quota.take(rate), quota.take(1)) == (0, 1_000)
    (row,) = SmallTable(uri=str(tmp_path), table=TIER_QUOTAS).read()
    assert row["taken_bytes"] == 2 * rate


def test_next_run_waits_for_what_this_run_took(tmp_path: Path) -> None:
    tier = Tier(root=tmp_path)
    for topic in ("orders", "payments"):
        write_partition(tier.logs, topic, 0, [_segment(0), _segment(10), _segment(20)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30, ("payments", 0): 30})
    size_bytes = max(path.stat().st_size for path in tier.logs.rglob("*.log"))
    quota = QuotaConfig(bytes_per_second=size_bytes)
    first = tier.copy(tier.schedule("one"), quota=quota, topics=("orders",))
    assert first.copied_count == 2
    waited_ms = sum(tier.clock.waits)
    tier.clock.waits.clear()
    second = tier.copy(tier.schedule("two"), quota=quota, topics=("payments",))
    assert second.copied_count == 2
    assert sum(tier.clock.waits) > waited_ms + 900, "the last segment of the first run is owed too"
    assert {each.outcome for each in second.partitions} == {CopyOutcome.DONE}


def _segment(first: int) -> Segment:
    records = tuple(Record(timestamp_ms=first + at, value=b"v" * 50) for at in range(10))
    return Segment(batches=(Batch(base_offset=first, records=records),), index_interval_bytes=0)
