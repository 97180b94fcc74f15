"""Read the variable-length integers in records.

Seven bits per byte, the lowest first; the high bit is set if more bytes follow; zig-zag, so that small negative numbers
are short (org.apache.kafka.common.utils.ByteUtils). These functions are compiled into the loops that call them. They
return the value and the position after it; the position is -1 if the number is longer than its type or extends beyond
its section.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10


def read_number(buffer: npt.NDArray[np.uint8], at: int, end: int, max_bytes: int) -> tuple[int, int]:
    """`read_signed` for callers that are not compiled and read few numbers."""
    value, after = read_signed.py_func(buffer, at, end, max_bytes)  # type: ignore[no-untyped-call]  # a dispatcher
    return int(value), int(after)


@numba.njit(cache=True, nogil=True)
def read_signed(buffer, at, end, max_bytes):  # type: ignore[no-untyped-def]  # numba infers it
    """A zig-zag number of at most `max_bytes` between `at` and `end`: (value, position after it or -1)."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    stop = min(end, at + max_bytes)
    while at < stop:
        byte = np.uint64(buffer[np.uint64(at)])
        at += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
            return value, at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)
