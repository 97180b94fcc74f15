"""Write records without keys as one batch of a log.

The layout is that of `record_batch` (magic 2) and `records`: no compression, no producer, CreateTime, one timestamp for
all records of the batch. coldlog writes only such batches: events of the metadata topic.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from coldlog.errors import UsageError
from coldlog.formats.kafka.crc import CRC_START
from coldlog.formats.kafka.record_batch import LENGTH_PREFIX_BYTES

_BEFORE_CRC = struct.Struct(">qiib")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_MAGIC, _NO_PRODUCER = 2, -1
_INT32_MAX = 2**31 - 1


def write_record_batch(values: Sequence[bytes], *, base_offset: int, timestamp_ms: int, leader_epoch: int = 0) -> bytes:
    """The bytes of a batch with these values; the first record has `base_offset`, the others the following offsets."""
    if not values or base_offset < 0:
        raise UsageError(f"a batch of {len(values)} records at offset {base_offset} cannot be written")
    records = b"".join(_write_record(delta, value) for delta, value in enumerate(values))
    checked = _AFTER_CRC.pack(
        0, len(values) - 1, timestamp_ms, timestamp_ms, _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, len(values)
    )
    checked += records
    length = CRC_START - LENGTH_PREFIX_BYTES + len(checked)
    if length > _INT32_MAX:
        raise UsageError(f"a batch of {length} bytes cannot be written; write fewer records at once")
    before = _BEFORE_CRC.pack(base_offset, length, leader_epoch, _MAGIC)
    return before + struct.pack(">I", crc32c(checked)) + checked


def _write_record(offset_delta: int, value: bytes) -> bytes:
    no_key, no_headers = _zigzag(-1), _zigzag(0)
    body = b"\x00" + _zigzag(0) + _zigzag(offset_delta) + no_key + _zigzag(len(value)) + value + no_headers
    return _zigzag(len(body)) + body


def _zigzag(number: int) -> bytes:
    """A varint of a number between -1 and the largest int32."""
    rest, out = (number << 1) ^ (number >> 31), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
