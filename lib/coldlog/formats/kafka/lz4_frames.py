"""Decompress the lz4 frames of many batches in one call.

The Python function of the package lz4 makes a decompressor and a result for each batch, copies the batch before and the
result after, and holds Python's lock in between. The compiled loop here calls the C function that the package's
extension exports (LZ4F_decompress), which writes into the caller's buffer.

The loop only takes frames that end in their batch and fit into the buffer. It stops at the first other one, which
`compression` then reads or refuses. So what is refused, and with which facts, is decided in one place. If the function
is not exported (another build of the package), the loop takes none.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import weakref
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.extending import intrinsic

LZ4_CODEC = 3
_MOSTLY_AT_MOST = 4
"""Decompressed bytes for each byte of a batch. If the buffer has less room, the batch is not tried."""
_VERSION = 100

Int64Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """Compressed records of batches: those of batch i are `content[begins[i]:stops[i]]`, by the codec `codecs[i]`."""

    content: npt.NDArray[np.uint8]
    begins: Int64Column
    stops: Int64Column
    codecs: npt.NDArray[np.int16]


def decompress_lz4_batches(
    sections: Sections, at: int, output: npt.NDArray[np.uint8], used: int, max_bytes: int, ends: Int64Column
) -> int:
    """Decompress the batches from `at` on into `output`, one after another from `used` on, each to at most `max_bytes`.

    Set `ends[i]` to where batch i ends in `output`. Return the first batch that is left to the caller.
    """
    if not ADDRESS or sections.codecs[at] != LZ4_CODEC:
        return at
    context = _OF_THREAD.address()
    following, is_whole = _decompress_all(
        ADDRESS, context, sections.content, sections.begins, sections.stops, sections.codecs, at, output, used,
        max_bytes, ends, np.empty(2, dtype=np.int64),
    )  # fmt: skip
    if not is_whole:
        _LIBRARY.LZ4F_resetDecompressionContext(ctypes.c_void_p(context))
    return int(following)


@intrinsic
def _call_c(typing_context, address, context, output, output_bytes, section, section_bytes):  # type: ignore[no-untyped-def]  # numba's protocol
    """Call the C function at `address`; the sizes are the addresses of numbers that the function changes."""

    def generate(code, builder, signature, arguments):  # type: ignore[no-untyped-def]
        long = ir.IntType(64)
        function = ir.FunctionType(long, [long] * 6)
        no_options = ir.Constant(long, 0)
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), [*arguments[1:], no_options])

    return numba.int64(*[numba.int64] * 6), generate


@numba.njit(cache=True, nogil=True, inline="always")
def _decompress(address, context, output, output_bytes, section, section_bytes):  # type: ignore[no-untyped-def]  # numba infers it
    """Return 0 at the end of a frame."""
    return _call_c(address, context, output, output_bytes, section, section_bytes)  # type: ignore[call-arg]  # numba's context


@numba.njit(cache=True, nogil=True)
def _decompress_all(address, context, content, begins, stops, codecs, at, output, used, max_bytes, ends, sizes):  # type: ignore[no-untyped-def]  # numba infers it
    """Fill `ends` from `at` on; return the first batch that was not decompressed, and whether the last call ended with
    its frame."""
    source, target = np.int64(content.ctypes.data), np.int64(output.ctypes.data)
    room_address = np.int64(sizes.ctypes.data)
    for i in range(at, len(begins)):
        size, room = stops[i] - begins[i], len(output) - used
        if codecs[i] != LZ4_CODEC or (used and room < _MOSTLY_AT_MOST * size):
            return i, True
        sizes[0], sizes[1] = min(room, max_bytes), size
        if _decompress(address, context, target + used, room_address, source + begins[i], room_address + 8) != 0:
            return i, False
        used += sizes[0]
        ends[i] = used
    return len(begins), True


class _Context:
    """A decompression context of the C library."""

    def __init__(self) -> None:
        made = ctypes.c_void_p()
        if _LIBRARY.LZ4F_createDecompressionContext(ctypes.byref(made), ctypes.c_uint(_VERSION)) or not made.value:
            raise MemoryError
        self.address: int = made.value
        weakref.finalize(self, _LIBRARY.LZ4F_freeDecompressionContext, made).atexit = False


class _OfThread(threading.local):
    """One context per thread, made when it is first needed."""

    context: _Context | None = None

    def address(self) -> int:
        if self.context is None:
            self.context = _Context()
        return self.context.address


def _exported_address() -> int:
    """The address of LZ4F_decompress; 0 if the extension does not export what is needed."""
    try:
        for name in ("LZ4F_createDecompressionContext", "LZ4F_resetDecompressionContext"):
            getattr(_LIBRARY, name)
        free, decompress = _LIBRARY.LZ4F_freeDecompressionContext, _LIBRARY.LZ4F_decompress
    except AttributeError:
        return 0
    free.restype = ctypes.c_size_t
    return ctypes.cast(decompress, ctypes.c_void_p).value or 0


_LIBRARY = ctypes.CDLL(importlib.import_module("lz4.frame._frame").__file__)
ADDRESS = _exported_address()
"""The address of the function that the loop calls; 0: there is none, and the loop takes no batch."""
_OF_THREAD = _OfThread()
