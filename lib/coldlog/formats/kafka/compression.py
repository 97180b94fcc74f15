"""Decompress the records of a batch.

Kafka's codecs: gzip, snappy (raw, as librdkafka writes it, or in the framing of xerial's snappy-java: 8 bytes of magic,
two int32 of version, then blocks with an int32 length each), lz4 (frame format) and zstd. After the first end, this
module continues with the next gzip member or zstd frame, and stops at the end mark of an lz4 frame, as Kafka's Java
readers do (Lz4BlockInputStream).

Output is written to a buffer of the caller, whatever size the input claims. If it is too small, the error is
`DECOMPRESSION_LIMIT`; if the input cannot be decoded, `DECOMPRESSION_FAILED`.

A batch of more than 262,144 gzip members or snappy blocks, or 1,048,576 zstd frames and blocks, is refused too. Kafka's
clients write one member or frame, and blocks of at least 1 KiB. 100 MB of empty ones would take half a minute.

Times of the libraries, one thread, for a batch of 32 KiB and one of 300 bytes: zstandard 18 us and 1.9 us (cramjam 26
and 9), lz4 5.6 and 1.0 (cramjam 6.6 and 1.9), isal 35 and 2.2 (cramjam 54 and 3.9, zlib 46 and 2.0), cramjam for raw
snappy 9 and 0.2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import cramjam
import lz4.frame
import zstandard
from isal import isal_zlib

from coldlog.errors import ArchiveError, Reason

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_GZIP_WINDOW_BITS = 31
_MOST_MEMBERS, _MOST_ZSTD_BLOCKS = 1 << 18, 1 << 20
_GZIP_FIRST_BYTES, _GZIP_NEXT_BYTES = 1 << 20, 1 << 10


class _LimitError(Exception):
    """The output does not fit into the buffer."""


class _BrokenError(Exception):
    """The input is not in the codec's format; the message says why."""


