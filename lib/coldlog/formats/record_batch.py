"""record_batch: where are the batches of a log, and what do their headers say?

A log is record batches one after another (magic 2, org.apache.kafka.common.record.DefaultRecordBatch), big-endian:

    0 base offset · 8 batch length · 12 partition leader epoch · 16 magic · 17 crc · 21 attributes ·
    23 last offset delta · 27 base timestamp · 35 max timestamp · 43 producer id · 51 producer epoch ·
    53 base sequence · 57 record count · 61 records

The batch length counts the bytes behind itself. The crc (CRC-32C) covers everything from the attributes on; what lies
before it, the base offset and the leader epoch among others, nothing protects. Attributes: bits 0-2 codec, 3 timestamp
type (1: LogAppendTime, every record has the max timestamp), 4 transactional, 5 control, 6 delete horizon.

A log is read in windows; a batch that a window cuts is left for the next one. The first bad batch refuses the log: a
length that lies, a crc that differs, magic 0 or 1 (message sets of brokers before 0.11, which tiered storage never
uploads) or above 2, a codec that does not exist, counts and offsets that cannot be, a log that ends inside a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numba
import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.crc import batch_crc, find_crc_mismatch

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
"""The shortest message of magic 0, behind its length: crc, magic, attributes, key length, value length."""

CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

Int64Column = npt.NDArray[np.int64]
Int32Column = npt.NDArray[np.int32]
Int16Column = npt.NDArray[np.int16]
UInt8Column = npt.NDArray[np.uint8]

_COMPLETE, _CUT, _BAD_LENGTH, _OLD_MAGIC, _BAD_MAGIC = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeaders:
    """Headers of consecutive batches, a numpy array a field and an entry a batch; `position` counts from the log's
    start."""

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
        return BatchHeaders(**{each.name: getattr(self, each.name)[first:last] for each in fields(self)})

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
    """The whole batches of a window; `needed_bytes` is what the next window must hold at least to make progress."""

    headers: BatchHeaders
    consumed_bytes: int
    needed_bytes: int


def read_batch_headers(
    window: memoryview, *, position: int, next_offset: int, is_last: bool, max_batch_bytes: int
) -> WindowHeaders:
    """The headers of the batches that lie whole in `window`, checked.

    `position` is where the window begins in the log, `next_offset` the lowest offset that may come next, `is_last`
    says that the log ends where the window ends. Raises `ArchiveError` with the position of the first bad batch.
    """
    content = np.frombuffer(window, dtype=np.uint8)
    starts = np.empty(len(content) // HEADER_BYTES + 1, dtype=np.int64)
    count, end, status, length = _walk(content, max_batch_bytes, starts)
    headers = _gather(content, starts[:count], position)
    _require_crcs(window, headers, position)
    _require_fields(headers, next_offset)
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


@numba.njit(cache=True, nogil=True)
def _walk(content, max_batch_bytes, starts):  # type: ignore[no-untyped-def]  # noqa: C901  # numba infers it; one loop
    """Fills `starts`; returns how many, where it stopped, why, and the size of the batch there (0: unknown)."""
    count, at, end = 0, np.int64(0), len(content)
    while at < end:
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
        starts[count] = at
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
        "message set of a broker before 0.11, which is not read"
        if status == _OLD_MAGIC
        else "batch has a magic that does not exist"
    )
    return ArchiveError(
        Reason.UNSUPPORTED_MAGIC, message, position=position, expected="magic 2", found=f"magic {magic}"
    )


def _gather(content: UInt8Column, starts: Int64Column, position: int) -> BatchHeaders:
    if len(starts):
        raw = np.lib.stride_tricks.sliding_window_view(content, HEADER_BYTES)[starts]
    else:
        raw = np.empty((0, HEADER_BYTES), np.uint8)
    fields_of = np.ascontiguousarray(raw).view(HEADER).reshape(len(starts))
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


def _require_crcs(window: memoryview, headers: BatchHeaders, position: int) -> None:
    starts = headers.position - position
    bad = find_crc_mismatch(window, starts, headers.size_bytes, headers.crc)
    if bad is None:
        return
    found = batch_crc(window, int(starts[bad]), int(headers.size_bytes[bad]))
    raise ArchiveError(
        Reason.CRC_MISMATCH,
        "batch does not match its checksum",
        position=int(headers.position[bad]),
        expected=f"crc {int(headers.crc[bad]):#010x}",
        found=f"crc {found:#010x}",
    )


def _require_fields(headers: BatchHeaders, next_offset: int) -> None:
    delta = headers.last_offset - headers.base_offset
    allowed_from = np.concatenate(([np.int64(next_offset)], headers.last_offset[:-1] + 1)) if len(headers) else delta
    codec = headers.codec
    checks = (
        (
            (headers.base_offset < 0) | (headers.last_offset < 0) | (delta < 0),
            "last offset below its base offset",
            delta,
        ),
        (headers.record_count < 0, "negative record count", headers.record_count),
        (headers.record_count > delta + 1, "more records than offsets", headers.record_count),
    )
    bad = [
        (int(np.argmax(is_bad)), Reason.HEADER_INVALID, text, found) for is_bad, text, found in checks if is_bad.any()
    ]
    if (codec >= len(CODEC_NAMES)).any():
        bad.append(
            (int(np.argmax(codec >= len(CODEC_NAMES))), Reason.UNSUPPORTED_CODEC, "codec that does not exist", codec)
        )
    is_behind = headers.base_offset < allowed_from
    if is_behind.any():
        bad.append(
            (int(np.argmax(is_behind)), Reason.OFFSETS_NOT_ASCENDING, "base offset not behind", headers.base_offset)
        )
    if not bad:
        return
    first, reason, text, found = min(bad, key=lambda each: each[0])
    expected = f"{int(allowed_from[first])} or more" if reason is Reason.OFFSETS_NOT_ASCENDING else ""
    raise ArchiveError(
        reason,
        f"batch has a {text}"
        if reason is not Reason.OFFSETS_NOT_ASCENDING
        else "batch begins before the offsets already met",
        position=int(headers.position[first]),
        expected=expected,
        found=str(int(found[first])),
    )
