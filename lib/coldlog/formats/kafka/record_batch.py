"""Find the record batches of a log, and read and check their headers.

A log is record batches one after another (magic 2, org.apache.kafka.common.record.DefaultRecordBatch), big-endian:

    0 base offset · 8 batch length · 12 partition leader epoch · 16 magic · 17 crc · 21 attributes ·
    23 last offset delta · 27 base timestamp · 35 max timestamp · 43 producer id · 51 producer epoch ·
    53 base sequence · 57 record count · 61 records

The batch length counts the bytes after itself. The crc (CRC-32C) covers everything from the attributes on. Nothing
protects the fields before it, such as the base offset and the leader epoch. Attributes: bits 0-2 codec, 3 timestamp
type (1: LogAppendTime, every record has the max timestamp), 4 transactional, 5 control, 6 delete horizon.

A log is read in windows; a batch that a window cuts is read with the next one. The first bad batch is an error for the
log: a wrong length, a crc that differs, magic 0 or 1 (message sets of brokers before 0.11, which tiered storage never
uploads) or above 2, a codec that does not exist, impossible counts and offsets, a log that ends inside a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numba
import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.compression import CODEC_NAMES
from coldlog.formats.kafka.crc import ADDRESS, CRC_START, batch_crc, checksum, find_crc_mismatch

HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
HEADER_BYTES = HEADER.itemsize
LENGTH_PREFIX_BYTES = 12
MAGIC_POSITION = 16
MIN_BATCH_LENGTH = HEADER_BYTES - LENGTH_PREFIX_BYTES
MIN_MESSAGE_LENGTH = 14
"""The shortest message of magic 0, without its length: crc, magic, attributes, key length, value length."""

CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20

Int64Column = npt.NDArray[np.int64]
Int32Column = npt.NDArray[np.int32]
Int16Column = npt.NDArray[np.int16]
UInt8Column = npt.NDArray[np.uint8]

_COMPLETE, _CUT, _BAD_LENGTH, _OLD_MAGIC, _BAD_MAGIC, _BAD_CRC, _FULL = 0, 1, 2, 3, 4, 5, 6
LARGEST_OFFSET = (1 << 63) - 1
_WALKED_AT_ONCE = 1 << 12
"""Batches. Arrays for the largest possible number of batches would be as large as the window, and new for each one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeaders:
    """Headers of consecutive batches: one numpy array per field, one entry per batch; `position` is that in the log."""

    position: Int64Column
    size_bytes: Int32Column
    base_offset: Int64Column
    last_offset: Int64Column
    leader_epoch: Int32Column
    crc: npt.NDArray[np.uint32]
    attributes: Int16Column
    base_timestamp_ms: Int64Column
    max_timestamp_ms: Int64Column
    producer_id: Int64Column
    producer_epoch: Int16Column
    base_sequence: Int32Column
    record_count: Int32Column

    def __len__(self) -> int:
        return len(self.position)

    def slice(self, first: int, last: int) -> BatchHeaders:
        """The batches from `first` to before `last`."""
        return BatchHeaders(**{field.name: getattr(self, field.name)[first:last] for field in fields(self)})

    def where(self, is_taken: npt.NDArray[np.bool_]) -> BatchHeaders:
        """The batches with a set flag in `is_taken`."""
        return BatchHeaders(**{field.name: getattr(self, field.name)[is_taken] for field in fields(self)})

    def has_any(self, bits: int) -> bool:
        """At least one batch has one of these attributes."""
        return bool((self.attributes & np.int16(bits)).any())

    @property
    def codec(self) -> Int16Column:
        """Codec ids, indexes of CODEC_NAMES."""
        return self.attributes & np.int16(CODEC_MASK)

    @property
    def is_log_append_time(self) -> npt.NDArray[np.bool_]:
        return _has(self.attributes, LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> npt.NDArray[np.bool_]:
        return _has(self.attributes, TRANSACTIONAL)

    @property
    def is_control(self) -> npt.NDArray[np.bool_]:
        return _has(self.attributes, CONTROL)


def _has(attributes: Int16Column, bit: int) -> npt.NDArray[np.bool_]:
    return np.asarray(attributes & np.int16(bit), dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowHeaders:
    """The whole batches of a window; to make progress, the next window needs at least `needed_bytes`."""

    headers: BatchHeaders
    consumed_bytes: int
    needed_bytes: int


def read_batch_headers(
    window: memoryview,
    *,
    position: int,
    next_offset: int,
    is_last: bool,
    max_batch_bytes: int,
    furthest_offset: int = LARGEST_OFFSET - 1,
) -> WindowHeaders:
    """The checked headers of the whole batches in `window`.

    The window begins at `position` of the log; `next_offset` is the lowest offset that the first batch may have, and
    `furthest_offset` the largest one of any; `is_last`: the log ends with the window. Raises `ArchiveError` with the
    position of the first bad batch.
    """
    content = np.frombuffer(window, dtype=np.uint8)
    starts, raw, end, status, length = _walk_whole(content, max_batch_bytes)
    headers = _gather(raw, starts, position)
    bad = find_crc_mismatch(window, starts, headers.size_bytes, headers.crc) if ADDRESS == 0 else None
    _require_fields(headers if bad is None else headers.slice(0, bad), next_offset, furthest_offset)
    if bad is not None or status == _BAD_CRC:
        raise _refuse_crc(window, end if bad is None else int(starts[bad]), position)
    if status not in (_COMPLETE, _CUT):
        raise _refuse_batch(status, position + end, length, content, end, max_batch_bytes)
    if status == _CUT and is_last:
        raise ArchiveError(
            Reason.LOG_TRUNCATED,
            "log ends inside a batch",
            position=position + end,
            expected=f"{max(length, HEADER_BYTES)} bytes",
            found=f"{len(content) - end} bytes",
        )
    return WindowHeaders(headers=headers, consumed_bytes=end, needed_bytes=max(length, HEADER_BYTES))


def _walk_whole(content: UInt8Column, max_batch_bytes: int) -> tuple[Int64Column, UInt8Column, int, int, int]:
    """The starts of the batches and their raw headers, the position at which the walk stopped, why, and the size of the
    batch there (0: unknown)."""
    starts, raw = np.empty(_WALKED_AT_ONCE, dtype=np.int64), np.empty((_WALKED_AT_ONCE, HEADER_BYTES), dtype=np.uint8)
    count, end, status, length = _walk(content, 0, max_batch_bytes, starts, raw, ADDRESS)
    if status != _FULL:
        return starts[:count], raw[:count], end, status, length
    pieces = [(starts, raw)]
    while status == _FULL:
        starts, raw = np.empty_like(starts), np.empty_like(raw)
        count, end, status, length = _walk(content, end, max_batch_bytes, starts, raw, ADDRESS)
        pieces.append((starts[:count], raw[:count]))
    return (
        np.concatenate([piece[0] for piece in pieces]),
        np.concatenate([piece[1] for piece in pieces]),
        end,
        status,
        length,
    )


@numba.njit(cache=True, nogil=True)
def _walk(content, begin, max_batch_bytes, starts, raw, address):  # type: ignore[no-untyped-def]  # noqa: C901  # numba infers it; one loop
    """Walk from `begin` on and fill `starts` and the raw headers `raw`; return the number of batches, the position at
    which the walk stopped, why, and the size of the batch there (0: unknown).

    Unless `address` is 0, the walk also checks the checksums, so that the processor reads the bytes once, in order.
    """
    count, at, end = 0, np.int64(begin), len(content)
    data = np.int64(content.ctypes.data)
    while at < end:
        if count == len(starts):
            return count, at, _FULL, 0
        if at + MAGIC_POSITION + 1 > end:
            return count, at, _CUT, 0
        length = np.int64(0)
        for i in range(8, 12):
            length = (length << 8) | content[at + i]
        magic = content[at + MAGIC_POSITION]
        if length >= 1 << 31 or length < MIN_MESSAGE_LENGTH or length + LENGTH_PREFIX_BYTES > max_batch_bytes:
            return count, at, _BAD_LENGTH, length
        if magic < 2:
            return count, at, _OLD_MAGIC, length
        if magic > 2:
            return count, at, _BAD_MAGIC, length
        if length < MIN_BATCH_LENGTH:
            return count, at, _BAD_LENGTH, length
        size = length + LENGTH_PREFIX_BYTES
        if size > end - at:
            return count, at, _CUT, size
        if address != 0:
            stored = np.uint32(0)
            for i in range(17, CRC_START):
                stored = np.uint32((stored << 8) | content[at + i])
            if checksum(address, data + at + CRC_START, size - CRC_START) != stored:
                return count, at, _BAD_CRC, size
        starts[count] = at
        for i in range(HEADER_BYTES):
            raw[count, i] = content[at + i]
        count += 1
        at += size
    return count, at, _COMPLETE, 0


def _refuse_batch(
    status: int, position: int, length: int, content: UInt8Column, at: int, max_batch_bytes: int
) -> ArchiveError:
    if status == _BAD_LENGTH:
        signed = length - (1 << 32) if length >= 1 << 31 else length
        return ArchiveError(
            Reason.BATCH_LENGTH_INVALID,
            "batch has an impossible length",
            position=position,
            expected=f"{MIN_BATCH_LENGTH} to {max_batch_bytes - LENGTH_PREFIX_BYTES}",
            found=str(signed),
        )
    magic = int(content[at + MAGIC_POSITION].view(np.int8))
    message = (
        "messages of format v0 or v1 (brokers before 0.11) are not supported; to have their records, copy them to "
        "another topic with a Kafka consumer"
        if status == _OLD_MAGIC
        else "batch has a magic that does not exist"
    )
    return ArchiveError(
        Reason.UNSUPPORTED_MAGIC, message, position=position, expected="magic 2", found=f"magic {magic}"
    )


def _gather(raw: UInt8Column, starts: Int64Column, position: int) -> BatchHeaders:
    # Copying the bytes is cheaper than a view of another type.
    fields_of = np.frombuffer(raw.tobytes(), dtype=HEADER)
    base_offset = fields_of["base_offset"].astype(np.int64)
    return BatchHeaders(
        position=starts + position,
        size_bytes=(fields_of["batch_length"] + np.int32(LENGTH_PREFIX_BYTES)).astype(np.int32),
        base_offset=base_offset,
        last_offset=base_offset + fields_of["last_offset_delta"],
        leader_epoch=fields_of["leader_epoch"].astype(np.int32),
        crc=fields_of["crc"].astype(np.uint32),
        attributes=fields_of["attributes"].astype(np.int16),
        base_timestamp_ms=fields_of["base_timestamp_ms"].astype(np.int64),
        max_timestamp_ms=fields_of["max_timestamp_ms"].astype(np.int64),
        producer_id=fields_of["producer_id"].astype(np.int64),
        producer_epoch=fields_of["producer_epoch"].astype(np.int16),
        base_sequence=fields_of["base_sequence"].astype(np.int32),
        record_count=fields_of["record_count"].astype(np.int32),
    )


def _refuse_crc(window: memoryview, start: int, position: int) -> ArchiveError:
    size = int.from_bytes(window[start + 8 : start + 12], "big") + LENGTH_PREFIX_BYTES
    stored = int.from_bytes(window[start + 17 : start + CRC_START], "big")
    return ArchiveError(
        Reason.CRC_MISMATCH,
        "batch does not match its checksum",
        position=position + start,
        expected=f"crc {stored:#010x}",
        found=f"crc {batch_crc(window, start, size):#010x}",
    )


def _require_fields(headers: BatchHeaders, next_offset: int, furthest_offset: int) -> None:
    if _are_fields_good(
        headers.base_offset, headers.last_offset, headers.record_count, headers.attributes, np.int64(next_offset),
        np.int64(furthest_offset), len(CODEC_NAMES) - 1,
    ):  # fmt: skip
        return
    base_offset, last_offset, count, codec = (
        column.astype(np.int64)
        for column in (headers.base_offset, headers.last_offset, headers.record_count, headers.codec)
    )
    delta = last_offset - base_offset
    allowed_from = np.concatenate(([np.int64(next_offset)], last_offset[:-1] + 1))
    none, last_codec = np.zeros_like(delta), np.full_like(delta, len(CODEC_NAMES) - 1)
    is_below = (last_offset < 0) | (delta < 0)
    checks = (
        _FieldCheck(
            Reason.HEADER_INVALID, "has a negative base offset", base_offset < 0, base_offset, "at least", none
        ),
        _FieldCheck(
            Reason.HEADER_INVALID,
            "has a last offset below its base offset",
            is_below,
            last_offset,
            "at least",
            base_offset,
        ),
        _FieldCheck(
            Reason.HEADER_INVALID,
            "has the largest possible last offset",
            last_offset == LARGEST_OFFSET,
            last_offset,
            "at most",
            np.full_like(delta, LARGEST_OFFSET - 1),
        ),
        _FieldCheck(
            Reason.HEADER_INVALID,
            "is too far from the segment's start offset",
            last_offset > furthest_offset,
            last_offset,
            "at most",
            np.full_like(delta, furthest_offset),
        ),
        _FieldCheck(Reason.HEADER_INVALID, "has a negative record count", count < 0, count, "at least", none),
        _FieldCheck(
            Reason.HEADER_INVALID, "has more records than offsets", count > delta + 1, count, "at most", delta + 1
        ),
        _FieldCheck(
            Reason.UNSUPPORTED_CODEC,
            "has a codec that does not exist",
            codec > last_codec,
            codec,
            "at most",
            last_codec,
        ),
        _FieldCheck(
            Reason.OFFSETS_NOT_ASCENDING,
            "begins before the end of the previous batch",
            base_offset < allowed_from,
            base_offset,
            "at least",
            allowed_from,
        ),
    )
    bad = [(int(np.argmax(check.is_bad)), check) for check in checks if check.is_bad.any()]
    if not bad:
        return
    first, check = min(bad, key=lambda found: found[0])
    raise ArchiveError(
        check.reason,
        f"batch {check.complaint}",
        position=int(headers.position[first]),
        expected=f"{check.side} {int(check.bound[first])}",
        found=str(int(check.found[first])),
    )


@dataclass(frozen=True, slots=True)
class _FieldCheck:
    """A check of a field of each batch; the value must be `side` ("at least" or "at most") `bound`."""

    reason: Reason
    complaint: str
    is_bad: npt.NDArray[np.bool_]
    found: Int64Column
    side: str
    bound: Int64Column


@numba.njit(cache=True, nogil=True)
def _are_fields_good(base_offset, last_offset, record_count, attributes, allowed_from, furthest, last_codec):  # type: ignore[no-untyped-def]  # numba infers it
    """All checks of `_require_fields` in one pass, because nearly always all fields are good."""
    for i in range(len(base_offset)):
        delta = last_offset[i] - base_offset[i]
        if base_offset[i] < allowed_from or last_offset[i] < 0 or delta < 0 or last_offset[i] > furthest:
            return False
        if record_count[i] < 0 or record_count[i] > delta + 1 or (attributes[i] & CODEC_MASK) > last_codec:
            return False
        allowed_from = last_offset[i] + 1
    return True
