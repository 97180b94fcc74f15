"""Check the lengths in a request before it is read.

kio reserves memory for as many entries as an array says that it has, and a process that cannot get it is ended. So a
walk over the bytes, by the fields of kio's classes, finds every length first: an entry takes at least one byte. What
does not end within the request is refused, and so is null for an array that may not be null, which kio lets pass.

All arrays and tagged fields of a request together have at most `_MOST_ENTRIES`. More of them would take seconds, and a
hundred times the memory of their bytes.

Newer clients may add tagged fields to a version that exists (KIP-482). A reader has to pass over those that it does not
know; kio refuses them, so they are taken out of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from kio.serial.readers import read_nullable_legacy_string

from coldlog.serve.answer_writer import varint
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
    """The bytes of a request, how many entries its arrays have so far, and which parts kio could not read: from which
    position to which, and what to put there."""

    entries = 0
    edits: list[tuple[int, int, bytes]]

    def edited(self, first: int, end: int, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
        """Return the bytes between two positions with these edits, which ascend."""
        pieces = []
        for begin, after, instead in edits:
            pieces += [self[first:begin], instead]
            first = after
        return b"".join([*pieces, self[first:end]])


def read_header(content: bytes, at: int, *, is_flexible: bool) -> tuple[str | None, int]:
    """Read the rest of a request's header: the client's id, and tagged fields, of which none is known. Return the id,
    and where the body begins."""
    client_id, size = read_nullable_legacy_string(content, at)
    at += size
    if is_flexible:
        at = at + 1 if content[at : at + 1] == _NO_TAGS else _skip_tagged(_unread(content), at, {})
    return client_id, at


def readable_body(entity: Any, content: bytes, at: int) -> tuple[bytes, int]:
    """Check the body at this position, which is of kio's class. Return bytes that kio can read, and where it begins in
    them. Raise `ValueError` if the body does not end within its bytes."""
    unread = _unread(content)
    skip_entity(entity)(unread, at)
    if not unread.edits:
        return content, at
    return unread.edited(at, len(unread), unread.edits), 0


def _unread(content: bytes) -> Unread:
    unread = Unread(content)
    unread.edits = []
    return unread


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
        _count(content, at, count)
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
    begin, edits_before = at, len(content.edits)
    count, at = _read_varint(content, at)
    _count(content, at, count)
    fields: list[tuple[int, bytes]] = []
    for _ in range(count):
        tag, at = _read_varint(content, at)
        size, at = _read_varint(content, at)
        end = _within(content, at + size)
        if tag in known:
            known[tag](content, at)
            within, content.edits[edits_before:] = content.edits[edits_before:], []
            fields.append((tag, content.edited(at, end, within)))
        at = end
    written = [varint(tag) + varint(len(field)) + field for tag, field in fields]
    readable = varint(len(fields)) + b"".join(written)
    if readable != content[begin:at]:
        content.edits.append((begin, at, readable))
    return at


def _count(content: Unread, at: int, count: int) -> None:
    """Count the entries of an array, or tagged fields. Raise `ValueError` if they are too many."""
    if count > len(content) - at:
        raise ValueError(f"{count} entries in {len(content) - at} bytes")
    content.entries += max(0, count)
    if content.entries > _MOST_ENTRIES:
        raise ValueError(f"more than {_MOST_ENTRIES} entries")


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
