"""Find the chunks of a log in the object that the Aiven plugin uploaded.

A log is split into chunks of one size; the last one may be shorter. Each chunk is transformed separately (zstd, then
AES-GCM), and the object has the transformed chunks one after another. The `fixed` index has one size for all
transformed chunks except the last. The `variable` index of compressed logs lists the sizes in base64 of a zstd frame,
with integers in big endian:

    count           int32
    base            int32, the smallest size of all but the last chunk    } missing
    width           int8, bytes of a difference, 1 to 4                   } if count
    differences     (count - 1) * width bytes, unsigned                   } is 1
    last size       int32

(io.aiven.kafka.tieredstorage.manifest.index: FixedSizeChunkIndex, VariableSizeChunkIndex, ChunkSizesBinaryCodec.)

Refused (`MANIFEST_INVALID`): sizes below zero or beyond int32, a count of chunks that does not match the log's size,
too many or too few bytes in the list, a frame of more than `MAX_SIZES_BYTES`, and chunks that are larger or smaller
than the transformation allows.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zstandard

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.compression import decompress_into

INT32_MAX = (1 << 31) - 1
MAX_SIZES_BYTES = 10 * 1024 * 1024
"""The plugin refuses a longer list, too."""
_ZSTD = 4
_SMALL_BLOCK_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkIndex(ABC):
    """The chunks of a log of `original_bytes` bytes, numbered from 0; positions are in bytes, ranges half-open."""

    original_chunk_bytes: int
    original_bytes: int

    @property
    def chunk_count(self) -> int:
        """The number of chunks; 0 for an empty log."""
        return -(-self.original_bytes // self.original_chunk_bytes)

    @property
    def stored_bytes(self) -> int:
        """The size of the object."""
        return self.stored_start(self.chunk_count)

    @property
    def largest_chunk_bytes(self) -> int:
        """The size of the log's largest chunk before the transformation."""
        return min(self.original_chunk_bytes, self.original_bytes)

    def chunks_between(self, start: int, end: int) -> range:
        """The chunks that hold bytes of the log between `start` and `end`."""
        end = min(end, self.original_bytes)
        if start >= end:
            return range(0)
        return range(start // self.original_chunk_bytes, -(-end // self.original_chunk_bytes))

    def original_start(self, chunk: int) -> int:
        """The position of a chunk in the log; for the chunk after the last one, the log's size."""
        return min(chunk * self.original_chunk_bytes, self.original_bytes)

    @abstractmethod
    def stored_start(self, chunk: int) -> int:
        """The position of a chunk in the object; for the chunk after the last one, the object's size."""

    @abstractmethod
    def require_sizes(self, *, is_compressed: bool, overhead_bytes: int) -> None:
        """Refuse impossible sizes of transformed chunks; encryption adds `overhead_bytes` to each chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedChunkIndex(ChunkIndex):
    """Every transformed chunk except the last has `stored_chunk_bytes`."""

    stored_chunk_bytes: int
    last_stored_chunk_bytes: int

    def stored_start(self, chunk: int) -> int:
        """See ChunkIndex; computed from the two sizes."""
        if chunk < self.chunk_count or chunk == 0:
            return chunk * self.stored_chunk_bytes
        return (self.chunk_count - 1) * self.stored_chunk_bytes + self.last_stored_chunk_bytes

    def require_sizes(self, *, is_compressed: bool, overhead_bytes: int) -> None:
        """See ChunkIndex; compressed chunks never have one size."""
        if is_compressed:
            raise refusal("compressed chunks cannot all have one size", "a variable chunk index", "a fixed one")
        _require(self.stored_chunk_bytes, self.original_chunk_bytes + overhead_bytes, "a transformed chunk")
        if self.chunk_count:
            last = self.original_bytes - self.original_start(self.chunk_count - 1)
            _require(self.last_stored_chunk_bytes, last + overhead_bytes, "the last transformed chunk")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariableChunkIndex(ChunkIndex):
    """`stored_starts` has the position of each transformed chunk, and at the end the object's size."""

    stored_starts: npt.NDArray[np.int64]

    def stored_start(self, chunk: int) -> int:
        """See ChunkIndex; taken from the list."""
        return int(self.stored_starts[chunk])

    def require_sizes(self, *, is_compressed: bool, overhead_bytes: int) -> None:
        """See ChunkIndex; a frame has at least one byte and at most zstd's bound (ZSTD_COMPRESSBOUND)."""
        if not is_compressed:
            raise refusal("chunks that are not compressed have one size", "a fixed chunk index", "a variable one")
        sizes = np.diff(self.stored_starts) - overhead_bytes
        original = np.full(len(sizes), self.original_chunk_bytes, dtype=np.int64)
        if len(original):
            original[-1] = self.original_bytes - self.original_start(self.chunk_count - 1)
        most = original + (original >> 8) + (np.maximum(0, _SMALL_BLOCK_BYTES - original) >> 11)
        is_wrong = (sizes < 1) | (sizes > most)
        if is_wrong.any():
            chunk = int(np.argmax(is_wrong))
            expected = f"1 to {int(most[chunk])} bytes and {overhead_bytes} bytes of encryption"
            found = f"{int(sizes[chunk]) + overhead_bytes} bytes"
            raise refusal(f"transformed chunk {chunk} has an impossible size", expected, found)


def read_variable_chunk_index(text: str, *, original_chunk_bytes: int, original_bytes: int) -> VariableChunkIndex:
    """The index with the sizes in `text`, the base64 of a manifest."""
    sizes = read_chunk_sizes(text)
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    index = VariableChunkIndex(
        original_chunk_bytes=original_chunk_bytes, original_bytes=original_bytes, stored_starts=starts
    )
    if len(sizes) != index.chunk_count:
        raise refusal("the list of chunks does not match the log's size", f"{index.chunk_count} sizes", f"{len(sizes)}")
    return index


def read_chunk_sizes(text: str) -> npt.NDArray[np.int64]:
    """The sizes of the transformed chunks."""
    content = _decompress(text)
    count = _int32(content, 0, "count of chunks")
    if count == 0:
        return _require_end(content, 4, np.empty(0, dtype=np.int64))
    if count == 1:
        return _require_end(content, 8, np.array([_int32(content, 4, "chunk size")], dtype=np.int64))
    base = _int32(content, 4, "smallest chunk size")
    width = content[8] if len(content) > 8 else 0
    if not 1 <= width <= 4:
        raise refusal("chunk sizes have an impossible width", "1 to 4 bytes", f"{width}")
    end = 9 + (count - 1) * width
    if len(content) != end + 4:
        raise refusal(f"the list of {count} chunk sizes has a wrong length", f"{end + 4} bytes", f"{len(content)}")
    digits = np.frombuffer(content, dtype=np.uint8, offset=9, count=(count - 1) * width).reshape(count - 1, width)
    sizes = np.empty(count, dtype=np.int64)
    sizes[:-1] = digits.astype(np.int64) @ (256 ** np.arange(width - 1, -1, -1, dtype=np.int64)) + base
    sizes[-1] = _int32(content, end, "last chunk size")
    if int(sizes.max()) > INT32_MAX:
        raise refusal("a chunk size is beyond int32", f"at most {INT32_MAX}", f"{int(sizes.max())}")
    return sizes


def refusal(message: str, expected: str, found: str) -> ArchiveError:
    """The error for a wrong manifest."""
    return ArchiveError(Reason.MANIFEST_INVALID, message, expected=expected, found=found)


def _decompress(text: str) -> memoryview:
    try:
        frame = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as broken:
        raise refusal("the list of chunk sizes is not base64", "base64", str(broken)[:100]) from None
    output = memoryview(bytearray(min(MAX_SIZES_BYTES, _frame_claim(frame))))
    try:
        return output[: decompress_into(_ZSTD, memoryview(frame), output)]
    except ArchiveError as broken:
        raise refusal("the list of chunk sizes cannot be decompressed", broken.expected, broken.found) from None


def _frame_claim(frame: bytes) -> int:
    """The decompressed size in the frame's header, which the plugin's frames have."""
    try:
        claimed = zstandard.frame_content_size(frame)
    except zstandard.ZstdError:
        return 0
    return claimed if claimed >= 0 else MAX_SIZES_BYTES


def _int32(content: memoryview, at: int, field: str) -> int:
    value = int.from_bytes(content[at : at + 4], "big", signed=True)
    if len(content) < at + 4 or value < 0:
        found = f"{value}" if len(content) >= at + 4 else f"{len(content)} bytes"
        raise refusal(f"{field} is missing or negative in the list of chunk sizes", "an int32", found)
    return value


def _require_end(content: memoryview, end: int, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if len(content) != end:
        raise refusal(f"the list of {len(sizes)} chunk sizes has a wrong length", f"{end} bytes", f"{len(content)}")
    return sizes


def _require(found: int, expected: int, chunk: str) -> None:
    if found != expected:
        raise refusal(f"{chunk} has a size that its transformation cannot give", f"{expected} bytes", f"{found}")
