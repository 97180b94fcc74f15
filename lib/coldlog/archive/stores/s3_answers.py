"""Check and parse the answers of S3.

A good status is not enough: a proxy or a login page may have sent the answer. A listing must have the fields that every
listing has, keys below the requested prefix, and a continuation token if it is truncated. An answer with a range must
say that it is the requested range, and the object's size. A server that does not support ranges sends the whole object:
it is accepted for a range at the beginning if HEAD reports the same size and ETag. For a later range it is a permanent
error (`UsageError`), but only if the server does not announce `Accept-Ranges` either. Every other answer is damaged,
and the request is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from coldlog.archive.stores.object_writer import UnfinishedUpload
from coldlog.archive.stores.s3_failures import BodyCutError, DamagedAnswerError, S3Target
from coldlog.errors import UsageError

_CONTENT_RANGE = re.compile(r"bytes (?P<first>[0-9]{1,16})-(?P<last>[0-9]{1,16})/(?P<size>[0-9]{1,16})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKey:
    """One key of a listing."""

    key: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPage:
    """One page of a listing: the keys and common `prefixes` (which end in `/`) directly below a prefix, and the token
    of the next page."""

    keys: tuple[ListedKey, ...]
    prefixes: tuple[str, ...]
    next_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadsPage:
    """One page of a listing of unfinished uploads, whose names are keys, and the arguments of the next page."""

    uploads: tuple[UnfinishedUpload, ...] = ()
    next_markers: Mapping[str, str] | None = None


async def read_object_bytes(
    s3: Any, answer: Mapping[str, Any], target: S3Target, key: str, position: int, length: int
) -> int:
    """The object's size, from an answer whose body is the requested range or, at position 0, the whole object."""
    status = answer["ResponseMetadata"]["HTTPStatusCode"]
    if status == 206 or answer.get("ContentRange"):
        return _ranged_object_bytes(answer, position, length)
    size_bytes, etag = answer.get("ContentLength"), answer.get("ETag")
    if status != 200 or size_bytes is None or not etag:
        raise DamagedAnswerError(f"HTTP {status} without an object to a range request")
    head = await s3.head_object(Bucket=target.bucket, Key=key)
    if (head.get("ContentLength"), head.get("ETag")) != (size_bytes, etag):
        raise DamagedAnswerError("content that is not the object's to a range request")
    if not position:
        return int(size_bytes)
    if "bytes" in (answer.get("AcceptRanges"), head.get("AcceptRanges")):
        raise DamagedAnswerError("the whole object to a range request (a proxy may have removed Range)")
    raise UsageError(f"the server of {target.uri} does not support range requests; use a server that does")


def _ranged_object_bytes(answer: Mapping[str, Any], position: int, length: int) -> int:
    content_range = _CONTENT_RANGE.fullmatch(answer.get("ContentRange") or "")
    if content_range is None:
        raise DamagedAnswerError("a range without a valid Content-Range")
    first, last, size_bytes = (int(content_range[name]) for name in ("first", "last", "size"))
    is_requested = first == position < size_bytes and last == min(position + length, size_bytes) - 1
    if not is_requested or answer.get("ContentLength", last - first + 1) != last - first + 1:
        raise DamagedAnswerError("another range than the requested one")
    return size_bytes


def read_head_bytes(answer: Mapping[str, Any]) -> int:
    """The object's size in an answer to HEAD."""
    size_bytes = answer.get("ContentLength", -1)
    if size_bytes < 0 or not (answer.get("ETag") or answer.get("LastModified")):
        raise DamagedAnswerError("no size of an object")
    return int(size_bytes)


async def fill(window: memoryview, body: Any, answer: Mapping[str, Any]) -> None:
    """Read the body into `window`, which it must fill."""
    filled = 0
    while filled < len(window):
        chunk = await body.read(len(window) - filled)
        if not chunk:
            raise BodyCutError
        window[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    # A body with Content-Length cannot be longer.
    if "ContentLength" not in answer and await body.read(1):
        raise DamagedAnswerError("more bytes than requested")


def read_page(answer: Mapping[str, Any], prefix: str, token: str) -> ListedPage:
    """The page of `token` in a listing of `prefix`; a `KeyError` if an entry has not all required fields."""
    # botocore parses an empty answer, or any other document, as a listing without entries.
    if "IsTruncated" not in answer or not answer.keys() & {"Name", "KeyCount"}:
        raise DamagedAnswerError("no listing of S3")
    keys = tuple(
        ListedKey(key=entry["Key"], size_bytes=entry["Size"], modified_ms=_epoch_ms(entry["LastModified"]))
        for entry in answer.get("Contents", ())
    )
    prefixes = tuple(entry["Prefix"] for entry in answer.get("CommonPrefixes", ()))
    if not all(listed.key.startswith(prefix) and listed.size_bytes >= 0 for listed in keys):
        raise DamagedAnswerError("a listing with a key outside the prefix, or with a negative size")
    if not all(directory.startswith(prefix) and directory.endswith("/") for directory in prefixes):
        raise DamagedAnswerError("a listing with a directory outside the prefix")
    next_token = answer.get("NextContinuationToken", "") if answer["IsTruncated"] else ""
    if answer["IsTruncated"] and next_token in ("", token):
        raise DamagedAnswerError("a truncated listing without a new continuation token")
    return ListedPage(keys=keys, prefixes=prefixes, next_token=next_token)


def read_uploads(answer: Mapping[str, Any], prefix: str, before: UploadsPage) -> UploadsPage:
    """The page after `before` in a listing of the unfinished uploads of `prefix`."""
    if not answer.keys() & {"Bucket", "IsTruncated", "Uploads"}:
        raise DamagedAnswerError("no listing of uploads")
    try:
        uploads = tuple(
            UnfinishedUpload(name=entry["Key"], upload_id=entry["UploadId"], begun_ms=_epoch_ms(entry["Initiated"]))
            for entry in answer.get("Uploads", ())
        )
    except KeyError:
        raise DamagedAnswerError("a listing with an incomplete upload") from None
    if not all(upload.name.startswith(prefix) for upload in uploads):
        raise DamagedAnswerError("a listing with an upload outside the prefix")
    if not answer.get("IsTruncated"):
        return UploadsPage(uploads=uploads)
    markers = {"KeyMarker": answer.get("NextKeyMarker", ""), "UploadIdMarker": answer.get("NextUploadIdMarker", "")}
    if not markers["KeyMarker"] or markers == before.next_markers:
        raise DamagedAnswerError("a truncated listing of uploads without a new marker")
    return UploadsPage(uploads=uploads, next_markers=markers)


def _epoch_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
