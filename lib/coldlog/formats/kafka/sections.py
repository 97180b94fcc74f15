"""sections: where do the records of many batches lie, decompressed?

Kernels want many batches a call. Uncompressed records are used where they lie in the window; compressed ones are
decompressed back to back into one scratch buffer that is used again, and handed over whenever it is full. A group is
consecutive batches of one kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.compression import decompress_into
from coldlog.formats.kafka.record_batch import HEADER_BYTES, BatchHeaders
from coldlog.formats.limits import DecodeLimits

MIN_RECORD_BYTES = 7
"""Length, attributes, timestamp delta, offset delta, key length, value length, header count: a byte each."""
_SCRATCH_BYTES = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSections:
    """Records of the batches `first` to `first + len(starts)` of some headers: `buffer[starts[i]:ends[i]]` is batch
    `first + i`."""

    first: int
    buffer: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class SectionReader:
    """Hands out sections; keeps the scratch buffer between windows. Sections are valid until the next one is asked
    for."""

    limits: DecodeLimits
    scratch: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(_SCRATCH_BYTES, dtype=np.uint8))

    def iter_sections(self, window: memoryview, headers: BatchHeaders, position: int) -> Iterator[RecordSections]:
        """The records of all batches of `headers`, in order. Raises `ArchiveError` with the batch's position."""
        starts = headers.position - position
        is_compressed = headers.codec != 0
        borders = np.flatnonzero(np.diff(is_compressed)) + 1
        for first, last in zip([0, *borders.tolist()], [*borders.tolist(), len(headers)], strict=True):
            if first == last:
                continue
            if is_compressed[first]:
                yield from self._decompressed(window, headers, starts, first, last)
            else:
                content = np.frombuffer(window, dtype=np.uint8)
                begin = starts[first:last] + HEADER_BYTES
                end = starts[first:last] + headers.size_bytes[first:last]
                _require_room(headers, first, end - begin)
                yield RecordSections(first=first, buffer=content, starts=begin, ends=end)

    def _decompressed(
        self, window: memoryview, headers: BatchHeaders, starts: npt.NDArray[np.int64], first: int, last: int
    ) -> Iterator[RecordSections]:
        ends: list[int] = []
        group = first
        begins = (starts[first:last] + HEADER_BYTES).tolist()
        stops = (starts[first:last] + headers.size_bytes[first:last]).tolist()
        codecs = headers.codec[first:last].tolist()
        for batch, begin, stop, codec in zip(range(first, last), begins, stops, codecs, strict=True):
            section = window[begin:stop]
            used = ends[-1] if ends else 0
            try:
                size = self._try_decompress(codec, section, used)
                if size < 0:
                    if ends:
                        yield self._group(headers, group, ends)
                        ends, group = [], batch
                    size, used = self._decompress_growing(codec, section), 0
            except ArchiveError as wrong:
                raise ArchiveError(
                    wrong.reason,
                    wrong.message,
                    position=int(headers.position[batch]),
                    expected=wrong.expected,
                    found=wrong.found,
                ) from wrong
            ends.append(used + size)
        if ends:
            yield self._group(headers, group, ends)

    def _group(self, headers: BatchHeaders, first: int, ends: list[int]) -> RecordSections:
        stops = np.array(ends, dtype=np.int64)
        begins = np.concatenate((np.zeros(1, dtype=np.int64), stops[:-1]))
        _require_room(headers, first, stops - begins)
        return RecordSections(first=first, buffer=self.scratch, starts=begins, ends=stops)

    def _try_decompress(self, codec: int, section: memoryview, used: int) -> int:
        """Into what is left of the scratch; -1 if that may be too little."""
        room = len(self.scratch) - used
        if used and room < 16 * len(section):
            return -1
        try:
            return decompress_into(codec, section, self.scratch.data[used : used + self.limits.max_decompressed_bytes])
        except ArchiveError as wrong:
            if wrong.reason is Reason.DECOMPRESSION_LIMIT:
                return -1
            raise

    def _decompress_growing(self, codec: int, section: memoryview) -> int:
        """Into the whole scratch, which grows up to the limit."""
        limit = self.limits.max_decompressed_bytes
        while True:
            room = min(len(self.scratch), limit)
            try:
                return decompress_into(codec, section, self.scratch.data[:room])
            except ArchiveError as wrong:
                if wrong.reason is not Reason.DECOMPRESSION_LIMIT or room >= limit:
                    raise
            self.scratch = np.empty(min(limit, 4 * len(self.scratch)), dtype=np.uint8)


def _require_room(headers: BatchHeaders, first: int, sizes: npt.NDArray[np.int64]) -> None:
    """A batch cannot hold more records than its bytes allow; checked before anything is sized by the count."""
    counts = headers.record_count[first : first + len(sizes)]
    too_many = counts > sizes // MIN_RECORD_BYTES
    if too_many.any():
        at = int(np.argmax(too_many))
        raise ArchiveError(
            Reason.RECORDS_INVALID,
            "batch is too short for its records",
            position=int(headers.position[first + at]),
            expected=f"{int(sizes[at]) // MIN_RECORD_BYTES} records at most",
            found=f"{int(counts[at])} records",
        )
