"""Decode the records of many batches into columns.

`records` decodes one record at a time and is easy to read; this module is for millions of records. Two compiled loops
read the sections. The first walks the records, checks them, and stores offset, timestamp and the positions of key,
value and headers for the records within the bounds. The second copies the wanted fields into columns. Buffers have
Arrow's layout: int32 offsets into the bytes (one more than entries), and flags for null entries.

Fields that are not wanted are not copied. If neither keys, values nor headers are wanted, records are skipped by their
length. Refused (`RECORDS_INVALID`, with the batch's position): what `records` refuses, and offsets that do not ascend
or are outside their batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.kafka.sections import RecordSections
from coldlog.formats.kafka.varint import MAX_VARINT_BYTES, MAX_VARLONG_BYTES, read_signed

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_LEAST, _GREATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_FINE, _BAD_LENGTH, _BAD_NUMBER, _BAD_OFFSET, _NOT_CONSUMED, _BAD_FIELD, _TOO_LONG, _BAD_COUNT, _NO_NAME = range(9)
_COMPLAINTS = {
    _BAD_LENGTH: "record extends beyond its batch",
    _BAD_NUMBER: "record has a number that does not end",
    _BAD_OFFSET: "record offset does not ascend or is outside its batch",
    _NOT_CONSUMED: "batch has bytes after its last record",
    _BAD_FIELD: "key, value or header extends beyond its record",
    _TOO_LONG: "record is longer than its fields",
    _BAD_COUNT: "record has more headers than bytes",
    _NO_NAME: "header has no name",
}
_KEY, _VALUE, _HEADERS = 0, 2, 4
"""Rows of `places`: the start of the field and its length (-1: null) or number of headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBounds:
    """The inclusive range of offsets and timestamps of the wanted records."""

    from_offset: int = 0
    to_offset: int = _GREATEST
    from_timestamp_ms: int = _LEAST
    to_timestamp_ms: int = _GREATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFields:
    """The fields to copy of each record, in addition to offset and timestamp."""

    key: bool
    value: bool
    headers: bool

    @property
    def has_any(self) -> bool:
        return self.key or self.value or self.headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteColumn:
    """Entry i is `content[offsets[i]:offsets[i + 1]]`, or null if `is_null[i]`; `is_null` is None without nulls."""

    offsets: Int32s
    content: Bytes
    is_null: Flags | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderColumn:
    """The headers of record i are entries `offsets[i]` to before `offsets[i + 1]` of names and values."""

    offsets: Int32s
    names: ByteColumn
    values: ByteColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records in the order of the log, one entry each; a column that was not wanted is None."""

    offset: Int64s
    timestamp_ms: Int64s
    is_log_append_time: Flags
    key: ByteColumn | None
    value: ByteColumn | None
    headers: HeaderColumn | None

    def __len__(self) -> int:
        return len(self.offset)


def read_record_columns(
    sections: RecordSections, headers: BatchHeaders, bounds: RecordBounds, wanted: WantedFields
) -> RecordColumns:
    """The records of `sections` within the bounds; the batch numbers of the sections are indexes into `headers`."""
    count = len(sections.starts)
    of_batches = slice(sections.first, sections.first + count)
    room = int(headers.record_count[of_batches].sum(dtype=np.int64))
    offsets, timestamps = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    is_append_time = np.empty(room, dtype=np.bool_)
    places = np.empty((6, room if wanted.has_any else 0), dtype=np.int64)
    found, status, batch = _place(
        sections.buffer, sections.starts, sections.ends,
        headers.base_offset[of_batches], headers.last_offset[of_batches], headers.base_timestamp_ms[of_batches],
        headers.max_timestamp_ms[of_batches], headers.is_log_append_time[of_batches], headers.record_count[of_batches],
        bounds.from_offset, bounds.to_offset, bounds.from_timestamp_ms, bounds.to_timestamp_ms, wanted.has_any,
        offsets, timestamps, is_append_time, places,
    )  # fmt: skip
    if status != _FINE:
        raise ArchiveError(
            Reason.RECORDS_INVALID, _COMPLAINTS[status], position=int(headers.position[sections.first + batch])
        )
    places = places[:, :found]
    return RecordColumns(
        offset=offsets[:found],
        timestamp_ms=timestamps[:found],
        is_log_append_time=is_append_time[:found],
        key=_copy(sections.buffer, places[_KEY], places[_KEY + 1]) if wanted.key else None,
        value=_copy(sections.buffer, places[_VALUE], places[_VALUE + 1]) if wanted.value else None,
        headers=_copy_headers(sections.buffer, places[_HEADERS], places[_HEADERS + 1]) if wanted.headers else None,
    )


def _copy(buffer: Bytes, starts: Int64s, lengths: Int64s) -> ByteColumn:
    is_null = lengths < 0
    offsets = _running_offsets(np.maximum(lengths, 0))
    content = np.empty(int(offsets[-1]), dtype=np.uint8)
    _gather(buffer, starts, offsets, content)
    return ByteColumn(offsets=offsets, content=content, is_null=is_null if is_null.any() else None)


def _copy_headers(buffer: Bytes, starts: Int64s, counts: Int64s) -> HeaderColumn:
    offsets = _running_offsets(counts)
    places = np.empty((4, int(offsets[-1])), dtype=np.int64)
    if places.shape[1]:
        _place_headers(buffer, starts, counts, places)
    return HeaderColumn(
        offsets=offsets, names=_copy(buffer, places[0], places[1]), values=_copy(buffer, places[2], places[3])
    )


def _running_offsets(lengths: Int64s) -> Int32s:
    """Offsets fit into an int32, because a section has less than 2^31 bytes."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@numba.njit(cache=True, nogil=True)
