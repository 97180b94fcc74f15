"""s3_answers: what does an answer of S3 hold, and may it be believed?

No answer is believed for its status alone: a proxy or a page of a login may have sent it. A listing is one only with
the fields that every listing has, and with keys and a way to go on as they were asked for. A range is one only if it
says that it is the range that was asked for, of an object of known size. A whole object in place of a range is what a
server sends that knows no ranges: it is believed where HEAD tells the same size and ETag. Only if the server then does
not claim to know ranges (`Accept-Ranges`) either, is a range behind the beginning refused for good (`UsageError`).
Whatever else comes is damage, which may be gone when asked again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coldlog.archive.stores.s3_failures import Asked, BodyCutError, DamagedAnswerError
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
    """A page of what is right below a prefix: keys and `prefixes` (which end in `/`), and where the next one begins."""

    keys: tuple[ListedKey, ...]
    prefixes: tuple[str, ...]
    next_token: str


async def read_object_bytes(
    s3: Any, answer: Mapping[str, Any], asked: Asked, key: str, position: int, length: int
) -> int:
    """The object's size, of an answer whose body is that range or, at position 0, the whole object."""
    status = answer["ResponseMetadata"]["HTTPStatusCode"]
    if status == 206 or answer.get("ContentRange"):
        return _ranged_object_bytes(answer, position, length)
    size_bytes, etag = answer.get("ContentLength"), answer.get("ETag")
    if status != 200 or size_bytes is None or not etag:
        raise DamagedAnswerError(f"HTTP {status} and no object to a request for a range")
    head = await s3.head_object(Bucket=asked.bucket, Key=key)
    if (head.get("ContentLength"), head.get("ETag")) != (size_bytes, etag):
        raise DamagedAnswerError("something else than the object to a request for a range")
    if not position:
        return int(size_bytes)
    if "bytes" in (answer.get("AcceptRanges"), head.get("AcceptRanges")):
        raise DamagedAnswerError("the whole object to a request for a range, as if a proxy had taken Range away")
    raise UsageError(f"the server of {asked.uri} knows no ranges of objects; coldlog cannot read from it")


def _ranged_object_bytes(answer: Mapping[str, Any], position: int, length: int) -> int:
    told = _CONTENT_RANGE.fullmatch(answer.get("ContentRange") or "")
    if told is None:
        raise DamagedAnswerError("a range that does not say of which bytes, or of how many")
    first, last, size_bytes = int(told["first"]), int(told["last"]), int(told["size"])
    is_asked = first == position < size_bytes and last == min(position + length, size_bytes) - 1
    if not is_asked or answer.get("ContentLength", last - first + 1) != last - first + 1:
        raise DamagedAnswerError("another range than was asked for")
    return size_bytes


def told_bytes(answer: Mapping[str, Any]) -> int:
    """The size that an answer to HEAD tells."""
    size_bytes = answer.get("ContentLength", -1)
    if size_bytes < 0 or not (answer.get("ETag") or answer.get("LastModified")):
        raise DamagedAnswerError("what tells of no object")
    return int(size_bytes)


async def fill(window: memoryview, body: Any, answer: Mapping[str, Any]) -> None:
    """Reads the body into `window`, which it fills."""
    filled = 0
    while filled < len(window):
        chunk = await body.read(len(window) - filled)
        if not chunk:
            raise BodyCutError
        window[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    # A body whose length was told ends there.
    if "ContentLength" not in answer and await body.read(1):
        raise DamagedAnswerError("more bytes than were asked for")


def read_page(answer: Mapping[str, Any], prefix: str, token: str) -> ListedPage:
    """A page below `prefix`, behind the one that told `token`. A `KeyError` where an entry lacks what each has."""
    # botocore makes an empty answer, and every other document, a listing without entries.
    if "IsTruncated" not in answer or not answer.keys() & {"Name", "KeyCount"}:
        raise DamagedAnswerError("what is no listing of S3")
    keys = tuple(
        ListedKey(key=each["Key"], size_bytes=each["Size"], modified_ms=round(each["LastModified"].timestamp() * 1000))
        for each in answer.get("Contents", ())
    )
    prefixes = tuple(each["Prefix"] for each in answer.get("CommonPrefixes", ()))
    if not all(each.key.startswith(prefix) and each.size_bytes >= 0 for each in keys):
        raise DamagedAnswerError("a listing with a key of elsewhere, or of a size below 0")
    if not all(each.startswith(prefix) and each.endswith("/") for each in prefixes):
        raise DamagedAnswerError("a listing with a directory of elsewhere")
    next_token = answer.get("NextContinuationToken", "") if answer["IsTruncated"] else ""
    if answer["IsTruncated"] and next_token in ("", token):
        raise DamagedAnswerError("a part of a listing that does not say where it goes on")
    return ListedPage(keys=keys, prefixes=prefixes, next_token=next_token)
