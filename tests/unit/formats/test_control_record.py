"""Test that the type of a control record is read from its key, and that other bytes are refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from builders.segment_builder import abort_marker, build_batch, commit_marker, varint
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.control_record import ControlRecordType, read_control_record_type

HEADER_BYTES = 61


def record(key: bytes, *, timestamp_delta: int = 300, offset_delta: int = 70, after: bytes = b"\x01\x00") -> bytes:
    """A record with this key; `after` are the bytes after the key, by default no value and no headers."""
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + varint(len(key)) + key + after
    return varint(len(body)) + body


def read(content: bytes, start: int = 0) -> ControlRecordType:
    buffer = np.frombuffer(content, dtype=np.uint8)
    return read_control_record_type(buffer, start, len(content), 7)


def test_markers_are_told_apart() -> None:
    place = {"offset": 5, "timestamp_ms": 1, "producer_id": 3, "producer_epoch": 0, "leader_epoch": 0}
    assert read(build_batch(abort_marker(**place)), HEADER_BYTES) is ControlRecordType.ABORT
    assert read(build_batch(commit_marker(**place)), HEADER_BYTES) is ControlRecordType.COMMIT
    assert len(ControlRecordType) == 3


@pytest.mark.parametrize(
    ("kind", "expected"), [(0, "ABORT"), (1, "COMMIT"), (2, "OTHER"), (-1, "OTHER"), (256, "OTHER")]
)
def test_type_is_the_second_number_of_the_key(kind: int, expected: str) -> None:
    key = struct.pack(">hh", 0, kind)
    assert read(record(key)).name == expected
    assert read(record(key + b"of a later version")).name == expected
    assert read(record(key, after=b"")).name == expected, "only the key is read"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 6,
        record(b"\x00\x00\x00"),
        record(struct.pack(">hh", 0, 1), after=b"")[:-1],
        record(struct.pack(">hh", 0, 1), after=b"")[:-5],
    ],
    ids=["nothing", "a number that does not end", "a short key", "a cut key", "no key"],
)
def test_batch_without_a_marker_is_refused_at_its_position(content: bytes) -> None:
    with pytest.raises(ArchiveError, match="control batch has no marker") as refused:
        read(content)
    assert (refused.value.reason, refused.value.position) == (Reason.CONTROL_RECORD_INVALID, 7)
