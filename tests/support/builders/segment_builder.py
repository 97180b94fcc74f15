"""Write the bytes that Kafka writes for given records.

A model (Record, Batch, Segment) and a simple writer. It shares no code with coldlog.formats, so that a round trip
through both is a real test. A batch, big endian:

    int64  base_offset
    int32  batch_length            bytes after this field
    int32  partition_leader_epoch  not covered by the checksum
    int8   magic                   2
    uint32 crc                     crc32c of everything after it
    int16  attributes              0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    int32  last_offset_delta
    int64  base_timestamp          the first record's, or the delete horizon
    int64  max_timestamp           the largest record's, or the append time
    int64  producer_id
    int16  producer_epoch
    int32  base_sequence
    int32  records_count
    records, compressed together:
        varint length, int8 attributes 0, varlong timestamp_delta, varint offset_delta,
        varint key_length, key, varint value_length, value, varint header_count, headers

Nothing is refused: every field that may be wrong can be overridden, because tests need wrong values.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from builders.payload_codecs import Codec, compress

NO_TIMESTAMP_MS = -1
BATCH_HEADER_BYTES = 61
_BEFORE_CRC = struct.Struct(">qiib")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_UNSIGNED_64 = (1 << 64) - 1

Headers = tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record; `offset` None means the offset after the previous record."""

    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRecord:
    """A record as a reader must see it: its offset, its effective timestamp, its batch's leader epoch."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One record batch.

    `log_append_time_ms` makes it LogAppendTime, `delete_horizon_ms` sets attribute bit 6 and the base timestamp,
    `last_offset_delta` leaves a gap at the end (an empty batch needs it to hold any offset), and
    `stored_max_timestamp_ms` replaces the header's maximum: a compacted batch that lost its records keeps the old one.
    """

    base_offset: int
    records: tuple[Record, ...] = ()
    leader_epoch: int = 0
    codec: Codec = Codec.NONE
    log_append_time_ms: int | None = None
    is_transactional: bool = False
    is_control: bool = False
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_offset_delta: int | None = None
    delete_horizon_ms: int | None = None
    stored_max_timestamp_ms: int | None = None

    @property
    def last_offset(self) -> int:
        """The last offset, inclusive, with gaps at the end."""
        if self.last_offset_delta is not None:
            return self.base_offset + self.last_offset_delta
        return max(self._offsets, default=self.base_offset)

    @property
    def base_timestamp_ms(self) -> int:
        """The value in the header."""
        if self.delete_horizon_ms is not None:
            return self.delete_horizon_ms
        return self.records[0].timestamp_ms if self.records else NO_TIMESTAMP_MS

    @property
    def max_timestamp_ms(self) -> int:
        """The value in the header."""
        if self.stored_max_timestamp_ms is not None:
            return self.stored_max_timestamp_ms
        if self.log_append_time_ms is not None:
            return self.log_append_time_ms
        return max((record.timestamp_ms for record in self.records), default=NO_TIMESTAMP_MS)

    @property
    def attributes(self) -> int:
        """The attribute bits."""
        return (
            self.codec.attribute_bits
            | (self.log_append_time_ms is not None) << 3
            | self.is_transactional << 4
            | self.is_control << 5
            | (self.delete_horizon_ms is not None) << 6
        )

    @property
    def placed_records(self) -> tuple[PlacedRecord, ...]:
        """The records as a reader must see them, in the order of the bytes."""
        return tuple(
            PlacedRecord(
                offset=offset,
                timestamp_ms=record.timestamp_ms if self.log_append_time_ms is None else self.log_append_time_ms,
                leader_epoch=self.leader_epoch,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
            for offset, record in zip(self._offsets, self.records, strict=True)
        )

    @property
    def _offsets(self) -> list[int]:
        offsets: list[int] = []
        for record in self.records:
            following = offsets[-1] + 1 if offsets else self.base_offset
            offsets.append(following if record.offset is None else record.offset)
        return offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment: its batches, and further fields of its metadata.

    `segment_id` "" takes an id made from the batches; `modified_ms` is the file's time, which Kafka's metadata gives as
    the maximum where every timestamp is negative. `batches_per_append` is 1 for a leader; a follower appends what it
    fetched at once, and before Kafka 3.9.1 writes one index entry for it. The last two override what the batches say.
    """

    batches: tuple[Batch, ...]
    segment_id: str = ""
    modified_ms: int = 1_700_000_000_000
    index_interval_bytes: int = 4096
    batches_per_append: int = 1
    stored_start_offset: int | None = None
    stored_end_offset: int | None = None

    @property
    def start_offset(self) -> int:
        """The offset in the name: that of the first batch, or a lower one if compaction removed the first batches."""
        return self.batches[0].base_offset if self.stored_start_offset is None else self.stored_start_offset

    @property
    def end_offset(self) -> int:
        """Inclusive; in Kafka's metadata the offset before the next segment's start, so it may be after the last
        batch."""
        return self.batches[-1].last_offset if self.stored_end_offset is None else self.stored_end_offset

    @property
    def metadata_max_timestamp_ms(self) -> int:
        """The maximum in Kafka's metadata: the largest of the batch headers, or the file's time if that is negative."""
        largest = max(batch.max_timestamp_ms for batch in self.batches)
        return largest if largest >= 0 else self.modified_ms

    @property
    def placed_records(self) -> tuple[PlacedRecord, ...]:
        """All records, with control records, in the order of the bytes."""
        return tuple(record for batch in self.batches for record in batch.placed_records)


def uuid_text_of(seed: str) -> str:
    """A Kafka uuid text that depends only on the seed."""
    return base64.urlsafe_b64encode(hashlib.md5(seed.encode()).digest()).decode().rstrip("=")


def commit_marker(*, offset: int, timestamp_ms: int, producer_id: int, producer_epoch: int, leader_epoch: int) -> Batch:
    """The control batch that commits a transaction."""
    return _marker(1, offset, timestamp_ms, producer_id, producer_epoch, leader_epoch)


def abort_marker(*, offset: int, timestamp_ms: int, producer_id: int, producer_epoch: int, leader_epoch: int) -> Batch:
    """The control batch that aborts a transaction."""
    return _marker(0, offset, timestamp_ms, producer_id, producer_epoch, leader_epoch)


def is_abort_marker(batch: Batch) -> bool:
    """A control batch of type 0."""
    return batch.is_control and (batch.records[0].key or b"")[2:4] == b"\x00\x00"


def _marker(kind: int, offset: int, timestamp_ms: int, producer_id: int, producer_epoch: int, epoch: int) -> Batch:
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0)  # version and type; version, coordinator epoch
    return Batch(
        base_offset=offset,
        records=(Record(timestamp_ms=timestamp_ms, key=key, value=value),),
        leader_epoch=epoch,
        is_transactional=True,
        is_control=True,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def build_batch(batch: Batch) -> bytes:
    """The bytes of one batch."""
    records = b"".join(build_records(batch))
    return build_batch_around(batch, compress(batch.codec, records) if batch.records else b"")


def build_batch_around(batch: Batch, payload: bytes, *, records_count: int | None = None) -> bytes:
    """The batch's header, with a correct checksum, and a payload of the caller: for damage that no checksum shows."""
    after_crc = _AFTER_CRC.pack(
        batch.attributes,
        batch.last_offset - batch.base_offset,
        batch.base_timestamp_ms,
        batch.max_timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records) if records_count is None else records_count,
    )
    checked = after_crc + payload
    batch_length = BATCH_HEADER_BYTES - 12 + len(payload)
    before_crc = _BEFORE_CRC.pack(batch.base_offset, batch_length, batch.leader_epoch, 2)
    return before_crc + struct.pack(">I", crc32c(checked)) + checked


def build_records(batch: Batch) -> list[bytes]:
    """The records of a batch before compression, each with its length."""
    base_timestamp_ms = batch.base_timestamp_ms
    return [
        _build_record(record, record.timestamp_ms - base_timestamp_ms, placed.offset - batch.base_offset)
        for record, placed in zip(batch.records, batch.placed_records, strict=True)
    ]


def build_segment(batches: Iterable[Batch]) -> bytes:
    """The bytes of a `.log` file."""
    return b"".join(build_batch(batch) for batch in batches)


def varint(value: int) -> bytes:
    """Zig-zag, seven bits per byte, the lowest first; a value beyond 64 bits overflows as in Java."""
    signed = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    rest = (signed << 1 ^ signed >> 63) & _UNSIGNED_64
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _build_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + _sized(record.key) + _sized(record.value)
    body += varint(len(record.headers)) + b"".join(_sized(key) + _sized(value) for key, value in record.headers)
    return varint(len(body)) + body


def _sized(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def batch_positions(batches: Sequence[Batch]) -> list[int]:
    """The position of each batch in the segment's bytes."""
    positions = [0]
    for batch in batches:
        positions.append(positions[-1] + len(build_batch(batch)))
    return positions[:-1]
