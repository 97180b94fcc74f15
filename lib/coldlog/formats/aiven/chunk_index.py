"""aiven_chunk_index: where do the chunks of a log lie in the object that the Aiven plugin made of it?

A log is cut into chunks of one size, the last one shorter. Each is transformed by itself (zstd, then AES-GCM), and they
lie in the object one behind the other. The `fixed` index has one size for all transformed chunks but the last; the
`variable` one, of compressed logs, lists the sizes in base64 of a zstd frame, integers big endian:

    count           int32
    base            int32, the smallest size but the last one's    } not there
    width           int8, bytes of a difference, 1 to 4            } when count
    differences     (count - 1) * width bytes, unsigned            } is 1
    last size       int32

(io.aiven.kafka.tieredstorage.manifest.index: FixedSizeChunkIndex, VariableSizeChunkIndex, ChunkSizesBinaryCodec.)

Refused (`MANIFEST_INVALID`): sizes below zero or beyond int32, another count of chunks than the log's size gives, bytes
behind the list or too few, a frame of more than `MAX_SIZES_BYTES`, and chunks that are larger or smaller than the
transformation can make of them.
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
"""The plugin itself refuses a longer list."""
_ZSTD = 4
_SMALL_BLOCK_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkIndex(ABC):
    """The chunks of a log of `original_bytes` bytes, numbered from 0. All positions are in bytes, ranges half-open."""

    original_chunk_bytes: int
    original_bytes: int

    @property
    def chunk_count(self) -> int:
        """How many chunks there are; none of an empty log."""
        return -(-self.original_bytes // self.original_chunk_bytes)

    @property
    def stored_bytes(self) -> int:
        """The size of the object."""
        return self.stored_start(self.chunk_count)

    @property
    def largest_chunk_bytes(self) -> int:
        """The most bytes of the log that a chunk holds."""
        return min(self.original_chunk_bytes, self.original_bytes)

    def chunks_between(self, start: int, end: int) -> range:
        """The chunks that hold bytes of the log between `start` and `end`."""
        end = min(end, self.original_bytes)
        if start >= end:
            return range(0)
        return range(start // self.original_chunk_bytes, -(-end // self.original_chunk_bytes))

    def original_start(self, chunk: int) -> int:
        """Where a chunk begins in the log; behind the last one, the log's size."""
        return min(chunk * self.original_chunk_bytes, self.original_bytes)

    @abstractmethod
    def stored_start(self, chunk: int) -> int:
        """Where a chunk begins in the object; behind the last one, the object's size."""

    @abstractmethod
    def require_sizes(self, *, is_compressed: bool, overhead_bytes: int) -> None:
        """Refuses transformed chunks of a size that they cannot have; encryption adds `overhead_bytes` to each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedChunkIndex(ChunkIndex):
    """Every transformed chunk but the last has `stored_chunk_bytes`."""

    stored_chunk_bytes: int
    last_stored_chunk_bytes: int

    def stored_start(self, chunk: int) -> int:
        """A product, and the last chunk's own size."""
        if chunk < self.chunk_count or chunk == 0:
            return chunk * self.stored_chunk_bytes
        return (self.chunk_count - 1) * self.stored_chunk_bytes + self.last_stored_chunk_bytes

    def require_sizes(self, *, is_compressed: bool, overhead_bytes: int) -> None:
        """The plugin compresses to chunks of variable size alone."""
        if is_compressed:
            raise refusal("compressed chunks cannot all have one size", "a variable chunk index", "a fixed one")
        _require(self.stored_chunk_bytes, self.original_chunk_bytes + overhead_bytes, "a transformed chunk")
        if self.chunk_count:
            last = self.original_bytes - self.original_start(self.chunk_count - 1)
            _require(self.last_stored_chunk_bytes, last + overhead_bytes, "the last transformed chunk")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariableChunkIndex(ChunkIndex):
    """`stored_starts` has where each transformed chunk begins, and behind the last one the object's size."""

    stored_starts: npt.NDArray[np.int64]

    def stored_start(self, chunk: int) -> int:
        """As listed."""
        return int(self.stored_starts[chunk])

    def require_sizes(self, *, is_compressed: bool, overhead_bytes: int) -> None:
        """A frame has a byte at least, and at most what zstd's own bound allows (ZSTD_COMPRESSBOUND)."""
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
            expected = f"1 to {int(most[chunk])} bytes and {overhead_bytes} of encryption"
            found = f"{int(sizes[chunk]) + overhead_bytes} bytes"
            raise refusal(f"transformed chunk {chunk} cannot have the size that is listed", expected, found)


def read_variable_chunk_index(text: str, *, original_chunk_bytes: int, original_bytes: int) -> VariableChunkIndex:
    """The index whose sizes are in `text`, the base64 of a manifest."""
    sizes = read_chunk_sizes(text)
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    index = VariableChunkIndex(
        original_chunk_bytes=original_chunk_bytes, original_bytes=original_bytes, stored_starts=starts
    )
    if len(sizes) != index.chunk_count:
        raise refusal(
            "the log's size and the list of chunks do not agree", f"{index.chunk_count} sizes", f"{len(sizes)}"
        )
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
        raise refusal(f"the list of {count} chunk sizes has another length", f"{end + 4} bytes", f"{len(content)}")
    digits = np.frombuffer(content, dtype=np.uint8, offset=9, count=(count - 1) * width).reshape(count - 1, width)
    sizes = np.empty(count, dtype=np.int64)
    sizes[:-1] = digits.astype(np.int64) @ (256 ** np.arange(width - 1, -1, -1, dtype=np.int64)) + base
    sizes[-1] = _int32(content, end, "last chunk size")
    if int(sizes.max()) > INT32_MAX:
        raise refusal("a chunk size is beyond int32", f"{INT32_MAX} at most", f"{int(sizes.max())}")
    return sizes


def refusal(message: str, expected: str, found: str) -> ArchiveError:
    """What is wrong with a manifest."""
    return ArchiveError(Reason.MANIFEST_INVALID, message, expected=expected, found=found)


def _decompress(text: str) -> memoryview:
    try:
        frame = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as broken:
        raise refusal("the list of chunk sizes is no base64", "base64", str(broken)[:100]) from None
    output = memoryview(bytearray(min(MAX_SIZES_BYTES, _frame_claim(frame))))
    try:
        return output[: decompress_into(_ZSTD, memoryview(frame), output)]
    except ArchiveError as broken:
        raise refusal("the list of chunk sizes cannot be decompressed", broken.expected, broken.found) from None


def _frame_claim(frame: bytes) -> int:
    """Room for what the frame says that it holds; the plugin's frames say it."""
    try:
        claimed = zstandard.frame_content_size(frame)
    except zstandard.ZstdError:
        return 0
    return claimed if claimed >= 0 else MAX_SIZES_BYTES


def _int32(content: memoryview, at: int, what: str) -> int:
    value = int.from_bytes(content[at : at + 4], "big", signed=True)
    if len(content) < at + 4 or value < 0:
        found = f"{value}" if len(content) >= at + 4 else f"{len(content)} bytes"
        raise refusal(f"{what} is missing or negative in the list of chunk sizes", "an int32", found)
    return value


def _require_end(content: memoryview, end: int, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if len(content) != end:
        raise refusal(f"the list of {len(sizes)} chunk sizes has another length", f"{end} bytes", f"{len(content)}")
    return sizes


def _require(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise refusal(f"{what} has another size than its transformation gives", f"{expected} bytes", f"{found}")
