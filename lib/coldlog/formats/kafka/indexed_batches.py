"""Check that bytes of a log are exactly the batches that an index names.

One pass over the bytes: checksums and fields as `record_batch` checks them, places and offsets as the index has them.
The answer is yes or no. What is wrong is found by `read_batch_headers`, which reads all fields of all batches.
"""

from __future__ import annotations

import numba
import numpy as np

from coldlog.formats.kafka.compression import CODEC_NAMES
from coldlog.formats.kafka.crc import ADDRESS, CRC_START, checksum
from coldlog.formats.kafka.record_batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LARGEST_OFFSET,
    LENGTH_PREFIX_BYTES,
    MAGIC_POSITION,
    Int64Column,
)

NO_LEADER_EPOCH, ANY_LEADER_EPOCH = -1, -2
_CODECS = len(CODEC_NAMES)


def are_indexed_batches(
    window: memoryview,
    *,
    position: int,
    next_offset: int,
    max_batch_bytes: int,
    positions: Int64Column,
    sizes: Int64Column,
    base_offsets: Int64Column,
    last_offsets: Int64Column,
    leader_epochs: Int64Column,
) -> bool:
    """Whether `window`, which begins at `position` of the log, is these batches and nothing else, all of them sound.
    `next_offset` is the lowest offset that the first one may have. A batch may have no leader epoch instead of the one
    in `leader_epochs`; with `ANY_LEADER_EPOCH` there it may have any. False if this processor has no fast checksum."""
    if ADDRESS == 0:
        return False
    content = np.frombuffer(window, dtype=np.uint8)
    return bool(
        _are_sound(
            content,
            position,
            next_offset,
            max_batch_bytes,
            positions,
            sizes,
            base_offsets,
            last_offsets,
            leader_epochs,
            ADDRESS,
        )
    )


def load_check() -> None:
    """Load what `are_indexed_batches` is compiled to: its first call takes a second."""
    none = np.empty(0, dtype=np.int64)
    empty = {"positions": none, "sizes": none, "base_offsets": none, "last_offsets": none, "leader_epochs": none}
    are_indexed_batches(memoryview(bytearray()), position=0, next_offset=0, max_batch_bytes=1, **empty)


@numba.njit(cache=True, nogil=True)
def _are_sound(content, position, next_offset, max_bytes, positions, sizes, bases, last_offsets, epochs, address):  # type: ignore[no-untyped-def]  # numba infers it; one loop
    at, end, allowed_from = np.int64(0), len(content), next_offset
    data = np.int64(content.ctypes.data)
    for i in range(len(positions)):
        size, base_offset, last_offset = sizes[i], bases[i], last_offsets[i]
        if positions[i] != position + at or size < HEADER_BYTES or size > max_bytes or size > end - at:
            return False
        delta = _read(content, at + 23, 4)
        if _read(content, at, 8) != base_offset or _read(content, at + 8, 4) != size - LENGTH_PREFIX_BYTES:
            return False
        has_epoch = _may_have(_read(content, at + 12, 4), epochs[i])
        if not has_epoch or content[at + MAGIC_POSITION] != 2 or base_offset + delta != last_offset:
            return False
        count = _read(content, at + 57, 4)
        if base_offset < allowed_from or delta < 0 or last_offset < 0 or last_offset == LARGEST_OFFSET:
            return False
        if count < 0 or count > delta + 1 or (content[at + 22] & CODEC_MASK) >= _CODECS:
            return False
        stored = np.uint32(_read(content, at + 17, 4))
        if checksum(address, data + at + CRC_START, size - CRC_START) != stored:
            return False
        allowed_from = last_offset + 1
        at += size
    return at == end


@numba.njit(cache=True, nogil=True, inline="always")
def _may_have(epoch, expected):  # type: ignore[no-untyped-def]  # numba infers it
    return epoch in (expected, NO_LEADER_EPOCH) or expected == ANY_LEADER_EPOCH


@numba.njit(cache=True, nogil=True, inline="always")
def _read(content, at, size):  # type: ignore[no-untyped-def]  # numba infers it
    """A big-endian number with a sign."""
    value = np.int64(np.int8(content[at]))
    for i in range(1, size):
        value = (value << 8) | np.int64(content[at + i])
    return value
