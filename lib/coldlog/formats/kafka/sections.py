"""Provide the decompressed records of many batches at once.

Compiled loops need many batches per call. Uncompressed records are used directly in the window. Compressed records are
decompressed one after another into one scratch buffer, which is reused and passed on whenever it is full. A group has
consecutive batches that are all compressed or all uncompressed. Frames of lz4 are decompressed many at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.compression import decompress_into
from coldlog.formats.kafka.lz4_frames import Sections, decompress_lz4_batches
from coldlog.formats.kafka.record_batch import HEADER_BYTES, BatchHeaders
from coldlog.formats.limits import DecodeLimits

MIN_RECORD_BYTES = 7
"""Length, attributes, timestamp delta, offset delta, key length, value length, header count: one byte each."""
_SCRATCH_BYTES = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSections:
    """Records of the batches `first` to before `first + len(starts)`: `buffer[starts[i]:ends[i]]` is batch `first + i`
    of the headers."""

    first: int
    buffer: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class SectionReader:
    """Provide sections; the scratch buffer is kept between windows. A section is valid until the next one is
    requested."""

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
        sections = Sections(
            content=np.frombuffer(window, dtype=np.uint8),
            begins=starts[first:last] + HEADER_BYTES,
            stops=starts[first:last] + headers.size_bytes[first:last],
            codecs=headers.codec[first:last],
        )
        ends = np.empty(last - first, dtype=np.int64)
        group, at = 0, 0
        while at < last - first:
            used = int(ends[at - 1]) if at > group else 0
            limit = self.limits.max_decompressed_bytes
            following = decompress_lz4_batches(sections, at, self.scratch, used, limit, ends)
            if following > at:
                at = following
                continue
            codec, section = int(sections.codecs[at]), window[int(sections.begins[at]) : int(sections.stops[at])]
            try:
                size = self._try_decompress(codec, section, used)
                if size < 0 and at == group:
                    size = self._decompress_growing(codec, section)
            except ArchiveError as damage:
                raise damage.replaced(position=int(headers.position[first + at])) from damage
            if size < 0:  # this batch is the first of the next group
                yield self._group(headers, first + group, ends[group:at])
                group = at
                continue
            ends[at] = used + size
            at += 1
        yield self._group(headers, first + group, ends[group:at])

    def _group(self, headers: BatchHeaders, first: int, stops: npt.NDArray[np.int64]) -> RecordSections:
        begins = np.concatenate((np.zeros(1, dtype=np.int64), stops[:-1]))
        _require_room(headers, first, stops - begins)
        return RecordSections(first=first, buffer=self.scratch, starts=begins, ends=stops)

    def _try_decompress(self, codec: int, section: memoryview, used: int) -> int:
        """Decompress into the rest of the scratch buffer; -1 if it may be too small."""
        room = len(self.scratch) - used
        if used and room < 16 * len(section):
            return -1
        try:
            return decompress_into(codec, section, self.scratch.data[used : used + self.limits.max_decompressed_bytes])
        except ArchiveError as failure:
            if failure.reason is Reason.DECOMPRESSION_LIMIT:
                return -1
            raise

    def _decompress_growing(self, codec: int, section: memoryview) -> int:
        """Decompress into the whole scratch buffer, which grows up to the limit."""
        limit = self.limits.max_decompressed_bytes
        while True:
            room = min(len(self.scratch), limit)
            try:
                return decompress_into(codec, section, self.scratch.data[:room])
            except ArchiveError as failure:
                if failure.reason is not Reason.DECOMPRESSION_LIMIT or room >= limit:
                    raise
            self.scratch = np.empty(min(limit, 4 * len(self.scratch)), dtype=np.uint8)


def _require_room(headers: BatchHeaders, first: int, sizes: npt.NDArray[np.int64]) -> None:
    """Refuse a batch with more records than its bytes allow, before memory is allocated by the count."""
    counts = headers.record_count[first : first + len(sizes)]
    too_many = counts > sizes // MIN_RECORD_BYTES
    if too_many.any():
        at = int(np.argmax(too_many))
        raise ArchiveError(
            Reason.RECORDS_INVALID,
            "batch is too short for its records",
            position=int(headers.position[first + at]),
            expected=f"at most {int(sizes[at]) // MIN_RECORD_BYTES} records",
            found=f"{int(counts[at])} records",
        )
