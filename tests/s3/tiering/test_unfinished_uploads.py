"""Test that expiry aborts uploads that killed writers left in a bucket, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.local_tiered_storage import ROOT_DIRECTORY
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_writer import open_s3_writer
from coldlog.tiering.expiry.orphans import OrphanKind
from copying_tier import ORDERS, BreakAt, KilledError, Tier, stem_of
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket

DAY, WRITTEN = 86_400_000, 1_400_000_000_000
GONE = f"{20:020d}-{'G' * 22}"


def segment(first: int) -> Segment:
    records = tuple(Record(timestamp_ms=WRITTEN, value=b"v" * 50) for _ in range(10))
    return Segment(batches=(Batch(base_offset=first, records=records),), index_interval_bytes=0)


@pytest.fixture
def tier(bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier:
    """Two closed segments of orders-0, and a bucket for them."""
    s3_proxy.begin()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_proxy.endpoint)
    found = Tier(root=tmp_path / "tier", uri=bucket.uri("tier"))
    write_partition(found.logs, "orders", 0, [segment(0), segment(10), segment(20)])
    write_offset_checkpoint(found.logs / HIGH_WATERMARKS, {("orders", 0): 30})
    return found


def begin_upload(bucket: Bucket, name: str) -> str:
    """Begin an upload as a writer does that is killed then; return its id."""
    key = f"tier/{ROOT_DIRECTORY}/{name}"
    upload_id: str = bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)["UploadId"]
    bucket.client.upload_part(Bucket=bucket.name, Key=key, UploadId=upload_id, PartNumber=1, Body=b"x")
    return upload_id


def listed(bucket: Bucket) -> dict[str, int]:
    """Return when each upload began, by its id."""
    found = bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    return {each["UploadId"]: round(each["Initiated"].timestamp() * 1000) for each in found}


def test_upload_is_aborted_when_it_is_as_old_as_a_temporary_file_may_be(tier: Tier, bucket: Bucket) -> None:
    tier.copy()
    directory = f"orders-0-{ORDERS.topic_id}"
    left = begin_upload(bucket, f"{directory}/{GONE}.log")
    foreign = begin_upload(bucket, f"{directory}/backup.bin")
    other_place = begin_upload(bucket, f"payments-0-{ORDERS.topic_id}/{GONE}.log")
    tier.clock.time_ms = listed(bucket)[left] + DAY
    assert tier.expire().partitions[0].waiting_orphan_count == 1
    tier.clock.time_ms += 1
    assert tier.expire(DAY + 1).partitions[0].waiting_orphan_count == 1, "not older than the retention"
    planned = tier.expire(is_dry_run=True).partitions[0]
    assert [(each.kind, each.name) for each in planned.orphans] == [(OrphanKind.UPLOAD, f"{directory}/{GONE}.log")]
    assert listed(bucket).keys() == {left, foreign, other_place}
    assert tier.expire().partitions[0].removed_object_count == 1
    assert listed(bucket).keys() == {foreign, other_place}
    assert tier.finished() == [(0, 9), (10, 19)]


def test_upload_of_a_segment_that_is_being_copied_is_not_aborted(tier: Tier, bucket: Bucket) -> None:
    tier.breaks_tables, tier.break_at = True, BreakAt(6, KilledError())
    with pytest.raises(KilledError):
        tier.copy(tier.schedule("killed"), threads=1)
    tier.break_at = lambda _: None
    (started,) = tier.segments()[ORDERS]
    upload_id = begin_upload(bucket, f"{stem_of(ORDERS, started)}.log")
    tier.expire()
    assert listed(bucket).keys() == {upload_id}
    tier.clock.time_ms += DAY
    assert tier.expire().partitions[0].removed_object_count == 1, "the lease of the copy has ended"
    assert listed(bucket) == {}


def test_uploads_that_may_not_be_listed_are_left_and_expiry_goes_on(
    tier: Tier, bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    tier.copy()
    upload_id = begin_upload(bucket, f"orders-0-{ORDERS.topic_id}/{GONE}.log")
    s3_proxy.strikes = lambda request: request.method == "GET" and "uploads" in request.query
    s3_proxy.faults = [Fault(status=403, code="AccessDenied")]
    summary = tier.expire(retention_ms=1)
    assert "no permission to list" in summary.why_unlisted
    assert summary.deleted_count == 2
    assert listed(bucket).keys() == {upload_id}


def test_listing_of_uploads_has_as_many_requests_as_pages(tier: Tier, bucket: Bucket, s3_proxy: S3Proxy) -> None:
    names = [f"orders-0-{ORDERS.topic_id}/{number:020d}-{'G' * 22}.log" for number in range(3)]
    for name in names:
        begin_upload(bucket, name)
    s3_proxy.forget()
    store = open_s3_writer(f"{bucket.uri('tier')}/{ROOT_DIRECTORY}", S3Options())
    found = list(store.iter_uploads())
    assert sorted(each.name for each in found) == names
    assert len(s3_proxy.requests) == 1
    for each in found * 2:
        store.abort_upload(each)
    assert listed(bucket) == {}
