"""crc: does a batch match its checksum?

CRC-32C over everything from a batch's attributes on, by the package crc32c. Its Python function costs about a
microsecond a call, more than the checksum of a small batch itself; so the compiled loop over the batches calls the C
function that the package's extension exports. Where that is not exported (another build of the package, another
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


def batch_crc(window: memoryview, start: int, size: int) -> int:
    """The checksum of one batch as it should stand in its header."""
    return int(crc32c.crc32c(window[start + CRC_START : start + size]))


def find_crc_mismatch(
    window: memoryview, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32], crcs: npt.NDArray[np.uint32]
) -> int | None:
    """The first batch of `window` (it begins at `starts[i]` and has `sizes[i]` bytes) whose checksum is not
    `crcs[i]`; batch by batch, for where there is no `ADDRESS`."""
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
def checksum(address, data, size):  # type: ignore[no-untyped-def]  # numba infers it
    """For compiled loops: CRC-32C of `size` bytes at the machine address `data`, by the function at `address`."""
    return np.uint32(_call(address, _INITIAL, data, size) ^ _INITIAL)  # type: ignore[call-arg]  # numba's context


ADDRESS = _exported_address()
"""Where `checksum` finds its function; 0: nowhere, and it may not be called."""