def _place(  # type: ignore[no-untyped-def]  # noqa: C901  # numba infers it; one loop, split it would be slower
    buffer, starts, ends, base_offsets, last_offsets, base_timestamps, max_timestamps, is_append_time, counts,
    from_offset, to_offset, from_timestamp, to_timestamp, has_places, offsets, timestamps, has_append_time, places,
):  # fmt: skip
    """(records found, status, the batch of this status)."""
    found = 0
    for batch in range(len(starts)):
        at, end = starts[batch], ends[batch]
        next_delta = np.int64(0)
        last_delta = last_offsets[batch] - base_offsets[batch]
        for _ in range(counts[batch]):
            length, at = read_signed(buffer, at, end, MAX_VARINT_BYTES)
            if at < 0 or length <= 0 or length > end - at:
                return found, _BAD_LENGTH, batch
            stop = at + length
            timestamp_delta, at = read_signed(buffer, at + 1, stop, MAX_VARLONG_BYTES)
            if at < 0:
                return found, _BAD_NUMBER, batch
            offset_delta, at = read_signed(buffer, at, stop, MAX_VARINT_BYTES)
            if at < 0:
                return found, _BAD_NUMBER, batch
            if offset_delta < next_delta or offset_delta > last_delta:
                return found, _BAD_OFFSET, batch
            next_delta = offset_delta + 1
            timestamp = max_timestamps[batch] if is_append_time[batch] else base_timestamps[batch] + timestamp_delta
            offset = base_offsets[batch] + offset_delta
            is_kept = from_offset <= offset <= to_offset and from_timestamp <= timestamp <= to_timestamp
            if has_places:
                key_length, at = read_signed(buffer, at, stop, MAX_VARINT_BYTES)
                key_at = at
                if at >= 0 and key_length > 0:
                    at += key_length
                if at < 0 or at > stop:
                    return found, _BAD_NUMBER if at < 0 else _BAD_FIELD, batch
                value_length, at = read_signed(buffer, at, stop, MAX_VARINT_BYTES)
                value_at = at
                if at >= 0 and value_length > 0:
                    at += value_length
                if at < 0 or at > stop:
                    return found, _BAD_NUMBER if at < 0 else _BAD_FIELD, batch
                header_count, at = read_signed(buffer, at, stop, MAX_VARINT_BYTES)
                if at < 0:
                    return found, _BAD_NUMBER, batch
                if header_count < 0 or header_count > stop - at:
                    return found, _BAD_COUNT, batch
                headers_at = at
                for part in range(2 * header_count):
                    part_length, at = read_signed(buffer, at, stop, MAX_VARINT_BYTES)
                    if at < 0:
                        return found, _BAD_NUMBER, batch
                    if part % 2 == 0 and part_length < 0:
                        return found, _NO_NAME, batch
                    if part_length > stop - at:
                        return found, _BAD_FIELD, batch
                    at += max(part_length, 0)
                if at != stop:
                    return found, _TOO_LONG, batch
                if is_kept:
                    places[0, found], places[1, found] = key_at, max(key_length, -1)
                    places[2, found], places[3, found] = value_at, max(value_length, -1)
                    places[4, found], places[5, found] = headers_at, header_count
            at = stop
            if is_kept:
                offsets[found] = offset
                timestamps[found] = timestamp
                has_append_time[found] = is_append_time[batch]
                found += 1
        if at != end:
            return found, _NOT_CONSUMED, batch
    return found, _FINE, len(starts)


@numba.njit(cache=True, nogil=True)
def _gather(buffer, starts, offsets, content):  # type: ignore[no-untyped-def]  # numba infers it
    """Copy the entries. Indexes are unsigned: numba would check the sign of a signed one at every byte, which is ten
    times slower."""
    for entry in range(len(starts)):
        to, stop, start = np.uint64(offsets[entry]), np.uint64(offsets[entry + 1]), np.uint64(starts[entry])
        for i in range(stop - to):
            content[to + i] = buffer[start + i]


@numba.njit(cache=True, nogil=True)
def _place_headers(buffer, starts, counts, places):  # type: ignore[no-untyped-def]  # numba infers it
    """Find the names and values of headers that were checked before."""
    found = 0
    for entry in range(len(starts)):
        at = starts[entry]
        for _ in range(counts[entry]):
            for row in (0, 2):
                length, at = read_signed(buffer, at, len(buffer), MAX_VARINT_BYTES)
                places[row, found], places[row + 1, found] = at, length
                at += max(length, 0)
            found += 1
