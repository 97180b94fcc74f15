"""Read a log in windows and index them, in one thread or in several.

One thread reads the bytes and adds the windows in order. If there are more, they decode windows meanwhile. That pays if
records are decompressed: with two threads on two cores, a task takes 0.74 of the time for lz4, and 0.64 for zstd.
Without compression, or if no records are read, the bytes would only travel between cores.

Windows that are decoded at once must begin where a batch begins, which only the offset index tells before the log is
read. If that is wrong, or a window is damaged, one thread reads on from there. So what is indexed, and what is refused,
does not depend on the number of threads.

Memory: a window and a buffer for each thread, and one window more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_batch import CODEC_MASK
from coldlog.formats.kafka.sections import SectionReader
from coldlog.index.segment_index import DecodedWindow, IndexChunk, SegmentIndexer
from coldlog.model.states import IndexDepth

_MOST_WINDOWS = 4
"""Threads decode windows of at most so many times the usual size. If the index has no entry for longer, one reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReader:
    """Reads the log of one segment; a window has about `window_bytes`."""

    layout: ArchiveLayout
    segment: ListedSegment
    indexer: SegmentIndexer
    window_bytes: int

    def iter_chunks(self, position: int, end: int) -> Iterator[IndexChunk]:
        """Index the bytes from `position` to `end`, which must end with a whole batch; one thread, window by window. A
        window grows to hold the next batch."""
        needed = 0
        while position < end:
            wanted = min(max(self.window_bytes, needed), end - position)
            window = self._read(position, wanted, end)
            chunk = self.indexer.add_window(window, position, is_last=position + wanted == end)
            del window  # the next one is then read into the same memory, which is in the processor's cache
            position, needed = position + chunk.consumed_bytes, chunk.needed_bytes
            yield chunk
            del chunk  # free it before the next one is read

    def iter_chunks_by_threads(
        self, size_bytes: int, batch_positions: npt.NDArray[np.int64], threads: int
    ) -> Iterator[IndexChunk]:
        """Index the whole log. `threads` decode it if its first window has compressed records. `batch_positions` are
        places where batches begin, ascending."""
        position = 0
        if threads > 1 and self.indexer.depth is IndexDepth.RECORD:
            borders = _choose_borders(size_bytes, batch_positions, self.window_bytes)
            if int(np.diff(borders).max()) <= _MOST_WINDOWS * self.window_bytes:
                for chunk in self._iter_decoded(borders, threads):
                    position += chunk.consumed_bytes
                    yield chunk
                    del chunk  # free it before the next one is read
        yield from self.iter_chunks(position, size_bytes)

    def _iter_decoded(self, borders: Sequence[int], threads: int) -> Iterator[IndexChunk]:
        """Index the windows between the borders that are sound, up to the first other one."""
        windows, ahead = pairwise(borders), 1
        begun: deque[Future[DecodedWindow | None]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
            while True:
                for begin, end in islice(windows, ahead - len(begun)):
                    begun.append(pool.submit(self._decode, self._read(begin, end - begin, borders[-1]), begin))
                decoded = begun.popleft().result() if begun else None
                if decoded is None or not self.indexer.may_follow(decoded):
                    return
                yield self.indexer.add(decoded)
                if ahead == 1 and not decoded.headers.has_any(CODEC_MASK):
                    return
                ahead = threads + 1
                del decoded  # free it before the next one is read

    def _decode(self, window: memoryview, position: int) -> DecodedWindow | None:
        """Return None if the window does not have whole sound batches only."""
        try:
            sections = SectionReader(limits=self.indexer.sections.limits)
            return self.indexer.decode(window, position, next_offset=0, is_last=True, sections=sections)
        except ArchiveError:
            return None

    def _read(self, position: int, length: int, end: int) -> memoryview:
        window = self.layout.read_log_range(self.segment, position, length)
        if len(window) < length:
            raise ArchiveError(
                Reason.LOG_TRUNCATED,
                "log is shorter than when it was listed",
                position=position + len(window),
                expected=f"{end} bytes",
                found=f"{position + len(window)} bytes",
            )
        return window


def _choose_borders(size_bytes: int, batch_positions: npt.NDArray[np.int64], window_bytes: int) -> Sequence[int]:
    """Choose positions at which windows begin, the log's end after them: about `window_bytes` from one to the next."""
    inside = batch_positions[(batch_positions > 0) & (batch_positions < size_bytes)]
    wanted = np.arange(window_bytes, size_bytes, window_bytes)
    at = np.searchsorted(inside, wanted)
    return [0, *np.unique(inside[at[at < len(inside)]]).tolist(), size_bytes]
