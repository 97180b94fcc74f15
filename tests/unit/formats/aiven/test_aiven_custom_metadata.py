"""Test the custom metadata that the Aiven plugin writes to the metadata topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.aiven.custom_metadata import AivenCustomMetadata, read_aiven_custom_metadata


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tagged(*fields: tuple[int, bytes]) -> bytes:
    return varint(len(fields)) + b"".join(varint(tag) + varint(len(body)) + body for tag, body in fields)


def text(value: str) -> bytes:
    raw = value.encode()
    return varint(len(raw) + 1) + raw


@given(st.integers(-(2**63), 2**63 - 1), st.text(max_size=300), st.text(max_size=300))
def test_every_field_is_read(size: int, prefix: str, key: str) -> None:
    zigzag = (size << 1) ^ (size >> 63)
    content = tagged((0, varint(zigzag)), (1, text(prefix)), (2, text(key)), (9, b"of a later version"))
    assert read_aiven_custom_metadata(content) == AivenCustomMetadata(
        remote_bytes=size, object_prefix=prefix, object_key=key
    )


def test_missing_fields_are_none() -> None:
    assert read_aiven_custom_metadata(b"") == AivenCustomMetadata()
    assert read_aiven_custom_metadata(b"\x00") == AivenCustomMetadata()
    assert read_aiven_custom_metadata(tagged((1, text("tier/")))) == AivenCustomMetadata(object_prefix="tier/")


@pytest.mark.parametrize(
    "content",
    [
        b"\x05",
        tagged((1, text("a"))) + b"x",
        tagged((1, b"\x00")),
        tagged((1, text("a") + b"x")),
        tagged((1, b"\x03\xff\xff")),
        tagged((0, b"")),
        tagged((0, b"\x80")),
        tagged((0, b"\x01\x01")),
        tagged((0, b"\xff" * 10 + b"\x01")),
        tagged((2, text("b")), (1, text("a"))),
    ],
)
def test_damaged_fields_are_refused(content: bytes) -> None:
    with pytest.raises(ArchiveError) as refused:
        read_aiven_custom_metadata(content)
    assert refused.value.reason is Reason.METADATA_EVENT_INVALID


@given(st.binary(max_size=60))
def test_any_bytes_are_metadata_or_an_archive_error(content: bytes) -> None:
    try:
        read_aiven_custom_metadata(content)
    except ArchiveError as refused:
        assert refused.reason is Reason.METADATA_EVENT_INVALID  # noqa: PT017 - either is right, nothing else is
