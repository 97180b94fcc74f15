"""bare_limits: how fast could a reader of these files be at best?

Two lower bounds in the same process, over the same memory maps: the checksum of the whole file, which touches every
byte once and looks at nothing; and the decompression of every batch, with the library calls that coldlog makes, their
output thrown away. Where the batches lie is found beforehand and not timed.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lz4.frame
import zstandard
from crc32c import crc32c

from builders.payload_codecs import Codec

BATCH_HEADER_BYTES = 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Where the records of a batch lie in their file."""

    begin: int
    end: int


@contextmanager
def mapped(log: Path) -> Iterator[memoryview]:
    """The file's bytes, mapped read-only."""
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        view = memoryview(pages)
        try:
            yield view
        finally:
            view.release()


def checksum_files(logs: Sequence[Path]) -> int:
    """Maps each file and checks it in one call."""
    crc = 0
    for log in logs:
        with mapped(log) as view:
            crc ^= crc32c(view)
    return crc


def find_payloads(log: Path) -> list[Payload]:
    """The records' place in every batch of a log."""
    payloads, position = list[Payload](), 0
    with mapped(log) as view:
        while position < len(view):
            end = position + 12 + int(struct.unpack_from(">i", view, position + 8)[0])
            payloads.append(Payload(begin=position + BATCH_HEADER_BYTES, end=end))
            position = end
    return payloads


def decompressor_of(codec: Codec) -> Callable[[memoryview, memoryview], object]:
    """The library calls for one payload, into a buffer that is used again where the library can."""
    if codec is Codec.ZSTD:
        shared = zstandard.ZstdDecompressor()

        def read_zstd(payload: memoryview, output: memoryview) -> object:
            with shared.stream_reader(payload, read_across_frames=True) as reader:
                return reader.readinto(output)

        return read_zstd
    if codec is Codec.LZ4:
        return lambda payload, output: lz4.frame.LZ4FrameDecompressor().decompress(payload, len(output))
    raise ValueError(f"nothing to decompress with {codec}")


def decompress_files(payloads: Mapping[Path, Sequence[Payload]], codec: Codec, output: memoryview) -> None:
    """Every payload of every file, one after another."""
    decompress = decompressor_of(codec)
    for log, places in payloads.items():
        with mapped(log) as view:
            for place in places:
                decompress(view[place.begin : place.end], output)
