"""Compress the records of a batch as Kafka clients do.

| codec | id | framing |
|---|---|---|
| gzip | 1 | one member |
| snappy_xerial | 2 | 82 "SNAPPY" 00, int32 version 1, int32 oldest version 1; blocks of 32 KiB: int32 length, raw |
| snappy_raw | 2 | one raw block, as librdkafka writes it |
| lz4 | 3 | a frame of independent blocks of 64 KiB, no content size |
| zstd | 4 | one frame, no content size |
"""

from __future__ import annotations

import gzip
import struct
from enum import Enum

import cramjam
import lz4.frame
import zstandard

XERIAL_HEAD = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024


class Codec(Enum):
    """A codec together with its framing; snappy has two."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY_XERIAL = "snappy_xerial"
    SNAPPY_RAW = "snappy_raw"
    LZ4 = "lz4"
    ZSTD = "zstd"

    @property
    def attribute_bits(self) -> int:
        """Bits 0-2 of a batch's attributes."""
        return {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[self.kafka_name]

    @property
    def kafka_name(self) -> str:
        """The name without the framing."""
        return self.value.split("_")[0]


def compress(codec: Codec, payload: bytes) -> bytes:
    """The payload as it is after a batch header."""
    match codec:
        case Codec.NONE:
            return payload
        case Codec.GZIP:
            return gzip.compress(payload, compresslevel=6, mtime=0)
        case Codec.SNAPPY_RAW:
            return bytes(cramjam.snappy.compress_raw(payload))
        case Codec.SNAPPY_XERIAL:
            return XERIAL_HEAD + b"".join(_xerial_blocks(payload))
        case Codec.LZ4:
            block_size = lz4.frame.BLOCKSIZE_MAX64KB
            return bytes(lz4.frame.compress(payload, block_size=block_size, block_linked=False, store_size=False))
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3, write_content_size=False).compress(payload)


def _xerial_blocks(payload: bytes) -> list[bytes]:
    pieces = [payload[at : at + _XERIAL_BLOCK_BYTES] for at in range(0, len(payload), _XERIAL_BLOCK_BYTES)]
    blocks = [bytes(cramjam.snappy.compress_raw(piece)) for piece in pieces]
    return [struct.pack(">i", len(block)) + block for block in blocks]
