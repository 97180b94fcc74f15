"""Write message sets, Kafka's format before record batches: magic 0 (to 0.9) and magic 1 (to 0.10).

A message, big endian; compressed messages are a message set in the value of a wrapper:

    int64  offset
    int32  message_size   bytes after this field
    uint32 crc            crc32, not crc32c, of everything after it
    int8   magic          0 or 1
    int8   attributes     0-2 codec, 3 LogAppendTime
    int64  timestamp      only in magic 1
    int32  key_length     -1: null
    key
    int32  value_length
    value

In a wrapper of magic 1 the inner offsets count from 0 and the wrapper has the last one's; in magic 0 they are absolute.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Literal

from builders.payload_codecs import Codec, compress
from builders.segment_builder import Record

Magic = Literal[0, 1]


def build_message_set(magic: Magic, base_offset: int, records: Sequence[Record]) -> bytes:
    """Messages one after another, without compression; headers are dropped, because this format has none."""
    return b"".join(
        _build_message(magic, base_offset + number, 0, record.timestamp_ms, record.key, record.value)
        for number, record in enumerate(records)
    )


def build_compressed_message_set(magic: Magic, base_offset: int, records: Sequence[Record], codec: Codec) -> bytes:
    """One wrapper around all messages."""
    inner = build_message_set(magic, 0 if magic == 1 else base_offset, records)
    last_offset = base_offset + len(records) - 1
    largest = max(record.timestamp_ms for record in records)
    return _build_message(magic, last_offset, codec.attribute_bits, largest, None, compress(codec, inner))


def _build_message(
    magic: Magic, offset: int, attributes: int, timestamp_ms: int, key: bytes | None, value: bytes | None
) -> bytes:
    timestamp = struct.pack(">q", timestamp_ms) if magic == 1 else b""
    checked = struct.pack(">bb", magic, attributes) + timestamp + _sized(key) + _sized(value)
    return struct.pack(">qiI", offset, len(checked) + 4, zlib.crc32(checked)) + checked


def _sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
