"""Check the lengths in a request before it is read.

kio reserves memory for as many entries as an array says that it has, and a process that cannot get it is ended. So a
walk over the bytes, by the fields of kio's classes, finds every length first: an entry takes at least one byte. What
does not end within the request is refused, and so is null for an array that may not be null, which kio lets pass.

All arrays of a request together have at most `_MOST_ENTRIES`. More of them would take seconds, and a hundred times the
memory of their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from coldlog.serve.kio_fields import is_array, is_nullable, nested_class

_SIZES = {
    "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4,
    "timedelta_i32": 4, "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8, "uuid": 16,
}  # fmt: skip
_MOST_VARINT_BYTES = 5
_NO_TAGS = b"\0"
_MOST_ENTRIES = 100_000
Skip = Callable[["Unread", int], int]
"""Returns the position after what begins at a position; `ValueError` if it does not end within the bytes."""


class Unread(bytes):
    """The bytes of a request, and how many entries its arrays have so far."""

    entries = 0


@cache
def skip_entity(entity: Any) -> Skip:
    """Return what skips one entity of kio's class. Consecutive fields of fixed size are skipped at once."""
    hints, is_flexible = get_type_hints(entity), bool(entity.__flexible__)
    plain: list[Skip] = []
    tagged: dict[int, Skip] = {}
    for field in fields(entity):
        skip = _skip_field(hints[field.name], field.metadata.get("kafka_type"), is_flexible=is_flexible)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = skip
        elif isinstance(skip, _Fixed) and plain and isinstance(plain[-1], _Fixed):
            plain[-1] = _Fixed(plain[-1].size + skip.size)
        else:
            plain.append(skip)

    def skip_fields(content: Unread, at: int) -> int:
        for skip in plain:
            at = skip(content, at)
        return _skip_tagged(content, at, tagged) if is_flexible else at

    return plain[0] if len(plain) == 1 and not is_flexible else skip_fields


def _skip_field(hint: Any, kafka_type: str | None, *, is_flexible: bool) -> Skip:
    item = nested_class(hint)
    skip = skip_entity(item) if item is not None else _skip_primitive(kafka_type or "", is_flexible=is_flexible)
    if is_array(hint):
        return _skip_array(skip, is_flexible=is_flexible, may_be_null=is_nullable(hint))
    return _skip_nullable(skip) if is_nullable(hint) and item is not None else skip


def _skip_primitive(kafka_type: str, *, is_flexible: bool) -> Skip:
    if kafka_type in _SIZES:
        return _Fixed(_SIZES[kafka_type])
    if kafka_type not in ("string", "bytes", "records"):
        raise TypeError(f"unknown type of a field: {kafka_type!r}")
    width = 2 if kafka_type == "string" else 4

    def skip_sized(content: Unread, at: int) -> int:
        size, at = _read_length(content, at, width, is_flexible=is_flexible)
        return _within(content, at + max(0, size))

    return skip_sized


class _Fixed:
    """Skips a number of bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, content: Unread, at: int) -> int:
        return _within(content, at + self.size)


def _skip_nullable(skip: Skip) -> Skip:
    """Skip an entity that may be null: one byte says whether it follows."""

    def skip_nullable(content: Unread, at: int) -> int:
        after = _within(content, at + 1)
        return after if content[at] >= 0x80 else skip(content, after)

    return skip_nullable


def _skip_array(skip: Skip, *, is_flexible: bool, may_be_null: bool) -> Skip:
    def skip_entries(content: Unread, at: int) -> int:
        count, at = _read_length(content, at, 4, is_flexible=is_flexible)
        if count > len(content) - at:
            raise ValueError(f"an array of {count} entries in {len(content) - at} bytes")
        content.entries += max(0, count)
        if content.entries > _MOST_ENTRIES:
            raise ValueError(f"more than {_MOST_ENTRIES} entries")
        if count < 0 and not may_be_null:
            raise ValueError("an array is null that may not be")
        if isinstance(skip, _Fixed):
            return _within(content, at + max(0, count) * skip.size)
        for _ in range(count):
            at = skip(content, at)
        return at

    return skip_entries


def _skip_tagged(content: Unread, at: int, known: dict[int, Skip]) -> int:
    if content[at : at + 1] == _NO_TAGS:
        return at + 1
    count, at = _read_varint(content, at)
    for _ in range(count):
        tag, at = _read_varint(content, at)
        size, at = _read_varint(content, at)
        end = _within(content, at + size)
        if tag in known:
            known[tag](content, at)
        at = end
    return at


def _read_length(content: Unread, at: int, width: int, *, is_flexible: bool) -> tuple[int, int]:
    """Return a length, -1 for null, and the position after it."""
    if is_flexible:
        size, at = _read_varint(content, at)
        return size - 1, at
    return int.from_bytes(content[at : _within(content, at + width)], "big", signed=True), at + width


def _read_varint(content: Unread, at: int) -> tuple[int, int]:
    if at < len(content) and content[at] < 0x80:
        return content[at], at + 1
    value = 0
    for shift in range(0, 7 * _MOST_VARINT_BYTES, 7):
        byte = content[_within(content, at + 1) - 1]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that does not end")


def _within(content: Unread, at: int) -> int:
    if at > len(content):
        raise ValueError("the request ends before its fields")
    return at
