"""Test that a report lists what the bucket lists, that the newest complete one is taken, and that damage is told."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable

import pytest

from coldlog.archive.inventory.reported_layout import with_report
from coldlog.archive.inventory.reported_objects import read_objects
from coldlog.archive.inventory.reported_store import ReportedStore
from coldlog.archive.inventory.reports import InventoryReport, open_report
from coldlog.archive.open_archive import open_archive
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_store import open_s3_store
from coldlog.errors import ArchiveError, ColdlogError, UsageError
from servers.inventory_reports import Reported, Reports
from servers.s3_proxy import S3Proxy
from servers.s3_server import Bucket

T_MS = 1_700_000_000_000
DAY_MS = 86_400_000
KEYS = (
    "tier/a/1", "tier/a/2", "tier/a/b/c/3", "tier/b c+%/ü", "tier/x", "tier/a.b/4", "tier/empty/", "tier/full/",
    "tier/d//5", "tier/e/./6", "tier/f/../7", "tier//8", "tier2/9", "tier", "other/a/1",
)  # fmt: skip


def _open(bucket: Bucket, uri: str) -> InventoryReport:
    return open_report(uri, bucket.name, S3Options(max_attempts=1))


def _walk(store: ObjectStore, prefix: str = "") -> list[object]:
    """Everything that a store lists, from the root down."""
    found: list[object] = [*store.list_directories(prefix), *store.iter_objects(prefix)]
    return found + [each for name in store.list_directories(prefix) for each in _walk(store, name)]


@pytest.mark.parametrize(
    ("file_format", "root"), [("CSV", "tier"), ("ORC", "tier/a"), ("Parquet", "tier"), ("CSV", "")]
)
def test_a_report_lists_what_the_bucket_lists(
    bucket: Bucket, file_format: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put({key: key.encode() * ("empty" not in key) for key in KEYS})
    reports = Reports(bucket=bucket, prefix="reports")
    reports.put(T_MS, file_format, [*reports.rows(), Reported(key="tier/a/1", size=0, modified_ms=1)])
    monkeypatch.setattr("coldlog.archive.inventory.reported_objects._BUCKET_BYTES", 100)
    store = open_s3_store(bucket.uri(root), S3Options())
    reported = ReportedStore(store=store, objects=read_objects(_open(bucket, reports.uri), root))
    listed = [each for each in _walk(store) if "reports" not in str(each)]
    assert len(listed) > 3
    assert _walk(reported) == listed
    part = pickle.loads(pickle.dumps(reported.part(["a", "d"])))
    assert _walk(part, "a") == _walk(store, "a")
    assert list(part.iter_objects("d")) == list(store.iter_objects("d"))
    assert not part.has_reported("e")


def test_the_newest_complete_report_is_taken_or_the_one_that_is_named(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    reports = Reports(bucket=bucket)
    folders = [reports.put(T_MS + day * DAY_MS, "CSV") for day in range(4)]
    bucket.delete(f"{folders[2]}/manifest.json", f"{folders[3]}/manifest.checksum")
    s3_proxy.forget()
    assert _open(bucket, reports.uri).created_ms == T_MS + DAY_MS
    assert len(s3_proxy.listings) == 1
    assert _open(bucket, bucket.uri(f"{folders[0]}/manifest.json")).created_ms == T_MS
    with pytest.raises(ArchiveError, match="no such object .set scan.inventory_uri to the manif"):
        _open(bucket, bucket.uri(f"{folders[3]}/manifest.json"))
    with pytest.raises(UsageError, match=f"no S3 Inventory report at s3://{bucket.name}/reports/it: it has no folder"):
        _open(bucket, bucket.uri("reports/it"))


DAMAGES: dict[str, tuple[dict[str, object], str]] = {
    "another bucket": ({"sourceBucket": "others"}, "lists the bucket others, but the archive is in bucket-"),
    "no source": ({"sourceBucket": None}, "expected sourceBucket, found None"),
    "format": ({"fileFormat": "Avro"}, "unknown format .*expected one of CSV, ORC, Parquet, found Avro"),
    "time": ({"creationTimestamp": "yesterday"}, "expected creationTimestamp, found 'yesterday'"),
    "no schema": ({"fileSchema": 7}, "expected fileSchema, found 7"),
    "files": ({"files": "all"}, "expected files, found 'all'"),
    "file": ({"files": ["x"]}, "expected objects in files, found 'x'"),
    "digest": ({"files": [{"key": "x", "size": 1, "MD5checksum": "?"}]}, "expected an MD5checksum, found ?"),
    "size": ({"files": [{"key": "x", "MD5checksum": "0" * 32}]}, "expected size, found nothing"),
    "missing file": (
        {"files": [{"key": "reports/x", "size": 1, "MD5checksum": "0" * 32}]},
        "file of the S3 Inventory report: the archive has no such object .*in reports/x",
    ),
    "columns": ({"fileSchema": "Bucket, Key, Size, ETag, Owner"}, "lacks columns.*: expected LastModifiedDate, found "),
}


@pytest.mark.parametrize(("manifest", "told"), DAMAGES.values(), ids=DAMAGES)
def test_a_report_that_cannot_be_used_is_refused(bucket: Bucket, manifest: dict[str, object], told: str) -> None:
    bucket.put({"tier/x": b""})
    reports = Reports(bucket=bucket)
    reports.put(T_MS, "CSV", manifest=manifest)
    with pytest.raises(ColdlogError, match=told) as refused:
        read_objects(_open(bucket, reports.uri), "tier")
    assert "scan.inventory_uri" in str(refused.value)


def _change_rows(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("manifest.json", lambda content: content + b" ", "does not have the MD5 of its manifest.checksum"),
        ("manifest.checksum", lambda _: b"", "does not have the MD5 of its manifest.checksum"),
        ("-1.orc", _change_rows, "is not the one of its manifest .* bytes with MD5 [0-9a-f]{32}, found "),
        ("-1.orc", lambda content: content + b"x", "is not the one of its manifest"),
        ("-0.orc", lambda content: content[:-9], "is not the one of its manifest"),
    ],
)
def test_a_file_of_a_report_that_was_damaged_is_refused(
    bucket: Bucket, name: str, change: Callable[[bytes], bytes], told: str
) -> None:
    bucket.put({"tier/x": b"", "tier/y": b""})
    reports = Reports(bucket=bucket)
    reports.put(T_MS, "ORC")
    (key,) = (each for each in sorted(bucket.keys()) if each.endswith(name))
    content = bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read()
    bucket.put({key: change(content)})
    with pytest.raises(ArchiveError, match=told) as refused:
        read_objects(_open(bucket, reports.uri), "tier")
    assert refused.value.object_name.rpartition("/")[0] == key.rpartition("/")[0]


def test_a_manifest_that_is_no_object_of_json_is_refused(bucket: Bucket) -> None:
    for content in (b"{", b"[]", json.dumps("x").encode()):
        digest = hashlib.md5(content).hexdigest().encode()
        bucket.put({"r/2026-01-01T00-00Z/manifest.json": content, "r/2026-01-01T00-00Z/manifest.checksum": digest})
        with pytest.raises(ArchiveError, match="is not (JSON|a JSON object)"):
            _open(bucket, bucket.uri("r"))


def test_a_mirror_is_refused_because_its_files_are_replaced(bucket: Bucket) -> None:
    bucket.put({"tier/orders-0/00000000000000000000.log": b""})
    reports = Reports(bucket=bucket)
    reports.put(T_MS, "CSV")
    layout = open_archive(bucket.uri("tier"), "log_directories")
    with pytest.raises(UsageError, match="objects of the layout log_directories are replaced under their names"):
        with_report(layout, _open(bucket, reports.uri))
