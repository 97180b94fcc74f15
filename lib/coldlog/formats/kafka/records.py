"""Decode the records of a batch, one by one.

    varint length · int8 attributes · varlong timestamp delta · varint offset delta ·
    varint key length (-1: null), key · varint value length, value ·
    varint header count · { varint key length, key · varint value length, value }

All numbers are zig-zag. A timestamp is the batch's base timestamp plus the delta; with LogAppendTime it is the batch's
max timestamp. This module decodes all fields, into one object per record. Lookups need only timestamps and offsets and
use the compiled loop in `index.stairs`.

Refused (`RECORDS_INVALID`, with the batch's position): a record, key, value or header that extends beyond its batch or
record, a record that is longer than its fields, more or fewer records than in the header.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.kafka.varint import MAX_VARINT_BYTES, MAX_VARLONG_BYTES, read_number

Headers = tuple[tuple[bytes, bytes | None], ...]
_INT64_RANGE = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record; `key`, `value` and a header's value may be None, which differs from empty."""

    offset: int
    timestamp_ms: int
    is_log_append_time: bool
    leader_epoch: int
    is_control: bool
    key: bytes | None
    value: bytes | None
    headers: Headers


def iter_records(window: memoryview, headers: BatchHeaders, position: int, reader: SectionReader) -> Iterator[Record]:
    """Every record of the batches of `headers` in `window`, which begins at `position` of the log."""
    for sections in reader.iter_sections(window, headers, position):
        for number, (start, end) in enumerate(zip(sections.starts.tolist(), sections.ends.tolist(), strict=True)):
            batch = headers.slice(sections.first + number, sections.first + number + 1)
            cursor = _Cursor(buffer=sections.buffer, at=start, end=end, batch_position=int(batch.position[0]))
            for _ in range(int(batch.record_count[0])):
                yield _read_record(cursor, batch)
            cursor.require_end("batch has bytes after its last record")


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """A position in a section, and the end of the batch or record that is being read."""

    buffer: npt.NDArray[np.uint8]
    at: int
    end: int
    batch_position: int

    def number(self, max_bytes: int = MAX_VARINT_BYTES) -> int:
        value, at = read_number(self.buffer, self.at, self.end, max_bytes)
        if at < 0:
            raise self.refusal("record has a number that does not end")
        self.at = int(at)
        return int(value)

    def sized(self) -> bytes | None:
        length = self.number()
        if length < 0:
            return None
        if length > self.end - self.at:
            raise self.refusal("key, value or header extends beyond its record")
        self.at += length
        return self.buffer[self.at - length : self.at].tobytes()

    def require_end(self, message: str) -> None:
        if self.at != self.end:
            raise self.refusal(message)

    def refusal(self, message: str) -> ArchiveError:
        return ArchiveError(Reason.RECORDS_INVALID, message, position=self.batch_position)


def _read_record(section: _Cursor, batch: BatchHeaders) -> Record:
    length = section.number()
    if not 0 < length <= section.end - section.at:
        raise section.refusal("record extends beyond its batch")
    record = _Cursor(
        buffer=section.buffer,
        at=section.at + 1,
        end=section.at + length,
        batch_position=section.batch_position,
    )
    section.at += length
    timestamp_ms = int(batch.base_timestamp_ms[0]) + record.number(MAX_VARLONG_BYTES)
    offset = int(batch.base_offset[0]) + record.number()
    key, value = record.sized(), record.sized()
    headers = _read_headers(record)
    record.require_end("record is longer than its fields")
    is_append_time = bool(batch.is_log_append_time[0])
    return Record(
        offset=offset,
        timestamp_ms=int(batch.max_timestamp_ms[0]) if is_append_time else _wrapped(timestamp_ms),
        is_log_append_time=is_append_time,
        leader_epoch=int(batch.leader_epoch[0]),
        is_control=bool(batch.is_control[0]),
        key=key,
        value=value,
        headers=headers,
    )


def _read_headers(record: _Cursor) -> Headers:
    count = record.number()
    if not 0 <= count <= record.end - record.at:
        raise record.refusal("record has more headers than bytes")
    headers = []
    for _ in range(count):
        name = record.sized()
        if name is None:
            raise record.refusal("header has no name")
        headers.append((name, record.sized()))
    return tuple(headers)


def _wrapped(timestamp_ms: int) -> int:
    """The timestamp with Java's overflow of a long."""
    return (timestamp_ms + (1 << 63)) % _INT64_RANGE - (1 << 63)
