"""crc: do the batches of a window match their checksums?

CRC-32C over everything from a batch's attributes on, by the package crc32c. Its Python function costs about a
microsecond a call, more than the checksum of a small batch itself; so the loop over the batches is compiled and calls
the C function that the package's extension exports. Where that is not exported (another build of the package, another
processor), the Python function is called, batch by batch; both give the same answer.
"""

from __future__ import annotations

import ctypes
import importlib

import crc32c
import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.extending import intrinsic

CRC_START = 21
_INITIAL = np.uint32(0xFFFFFFFF)


def find_crc_mismatch(
    window: memoryview, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32], crcs: npt.NDArray[np.uint32]
) -> int | None:
    """The first batch of `window` (it begins at `starts[i]` and has `sizes[i]` bytes) whose checksum is not
    `crcs[i]`."""
    if not len(starts):
        return None
    if _ADDRESS == 0:
        return _find_mismatch_one_by_one(window, starts, sizes, crcs)
    content = np.frombuffer(window, dtype=np.uint8)
    found = int(_find_mismatch(_ADDRESS, content, starts, sizes, crcs))
    return None if found < 0 else found


def batch_crc(window: memoryview, start: int, size: int) -> int:
    """The checksum of one batch as it should stand in its header."""
    return int(crc32c.crc32c(window[start + CRC_START : start + size]))


def _find_mismatch_one_by_one(
    window: memoryview, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32], crcs: npt.NDArray[np.uint32]
) -> int | None:
    batches = zip(starts.tolist(), sizes.tolist(), crcs.tolist(), strict=True)
    return next((at for at, (start, size, crc) in enumerate(batches) if batch_crc(window, start, size) != crc), None)


def _exported_address() -> int:
    """Address of `uint32_t f(uint32_t crc, const unsigned char *data, unsigned long size)`; 0 where there is none."""
    if not crc32c.hardware_based:
        return 0
    library = ctypes.CDLL(importlib.import_module("crc32c._crc32c").__file__)
    try:
        return ctypes.cast(library._crc32c_hw_adler, ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


@intrinsic
def _call(typing_context, address, crc, data, size):  # type: ignore[no-untyped-def]  # numba's protocol
    """Calls the C function at `address`: an argument, so that the compiled loop can be cached."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        word, long = ir.IntType(32), ir.IntType(64)
        function = ir.FunctionType(word, [word, long, long])
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])

    return numba.uint32(numba.int64, numba.uint32, numba.int64, numba.int64), generate


@numba.njit(cache=True, nogil=True, inline="always")
def _checksum(address, data, size):  # type: ignore[no-untyped-def]  # numba infers it
    return _call(address, _INITIAL, data, size)  # type: ignore[call-arg]  # numba adds the typing context


@numba.njit(cache=True, nogil=True)
def _find_mismatch(address, content, starts, sizes, crcs):  # type: ignore[no-untyped-def]  # numba infers it
    data = np.int64(content.ctypes.data)
    for batch in range(len(starts)):
        start = data + starts[batch] + CRC_START
        found = _checksum(address, start, np.int64(sizes[batch]) - CRC_START)
        if np.uint32(found ^ _INITIAL) != crcs[batch]:
            return batch
    return -1


_ADDRESS = _exported_address()
