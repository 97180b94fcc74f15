"""Decode the batches of a golden segment into the builders' model, with kafka-python and without coldlog."""

from __future__ import annotations

import gzip
import struct
import warnings
from collections.abc import Iterator

import cramjam
import lz4.frame
import zstandard

from builders.payload_codecs import XERIAL_HEAD, Codec
from builders.segment_builder import BATCH_HEADER_BYTES, Batch, Record

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas through a deprecated call of importlib when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch

CODECS_BY_BITS = {0: Codec.NONE, 1: Codec.GZIP, 2: Codec.SNAPPY_RAW, 3: Codec.LZ4, 4: Codec.ZSTD}


def split_batches(log: bytes) -> Iterator[bytes]:
    """The bytes of each complete batch; a copy cut by a crash ends inside a batch."""
    position = 0
    while position + BATCH_HEADER_BYTES <= len(log):
        end = position + 12 + int(struct.unpack_from(">i", log, position + 8)[0])
        if end <= len(log):
            yield log[position:end]
        position = end


def decompress(codec: Codec, payload: bytes) -> bytes:
    """The inverse of `compress`, with other functions."""
    if payload.startswith(XERIAL_HEAD):
        return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in split_xerial(payload))
    match codec:
        case Codec.GZIP:
            return gzip.decompress(payload)
        case Codec.LZ4:
            return bytes(lz4.frame.decompress(payload))
        case Codec.ZSTD:
            return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
        case Codec.SNAPPY_RAW | Codec.SNAPPY_XERIAL:
            return bytes(cramjam.snappy.decompress_raw(payload))
        case Codec.NONE:
            return payload


def split_xerial(payload: bytes) -> Iterator[bytes]:
    position = len(XERIAL_HEAD)
    while position < len(payload):
        size = int(struct.unpack_from(">i", payload, position)[0])
        yield payload[position + 4 : position + 4 + size]
        position += 4 + size


def model_of(raw: bytes) -> tuple[Batch, bytes]:
    """A golden batch, decoded by kafka-python, in the builders' model, and its records before compression.

    It reads a copy without the codec and LogAppendTime bits, or it would hide the timestamps that clients sent.
    """
    attributes = int(struct.unpack_from(">h", raw, 21)[0])
    codec = CODECS_BY_BITS[attributes & 0b111]
    records_bytes = decompress(codec, raw[BATCH_HEADER_BYTES:])
    plain = raw[:21] + struct.pack(">h", attributes & ~0b1111) + raw[23:BATCH_HEADER_BYTES] + records_bytes
    decoded = DefaultRecordBatch(plain)
    batch = Batch(
        base_offset=decoded.base_offset,
        records=tuple(
            Record(
                offset=record.offset,
                timestamp_ms=record.timestamp,
                key=record.key,
                value=record.value,
                headers=tuple((key.encode(), value) for key, value in record.headers),
            )
            for record in decoded
        ),
        leader_epoch=decoded.leader_epoch,
        codec=codec,
        log_append_time_ms=decoded.max_timestamp if attributes & 0b1000 else None,
        is_transactional=decoded.is_transactional,
        is_control=decoded.is_control_batch,
        producer_id=decoded.producer_id,
        producer_epoch=decoded.producer_epoch,
        base_sequence=decoded.base_sequence,
    )
    return batch, records_bytes
