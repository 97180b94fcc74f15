"""Write a batch anew without the records after an offset.

A batch may reach into offsets that another leader wrote later. It cannot be cut, because one checksum covers it. The
records that stay are copied byte for byte; they are written without compression. Base offset, producer, timestamps and
flags stay as they are: a record's offset and time are deltas to them, and with LogAppendTime the largest timestamp is
that of every record.

Refused (`RECORDS_INVALID`, with the batch's position): a record that extends beyond its batch.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.crc import CRC_START
from coldlog.formats.kafka.record_batch import CODEC_MASK, HEADER_BYTES, LENGTH_PREFIX_BYTES, BatchHeaders
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.kafka.varint import MAX_VARINT_BYTES, MAX_VARLONG_BYTES, read_number
from coldlog.formats.limits import DecodeLimits

_LENGTH, _ATTRIBUTES, _LAST_OFFSET_DELTA, _RECORD_COUNT = 8, 21, 23, 57
"""Positions of these fields in a batch; see `record_batch`."""


def cut_record_batch(
    window: memoryview, batch: BatchHeaders, position: int, last_offset: int, limits: DecodeLimits
) -> bytes:
    """Return the one batch of `batch` with its records up to `last_offset`, inclusive. The window begins at
    `position` of the log."""
    last_delta = last_offset - int(batch.base_offset[0])
    (section,) = SectionReader(limits=limits).iter_sections(window, batch, position)
    start = int(section.starts[0])
    stop, count = _find_end(section.buffer, start, int(section.ends[0]), batch, last_delta)
    records = section.buffer[start:stop].tobytes()
    at = int(batch.position[0]) - position
    head = bytearray(window[at : at + HEADER_BYTES])
    attributes = int(batch.attributes[0]) & ~CODEC_MASK
    struct.pack_into(">i", head, _LENGTH, HEADER_BYTES - LENGTH_PREFIX_BYTES + len(records))
    struct.pack_into(">h", head, _ATTRIBUTES, attributes)
    struct.pack_into(">i", head, _LAST_OFFSET_DELTA, last_delta)
    struct.pack_into(">i", head, _RECORD_COUNT, count)
    struct.pack_into(">I", head, CRC_START - 4, crc32c(records, crc32c(bytes(head[CRC_START:]))))
    return bytes(head) + records


def _find_end(
    buffer: npt.NDArray[np.uint8], at: int, end: int, batch: BatchHeaders, last_delta: int
) -> tuple[int, int]:
    """Return where the first record after the delta begins, and the number of records before it."""
    for number in range(int(batch.record_count[0])):
        length, body = read_number(buffer, at, end, MAX_VARINT_BYTES)
        if body < 0 or not 0 < length <= end - body:
            raise ArchiveError(
                Reason.RECORDS_INVALID, "record extends beyond its batch", position=int(batch.position[0])
            )
        _, after_time = read_number(buffer, body + 1, body + length, MAX_VARLONG_BYTES)
        delta, after = read_number(buffer, after_time, body + length, MAX_VARINT_BYTES) if after_time > 0 else (0, -1)
        if after < 0:
            raise ArchiveError(
                Reason.RECORDS_INVALID, "record has a number that does not end", position=int(batch.position[0])
            )
        if delta > last_delta:
            return at, number
        at = body + length
    return at, int(batch.record_count[0])
