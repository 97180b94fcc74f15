"""The tier's work in a bucket at a server that checks signatures: copies, expiry, and tables changed by two."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.local_tiered_storage import ROOT_DIRECTORY
from coldlog.archive.stores.s3_client import close_clients
from coldlog.tiering.shared_quota import SharedQuota
from coldlog.tiering.tier_schedule import ScheduleOptions, TierSchedule, TierTask, tier_schedule_table
from copying_tier import FINISHED, ORDERS, Tier
from servers.s3_server import Bucket, S3Server
from virtual_clock import VirtualClock

HOUR_MS = 3_600_000


def _segment(first: int, at_ms: int) -> Segment:
    records = tuple(Record(timestamp_ms=at_ms + at, value=b"v" * 500) for at in range(10))
    return Segment(batches=(Batch(base_offset=first, records=records),), index_interval_bytes=0)


def _logs(bucket: Bucket) -> list[str]:
    held = bucket.keys()
    return [key for key in held if key.endswith(".log")]


def test_segments_are_copied_byte_for_byte_and_expire(
    versitygw: S3Server, reaching_s3: dict[str, str], tmp_path: Path
) -> None:
    assert reaching_s3
    bucket = versitygw.make_bucket()
    tier = Tier(root=tmp_path, uri=bucket.uri("tier"))
    now_ms = tier.clock.now_ms()
    old, new = (_segment(first, now_ms - age_ms) for first, age_ms in ((0, 9 * HOUR_MS), (10, HOUR_MS)))
    write_partition(tier.logs, "orders", 0, [old, new, _segment(20, now_ms)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30})
    assert tier.copy(tier.schedule("copier")).copied_count == 2
    logs = _logs(bucket)
    for path in sorted((tier.logs / "orders-0").glob("*.log"))[:2]:
        (key,) = (key for key in logs if f"/{path.stem}-" in key)
        assert key.startswith(f"tier/{ROOT_DIRECTORY}/orders-0-")
        assert bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read() == path.read_bytes()
    assert [each.state for each in tier.segments()[ORDERS]] == [FINISHED, FINISHED]
    tier.expire(2 * HOUR_MS)
    assert tier.log_start() == 10
    assert {key.rsplit("/", 1)[1][:20] for key in _logs(bucket)} == {f"{10:020}"}
    close_clients()


@pytest.mark.usefixtures("reaching_s3")
def test_tables_in_a_bucket_are_changed_by_two_and_nothing_is_lost(versitygw: S3Server) -> None:
    uri, clock = versitygw.make_bucket().uri("tables"), VirtualClock()
    one, two = (
        TierSchedule(tier_schedule_table(uri), clock, ScheduleOptions(holder=holder)) for holder in ("one", "two")
    )
    taken = one.take_due(TierTask.COPY, {ORDERS})
    assert (taken.partitions, two.take_due(TierTask.COPY, {ORDERS}).partitions) == ((ORDERS,), ())
    quotas = [SharedQuota.below(uri, 7, 1_000, clock) for _ in range(2)]
    assert [each.take(3_000) for each in quotas] == [0, 3_000]
    close_clients()
