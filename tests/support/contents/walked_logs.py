"""Walk the bytes of a log in windows, as a build does."""

from __future__ import annotations

from collections.abc import Callable

from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.segment_index import IndexChunk, SegmentIndexer
from coldlog.index.segment_summary import SegmentSummary
from coldlog.model.states import IndexDepth

LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)


def walk_log(
    log: bytes,
    *,
    start_offset: int,
    counted_from: int | None = None,
    depth: IndexDepth = IndexDepth.RECORD,
    window_bytes: int = 1 << 22,
    add: Callable[[IndexChunk], None],
) -> SegmentSummary:
    """Give each chunk to `add`; returns the summary of the segment. A window grows where a batch does not fit."""
    indexer = SegmentIndexer(
        start_offset=start_offset,
        depth=depth,
        counted_from_offset=start_offset if counted_from is None else counted_from,
        sections=SectionReader(limits=LIMITS),
    )
    position, needed = 0, 0
    while position < len(log):
        window = log[position : position + max(window_bytes, needed)]
        chunk = indexer.add_window(memoryview(window), position, is_last=position + len(window) == len(log))
        add(chunk)
        assert chunk.consumed_bytes or chunk.needed_bytes > len(window), "no progress"
        position, needed = position + chunk.consumed_bytes, chunk.needed_bytes
    return indexer.finish()
