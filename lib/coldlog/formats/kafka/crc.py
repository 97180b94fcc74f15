"""Compute and check the checksums of batches.

CRC-32C over a batch from its attributes on, computed by the package crc32c. A call of its Python function costs about a
microsecond, more than the checksum of a small batch. So the compiled loop over the batches calls the C function that
the package's extension exports. If it is not exported (another build of the package, another processor), the Python
function is called for each batch; both have the same results.
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
    """The checksum that the header of a batch must have."""
    return int(crc32c.crc32c(window[start + CRC_START : start + size]))


def find_crc_mismatch(
    window: memoryview, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32], crcs: npt.NDArray[np.uint32]
) -> int | None:
    """The first batch of `window` with another checksum than `crcs[i]`; batch i begins at `starts[i]` and has
    `sizes[i]` bytes. Used if there is no `ADDRESS`."""
    batches = zip(starts.tolist(), sizes.tolist(), crcs.tolist(), strict=True)
    return next((at for at, (start, size, crc) in enumerate(batches) if batch_crc(window, start, size) != crc), None)


def _exported_address() -> int:
    """The address of `uint32_t f(uint32_t crc, const unsigned char *data, unsigned long size)`; 0 if there is none."""
    if not crc32c.hardware_based:
        return 0
    library = ctypes.CDLL(importlib.import_module("crc32c._crc32c").__file__)
    try:
        return ctypes.cast(library._crc32c_hw_adler, ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


@intrinsic
def _call(typing_context, address, crc, data, size):  # type: ignore[no-untyped-def]  # numba's protocol
    """Call the C function at `address`, which is an argument so that the compiled loop can be cached."""

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
"""The address of the function that `checksum` calls; 0: there is none, and `checksum` must not be called."""
