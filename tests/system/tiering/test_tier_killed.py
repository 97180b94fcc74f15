"""Test that the next run finishes after copy_segments or expire_segments was killed (SIGKILL) during work."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.model.states import RemoteLogSegmentState
from coldlog.runtime.installation import ROOT
from copying_tier import ORDERS, Tier
from virtual_clock import VirtualClock

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
NOW = time.time_ns() // 1_000_000
DAY = 86_400_000
SEGMENTS = 60


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Sixty closed segments, two days old, the last one of now. The clock in this process is later than the lease of
    the killed process."""
    found = Tier(root=tmp_path, clock=VirtualClock(time_ms=NOW + 3_600_000))
    write_partition(found.logs, "orders", 0, [segment(number) for number in range(SEGMENTS + 1)])
    write_offset_checkpoint(found.logs / HIGH_WATERMARKS, {("orders", 0): 10 * (SEGMENTS + 1)})
    return found


def segment(number: int) -> Segment:
    time_ms = NOW - 2 * DAY if number < SEGMENTS - 1 else NOW
    records = tuple(Record(timestamp_ms=time_ms, value=b"v" * 50) for _ in range(10))
    return Segment(batches=(Batch(base_offset=number * 10, records=records),), index_interval_bytes=0)


def kill_when(tier: Tier, job: str, is_time: Callable[[], bool], **settings: object) -> None:
    """Start the job, and kill it during its work."""
    values = {
        "broker.id": 7,
        "copy.log_directories": tier.logs,
        "archive.uri": tier.archive,
        "metadata.uri": tier.metadata,
        "warehouse.uri": tier.warehouse,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 3,
        **settings,
    }
    arguments = [each for key, value in values.items() for each in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *arguments],
        env={"PYTHONPATH": str(ROOT / "lib")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None and not is_time():
        time.sleep(0.002)
    process.kill()
    printed = process.communicate()
    assert process.returncode == -9, printed


def count(tier: Tier, pattern: str) -> int:
    return len(list(tier.archive.glob(f"*/*/{pattern}")))


@pytest.mark.parametrize(("objects", "scheduled"), [(1, False), (8, True), (25, False)])
def test_copy_that_was_killed_is_finished_by_the_next_run(tier: Tier, objects: int, scheduled: bool) -> None:
    slowly = {"upload.rate.limit.bytes.per.second": 4_000}
    if scheduled:
        slowly |= {"tier.scheduled": True}
    kill_when(tier, "copy_segments", lambda: count(tier, "*") >= objects, **slowly)
    tier.require_sound()
    left = len(tier.finished())
    assert left < SEGMENTS
    again = tier.copy(tier.schedule() if scheduled else None)
    assert [each.outcome.value for each in again.partitions] == ["done"]
    assert again.copied_count == SEGMENTS - left
    assert tier.finished() == [(number * 10, number * 10 + 9) for number in range(SEGMENTS)]
    assert count(tier, "*.tmp") == 0
    tier.require_sound()


@pytest.mark.parametrize("deleted", [1, 12])
def test_expiry_that_was_killed_is_finished_by_the_next_run(tier: Tier, deleted: int) -> None:
    tier.copy()
    kill_when(tier, "expire_segments", lambda: count(tier, "*.log") <= SEGMENTS - deleted, **{"retention.ms": DAY})
    tier.require_sound()
    assert tier.log_start() == (SEGMENTS - 1) * 10
    left = [each for each in tier.segments()[ORDERS] if each.state is not DELETED]
    assert len(left) > 1
    tier.expire(DAY)
    assert tier.finished() == [((SEGMENTS - 1) * 10, (SEGMENTS - 1) * 10 + 9)]
    assert count(tier, "*.log") == 1
    tier.require_sound()
