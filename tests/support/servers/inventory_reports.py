"""inventory_reports: S3 Inventory reports of a bucket, as AWS writes them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pyarrow as pa
from pyarrow import orc, parquet

if TYPE_CHECKING:
    from servers.s3_server import Bucket

FORMATS = ("CSV", "ORC", "Parquet")
_COLUMNS = {
    "Bucket": "bucket",
    "Key": "key",
    "VersionId": "version_id",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "ETag": "e_tag",
}
_EXTENSIONS = {"CSV": "csv.gz", "ORC": "orc", "Parquet": "parquet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A row of a report; `is_latest` is None in a report of current versions."""

    key: str
    size: int | None = 0
    modified_ms: int | None = 1_700_000_000_000
    is_latest: bool | None = None
    is_delete_marker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Where the reports of `bucket` are put."""

    bucket: Bucket
    prefix: str = "reports/it/nightly"

    @property
    def uri(self) -> str:
        return self.bucket.uri(self.prefix)

    def rows(self) -> list[Reported]:
        """Of the objects that are in the bucket now, but for the reports."""
        pages = self.bucket.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket.name)
        listed = [each for page in pages for each in page.get("Contents", ())]
        return [
            Reported(key=each["Key"], size=each["Size"], modified_ms=round(each["LastModified"].timestamp() * 1000))
            for each in listed
            if not each["Key"].startswith("reports/")
        ]

    def put(
        self,
        created_ms: int,
        file_format: str,
        rows: Sequence[Reported] | None = None,
        *,
        file_count: int = 2,
        manifest: Mapping[str, object] | None = None,
    ) -> str:
        """Put a report and return the folder of its manifest. `manifest`: fields that are other than they should be."""
        rows = self.rows() if rows is None else rows
        files = []
        for number in range(file_count):
            content = write_rows(rows[number::file_count], file_format)
            key = f"{self.prefix}/data/{created_ms}-{number}.{_EXTENSIONS[file_format]}"
            self.bucket.put({key: content})
            files.append({"key": key, "size": len(content), "MD5checksum": hashlib.md5(content).hexdigest()})
        fields = {
            "sourceBucket": self.bucket.name,
            "destinationBucket": f"arn:aws:s3:::{self.bucket.name}",
            "version": "2016-11-30",
            "creationTimestamp": str(created_ms),
            "fileFormat": file_format,
            "fileSchema": ", ".join(_names(rows)) if file_format == "CSV" else "message s3.inventory { ... }",
            "files": files,
        } | dict(manifest or {})
        created = datetime.fromtimestamp(created_ms / 1000, UTC)
        folder = f"{self.prefix}/{created:%Y-%m-%dT%H-%MZ}"
        content = json.dumps(fields).encode()
        checksum = hashlib.md5(content).hexdigest().encode()
        self.bucket.put({f"{folder}/manifest.json": content, f"{folder}/manifest.checksum": checksum + b"\n"})
        self.bucket.put({f"{self.prefix}/hive/dt={created:%Y-%m-%d-%H-%M}/symlink.txt": b"s3://..."})
        return folder


def write_rows(rows: Sequence[Reported], file_format: str, names: Sequence[str] | None = None) -> bytes:
    """A data file; `names`: the columns, by their names in a CSV schema."""
    names = _names(rows) if names is None else names
    if file_format == "CSV":
        return gzip.compress("".join(_csv_line(row, names) for row in rows).encode())
    arrays = {
        "Bucket": pa.array(["it"] * len(rows), pa.string()),
        "Key": pa.array([row.key for row in rows], pa.string()),
        "VersionId": pa.array([None] * len(rows), pa.string()),
        "IsLatest": pa.array([row.is_latest for row in rows], pa.bool_()),
        "IsDeleteMarker": pa.array([row.is_delete_marker for row in rows], pa.bool_()),
        "Size": pa.array([row.size for row in rows], pa.int64()),
        "LastModifiedDate": pa.array([row.modified_ms for row in rows], pa.timestamp("ms", "UTC")),
        "ETag": pa.array(["x"] * len(rows), pa.string()),
    }
    table = pa.table([arrays[name] for name in names], names=[_COLUMNS[name] for name in names])
    sink = io.BytesIO()
    (orc if file_format == "ORC" else parquet).write_table(table, sink)
    return sink.getvalue()


def _names(rows: Sequence[Reported]) -> list[str]:
    has_versions = any(row.is_latest is not None for row in rows)
    of_versions = ("VersionId", "IsLatest", "IsDeleteMarker")
    return [name for name in _COLUMNS if has_versions or name not in of_versions]


def _csv_line(row: Reported, names: Sequence[str]) -> str:
    modified = ""
    if row.modified_ms is not None:
        modified = datetime.fromtimestamp(row.modified_ms / 1000, UTC).isoformat(timespec="milliseconds")
    values = {
        "Bucket": "it",
        "Key": quote_plus(row.key, safe="/"),
        "VersionId": "v",
        "IsLatest": str(bool(row.is_latest)).lower(),
        "IsDeleteMarker": str(row.is_delete_marker).lower(),
        "Size": "" if row.size is None else str(row.size),
        "LastModifiedDate": modified.replace("+00:00", "Z"),
        "ETag": "x",
    }
    return ",".join(f'"{values[name]}"' for name in names) + "\n"
