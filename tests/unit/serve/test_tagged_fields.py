"""Test that tagged fields which the endpoint does not know are passed over, wherever a client puts them.

Newer clients may add such fields to a version of a request that exists (KIP-482). The requests are written here without
kio's writer, from its classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from typing import Any, get_type_hints
from uuid import UUID

import pytest

from asked_endpoint import encoded, sample
from coldlog.serve.answers.offered import VERSIONS
from coldlog.serve.kio_fields import is_array, is_nullable, nested_class
from coldlog.serve.messages import MalformedRequestError, load_entity, read_request

FORMATS = {
    "int8": ">b", "bool": ">?", "int16": ">h", "int32": ">i", "timedelta_i32": ">i", "int64": ">q",
}  # fmt: skip
CLIENT_ID = "client"
KNOWN_TAGS = 10
UNKNOWN = ((KNOWN_TAGS, b"abc"), (99, b""), (2**31 - 1, bytes(200)))
"""Tags that no field has, and contents."""


def _flexible_requests() -> Iterator[tuple[int, int]]:
    for key, (first, last) in VERSIONS.items():
        for version in range(first, last + 1):
            if load_entity(key, version, is_request=True).__flexible__:
                yield key, version


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([0x80 | value & 0x7F]) + _varint(value >> 7)


def _written(hint: Any, kafka_type: str | None, value: Any) -> bytes:
    if is_array(hint):
        each_hint = nested_class(hint)
        return _varint(len(value) + 1) + b"".join(_written(each_hint, kafka_type, each) for each in value)
    nested = nested_class(hint)
    if nested is not None:
        return (b"\1" if is_nullable(hint) else b"") + _with_unknown_tags(nested, value)
    if kafka_type in FORMATS:
        whole = value // timedelta(milliseconds=1) if isinstance(value, timedelta) else value
        return struct.pack(FORMATS[kafka_type], whole)
    if isinstance(value, UUID):
        return value.bytes
    content = value.encode() if isinstance(value, str) else value
    return _varint(len(content) + 1) + bytes(content)


def _with_unknown_tags(entity: Any, value: Any) -> bytes:
    hints = get_type_hints(entity)
    plain, tagged = b"", dict(UNKNOWN)
    for each in fields(entity):
        content = _written(hints[each.name], each.metadata.get("kafka_type"), getattr(value, each.name))
        if "tag" in each.metadata:
            assert each.metadata["tag"] < KNOWN_TAGS
            tagged[each.metadata["tag"]] = content
        else:
            plain += content
    return plain + _tags(tagged)


def _tags(tagged: dict[int, bytes]) -> bytes:
    written = [_varint(tag) + _varint(len(content)) + content for tag, content in sorted(tagged.items())]
    return _varint(len(tagged)) + b"".join(written)


def _header(key: int, version: int) -> bytes:
    """A header of version 2, whose client id has a length of two bytes."""
    name = CLIENT_ID.encode()
    return struct.pack(">hhih", key, version, 7, len(name)) + name + _tags(dict(UNKNOWN))


@pytest.mark.parametrize(("key", "version"), [*_flexible_requests()])
def test_unknown_tagged_fields_are_passed_over_in_all_parts_of_a_request(key: int, version: int) -> None:
    entity = load_entity(key, version, is_request=True)
    body = sample(entity, {})
    plain = read_request(encoded(body, client_id=CLIENT_ID), VERSIONS)
    assert plain.body == body
    found = read_request(_header(key, version) + _with_unknown_tags(entity, body), VERSIONS)
    assert (found.body, found.client_id, found.correlation_id) == (body, CLIENT_ID, 7)


@pytest.mark.parametrize("count", [99_000, 100_001])
def test_tagged_fields_count_as_entries_of_a_request(count: int) -> None:
    """More of them would take seconds."""
    tags = _varint(count) + b"".join(_varint(tag) + b"\0" for tag in range(KNOWN_TAGS, KNOWN_TAGS + count))
    plain = encoded(sample(load_entity(12, 4, is_request=True), {}))
    content = plain.removesuffix(b"\0") + tags
    if count < 100_000:
        assert read_request(content, VERSIONS).body == read_request(plain, VERSIONS).body
    else:
        with pytest.raises(MalformedRequestError):
            read_request(content, VERSIONS)


def test_a_tagged_field_that_does_not_end_within_the_request_is_refused() -> None:
    content = encoded(sample(load_entity(12, 4, is_request=True), {})).removesuffix(b"\0")
    for tags in (b"\1", b"\1\x63", b"\1\x63\2a", b"\2\x63\0", b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(MalformedRequestError):
            read_request(content + tags, VERSIONS)
