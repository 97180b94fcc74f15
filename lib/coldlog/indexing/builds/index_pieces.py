"""Make the pieces of a log's index, of many windows at a time.

The index of a window waits until there are enough rows for a piece. Then the memory that waits is bounded by rows: at
most those of one piece and of one window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.index.joined_chunks import join_chunks
from coldlog.index.segment_index import IndexChunk
from coldlog.indexing.builds.encoded_rows import encode_rows
from coldlog.indexing.builds.index_rows import offset_index_rows, time_index_rows
from coldlog.tables.definitions.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.time_index import TIME_INDEX

PIECE_ROWS = 1 << 13
"""Batches and stairs together. More are not cheaper, and 8,192 of them take less than 1 MiB."""


@dataclass(slots=True, kw_only=True)
class IndexPieces:
    """The pieces of one segment."""

    segment: ListedSegment
    _waiting: list[IndexChunk] = field(default_factory=list, init=False)
    _waiting_rows: int = field(default=0, init=False)

    def add(self, chunk: IndexChunk) -> Iterator[pa.RecordBatch]:
        """Add the next window; yield the pieces that are full."""
        self._waiting.append(chunk)
        self._waiting_rows += len(chunk.headers) + len(chunk.stairs.offset)
        if self._waiting_rows >= PIECE_ROWS:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield pieces of what waits."""
        if not self._waiting_rows:
            return
        joined = join_chunks(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        if len(joined.headers):
            yield encode_rows(OFFSET_INDEX.name, self.segment, offset_index_rows(joined))
        if len(joined.stairs.offset):
            yield encode_rows(TIME_INDEX.name, self.segment, time_index_rows(joined))
