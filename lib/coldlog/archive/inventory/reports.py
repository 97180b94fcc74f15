"""Find the newest S3 Inventory report and read its manifest.

AWS puts the reports of one inventory configuration at `<destination prefix>/<source bucket>/<configuration id>`:

    <YYYY-MM-DD>T<HH-MM>Z/manifest.json        names the data files, their sizes and MD5 digests
    <YYYY-MM-DD>T<HH-MM>Z/manifest.checksum    MD5 digest of manifest.json, in hexadecimal digits
    data/...                                   gzipped CSV, ORC or Parquet

A report without one of its two manifest files is not complete yet, and an earlier one is taken. The data files are read
in the bucket of the uri, so reports may be copied to another bucket with their keys.

Refused: a report of another bucket (UsageError), a manifest whose MD5 or fields are wrong (ArchiveError). A report that
lacks something must not look like a shorter listing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_location import is_s3_uri, parse_s3_uri
from coldlog.archive.stores.s3_store import S3Store
from coldlog.errors import ArchiveError, Reason, UsageError

SETTING = "scan.inventory_uri"
ADVICE = f"set {SETTING} to the manifest.json of another report, or leave it out to list the bucket itself"
MANIFEST, CHECKSUM = "manifest.json", "manifest.checksum"
FORMATS = ("CSV", "ORC", "Parquet")
_FOLDER = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\dZ")
_WRONG_FIELD = "manifest of the S3 Inventory report has a wrong field"
_MD5 = re.compile(r"[0-9a-f]{32}")
_MOST_INCOMPLETE = 5
"""So many of the newest folders may lack a manifest."""
_MOST_MANIFEST_BYTES = 256 << 20
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A data file of a report; `md5` in hexadecimal digits."""

    key: str
    size_bytes: int
    md5: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryReport:
    """One report. `created_ms`: when S3 began to make it. `columns` are those of a CSV file, in order."""

    store: S3Store
    manifest: str
    """The key of its manifest."""
    created_ms: int
    file_format: str
    columns: tuple[str, ...]
    files: tuple[ReportFile, ...]

    @property
    def shown_time(self) -> str:
        """What messages say of the report."""
        created = datetime.fromtimestamp(self.created_ms / 1000, UTC)
        return f"the S3 Inventory report of {created:%Y-%m-%dT%H:%MZ}"


def open_report(uri: str, archive_bucket: str, options: S3Options) -> InventoryReport:
    """Read the manifest at `uri`, or the newest complete one in a folder below it: a listing and two reads."""
    if not is_s3_uri(uri):
        raise UsageError(f"{SETTING} = {uri!r} is not in a bucket: give s3://bucket/prefix/source-bucket/config-id")
    location = parse_s3_uri(uri)
    store = S3Store(bucket=location.bucket, root="", uri=f"s3://{location.bucket}", options=options)
    if location.prefix.endswith(f"/{MANIFEST}"):
        content = _read_manifest(store, location.prefix.removesuffix(f"/{MANIFEST}"))
        return _parse(store, location.prefix, content, archive_bucket)
    names = [name for name in store.list_directories(location.prefix) if _FOLDER.fullmatch(name.rpartition("/")[2])]
    for folder in sorted(names, reverse=True)[:_MOST_INCOMPLETE]:
        with suppress(_IncompleteError):
            content = _read_manifest(store, folder)
            return _parse(store, f"{folder}/{MANIFEST}", content, archive_bucket)
    raise UsageError(
        f"no S3 Inventory report at {uri}: it has no folder <date>T<time>Z with {MANIFEST} and {CHECKSUM}; set "
        f"{SETTING} to s3://bucket/prefix/source-bucket/config-id, and wait up to 48 hours for the first report"
    )