class _OfThread(threading.local):
    """One decompressor per thread: it does not support two streams at a time, as its documentation says."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


class _Inflater(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: memoryview, max_length: int) -> bytes: ...


def decompress_into(codec: int, section: memoryview, output: memoryview) -> int:
    """Decompress a batch's records into `output`; return the number of bytes.

    `codec` is a key of `DECODERS`. Raises `ArchiveError`: DECOMPRESSION_LIMIT if `output` is too small,
    DECOMPRESSION_FAILED otherwise.
    """
    name, decoder = DECODERS[codec]
    try:
        return decoder(section, output)
    except _LimitError:
        raise ArchiveError(
            Reason.DECOMPRESSION_LIMIT,
            f"{name} records decompress to more than the limit",
            expected=f"at most {len(output)} bytes",
            found=f"more, from {len(section)} bytes",
        ) from None
    except _REFUSALS as broken:
        raise ArchiveError(
            Reason.DECOMPRESSION_FAILED,
            f"{name} records cannot be decompressed",
            expected=f"{name} data",
            found=str(broken)[:200] or type(broken).__name__,
        ) from broken


def _gzip(section: memoryview, output: memoryview) -> int:
    # The decoder copies input after a member's end. So later members get little input; mostly there is only one member.
    at, written, given, members = 0, 0, _GZIP_FIRST_BYTES, 0
    while at < len(section):
        members += 1
        if members > _MOST_MEMBERS:
            raise _BrokenError(f"more than {_MOST_MEMBERS} gzip members")
        decoder: _Inflater = isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        while not decoder.eof:
            data = section[at : at + given]
            if not data:
                raise _BrokenError("the data ends before the frame does")
            piece = decoder.decompress(data, len(output) - written + 1)
            if len(piece) > len(output) - written:
                raise _LimitError
            output[written : written + len(piece)] = piece
            at, written, given = at + len(data), written + len(piece), given * 2
        at, given = at - len(decoder.unused_data), _GZIP_NEXT_BYTES
    return written


def _lz4(section: memoryview, output: memoryview) -> int:
    if not section:
        return 0
    decoder = lz4.frame.LZ4FrameDecompressor()
    piece = decoder.decompress(bytes(section), len(output) + 1)
    if len(piece) > len(output):
        raise _LimitError
    if not decoder.eof:
        raise _BrokenError("the data ends before the frame does")
    output[: len(piece)] = piece
    return len(piece)


def _zstd(section: memoryview, output: memoryview) -> int:
    with _OF_THREAD.zstd.stream_reader(section, read_across_frames=True) as reader:
        # Reads all output, or as much as fits.
        written = int(reader.readinto(output))
        if written == len(output) and reader.read(1):
            raise _LimitError
    if not zstd_frames_end(section):
        raise _BrokenError("the data ends before the frame does")
    return written


def zstd_frames_end(section: memoryview) -> bool:
    """The last frame of `section` is complete. The stream reader does not notice a cut frame: it waits for more input.

    Walks the block headers (RFC 8878), 3 bytes each: bit 0 marks the last block, bits 1-2 are the kind, the other bits
    the size. Refuses more than `_MOST_ZSTD_BLOCKS` frames and blocks.
    """
    at, end, blocks = 0, len(section), 0
    while at < end:
        at, blocks = _zstd_frame_end(section, at, end, blocks + 1)
        if at < 0:
            return False
    return at == end


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_RLE_BLOCK = 1


def _zstd_frame_end(section: memoryview, at: int, end: int, blocks: int) -> tuple[int, int]:
    """Return where the frame ends, -1 if it does not, and the number of blocks with those before."""
    if blocks > _MOST_ZSTD_BLOCKS:
        raise _BrokenError(f"more than {_MOST_ZSTD_BLOCKS} zstd frames and blocks")
    if end - at >= 8 and bytes(section[at + 1 : at + 4]) == b"\x2a\x4d\x18" and section[at] & 0xF0 == 0x50:
        skippable = at + 8 + int.from_bytes(section[at + 4 : at + 8], "little")
        return (skippable if skippable <= end else -1), blocks
    if end - at < 6 or bytes(section[at : at + 4]) != _ZSTD_MAGIC:
        return -1, blocks
    descriptor = section[at + 4]
    is_single_segment = bool(descriptor & 0x20)
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if is_single_segment else 0)
    at += 5 + (0 if is_single_segment else 1) + _DICTIONARY_ID_BYTES[descriptor & 3] + size_bytes
    while at + 3 <= end:
        blocks += 1
        if blocks > _MOST_ZSTD_BLOCKS:
            raise _BrokenError(f"more than {_MOST_ZSTD_BLOCKS} zstd frames and blocks")
        header = int.from_bytes(section[at : at + 3], "little")
        at += 3 + (1 if (header >> 1) & 3 == _RLE_BLOCK else header >> 3)
        if header & 1:
            at += 4 if descriptor & 0x04 else 0
            return (at if at <= end else -1), blocks
    return -1, blocks


def _snappy(section: memoryview, output: memoryview) -> int:
    if bytes(section[:8]) == XERIAL_MAGIC:
        return _xerial(section, output)
    return _snappy_block(section, output)


def _xerial(section: memoryview, output: memoryview) -> int:
    if len(section) < _XERIAL_HEADER_BYTES:
        raise _BrokenError("the data ends inside the header")
    at, written, blocks = _XERIAL_HEADER_BYTES, 0, 0
    while at < len(section):
        blocks += 1
        if blocks > _MOST_MEMBERS:
            raise _BrokenError(f"more than {_MOST_MEMBERS} snappy blocks")
        length = int.from_bytes(section[at : at + 4], "big", signed=True)
        if at + 4 > len(section) or length < 0 or at + 4 + length > len(section):
            raise _BrokenError(f"a block of {length} bytes does not fit after byte {at}")
        written += _snappy_block(section[at + 4 : at + 4 + length], output[written:])
        at += 4 + length
    return written


def _snappy_block(block: memoryview, output: memoryview) -> int:
    claimed = cramjam.snappy.decompress_raw_len(block)
    if claimed > len(output):
        raise _LimitError
    return int(cramjam.snappy.decompress_raw_into(block, output)) if claimed else 0


_OF_THREAD = _OfThread()
_REFUSALS: tuple[type[Exception], ...] = (
    _BrokenError,
    cramjam.DecompressionError,
    isal_zlib.error,  # type: ignore[assignment]  # its stub declares an instance; it is zlib's exception class
    RuntimeError,
    zstandard.ZstdError,
    EOFError,
)
"""The exceptions of the libraries for invalid input: lz4 raises a bare RuntimeError, and EOFError for a missing end."""
DECODERS: dict[int, tuple[str, Callable[[memoryview, memoryview], int]]] = {
    1: ("gzip", _gzip),
    2: ("snappy", _snappy),
    3: ("lz4", _lz4),
    4: ("zstd", _zstd),
}
"""Name and decoder by Kafka's id. A decoder returns how many bytes it wrote, and raises `_LimitError`, or one of
`_REFUSALS`."""
CODEC_NAMES = ("none", *(name for name, _ in DECODERS.values()))
"""By Kafka's id; 0: not compressed."""