def read_report_file(report: InventoryReport, file: ReportFile) -> memoryview:
    """Read a data file whole; `ArchiveError` unless it has the size and the MD5 of the manifest."""
    try:
        content = report.store.read_range(file.key, 0, file.size_bytes + 1)
    except ArchiveError as failed:
        raise failed.replaced(message=f"file of the S3 Inventory report: {failed.message} ({ADVICE})") from failed
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if content.nbytes != file.size_bytes or found != file.md5:
        raise damaged(
            file.key,
            "file of the S3 Inventory report is not the one of its manifest",
            f"{file.size_bytes} bytes with MD5 {file.md5}",
            f"{content.nbytes} with {found}",
        )
    return content


def damaged(key: str, message: str, expected: str = "", found: str = "") -> ArchiveError:
    """The error for a file of a report that cannot be used."""
    message = f"{message} ({ADVICE})"
    return ArchiveError(Reason.OBJECT_UNREADABLE, message, object_name=key, expected=expected, found=found)


class _IncompleteError(ArchiveError):
    """One of the manifest files is missing."""


def _read_manifest(store: S3Store, folder: str) -> bytes:
    checksum = _read_part(store, f"{folder}/{CHECKSUM}").decode("ascii", "replace").strip().lower()
    content = _read_part(store, f"{folder}/{MANIFEST}")
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != checksum:
        message = f"manifest of the S3 Inventory report does not have the MD5 of its {CHECKSUM}"
        raise damaged(f"{folder}/{MANIFEST}", message, checksum[:40], found)
    return content


def _read_part(store: S3Store, key: str) -> bytes:
    try:
        return bytes(store.read_range(key, 0, _MOST_MANIFEST_BYTES))
    except ArchiveError as failed:
        if failed.reason is not Reason.OBJECT_MISSING:
            raise failed.replaced(message=f"S3 Inventory report: {failed.message}") from failed
        raise _IncompleteError(
            failed.reason, f"the S3 Inventory report has no such object ({ADVICE})", object_name=key
        ) from failed


def _parse(store: S3Store, key: str, content: bytes, archive_bucket: str) -> InventoryReport:
    try:
        manifest = json.loads(content)
    except ValueError as wrong:
        raise damaged(key, f"manifest of the S3 Inventory report is not JSON: {wrong}") from wrong
    if not isinstance(manifest, dict):
        raise damaged(key, "manifest of the S3 Inventory report is not a JSON object")
    source = _field(key, manifest, "sourceBucket", str)
    if source != archive_bucket:
        raise UsageError(
            f"the S3 Inventory report s3://{store.bucket}/{key} lists the bucket {source}, but the archive is in "
            f"{archive_bucket}; correct {SETTING}"
        )
    file_format = _field(key, manifest, "fileFormat", str)
    if file_format not in FORMATS:
        raise damaged(key, "S3 Inventory report has an unknown format", f"one of {', '.join(FORMATS)}", file_format)
    listed: list[object] = _field(key, manifest, "files", list)
    files = tuple(_file(key, each) for each in listed)
    schema = _field(key, manifest, "fileSchema", str)
    return InventoryReport(
        store=store,
        manifest=key,
        created_ms=_field(key, manifest, "creationTimestamp", int),
        file_format=file_format,
        columns=tuple(name.strip() for name in schema.split(",")) if file_format == "CSV" else (),
        files=files,
    )


def _file(key: str, found: object) -> ReportFile:
    if not isinstance(found, dict):
        raise damaged(key, _WRONG_FIELD, "objects in files", repr(found)[:40])
    md5 = _field(key, found, "MD5checksum", str).lower()
    if not _MD5.fullmatch(md5):
        raise damaged(key, _WRONG_FIELD, "an MD5checksum", md5[:40])
    return ReportFile(key=_field(key, found, "key", str), size_bytes=_field(key, found, "size", int), md5=md5)


def _field(key: str, manifest: Mapping[str, object], name: str, kind: Callable[..., _Value]) -> _Value:
    found = manifest.get(name)
    is_number = kind is int and isinstance(found, str) and found.isascii() and found.isdigit()
    if is_number or (isinstance(kind, type) and isinstance(found, kind) and not isinstance(found, bool)):
        return kind(found)
    shown = "nothing" if name not in manifest else repr(found)[:40]
    raise damaged(key, _WRONG_FIELD, name, shown)
