"""Join the index of consecutive windows into one.

A window of some MiB has few batches. Rows are made from columns at a cost for each call, so it is cheaper to make them
for many windows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.index.segment_index import IndexChunk
from coldlog.index.stairs import Stairs


def join_chunks(chunks: Sequence[IndexChunk]) -> IndexChunk:
    """The index of at least one window, as if they had been one; each window begins where the one before was
    consumed."""
    if len(chunks) == 1:
        return chunks[0]
    return IndexChunk(
        headers=_join_headers([chunk.headers for chunk in chunks]),
        previous_running_ms=np.concatenate([chunk.previous_running_ms for chunk in chunks]),
        has_previous_running=np.concatenate([chunk.has_previous_running for chunk in chunks]),
        running_ms=np.concatenate([chunk.running_ms for chunk in chunks]),
        has_running=np.concatenate([chunk.has_running for chunk in chunks]),
        smallest_ms=np.concatenate([chunk.smallest_ms for chunk in chunks]),
        has_smallest=np.concatenate([chunk.has_smallest for chunk in chunks]),
        stairs=_join_stairs(chunks),
        abort_offsets=np.concatenate([chunk.abort_offsets for chunk in chunks]),
        consumed_bytes=sum(chunk.consumed_bytes for chunk in chunks),
        needed_bytes=chunks[-1].needed_bytes,
    )


def _join_headers(headers: Sequence[BatchHeaders]) -> BatchHeaders:
    return BatchHeaders(
        **{
            field.name: np.concatenate([getattr(each, field.name) for each in headers])
            for field in fields(BatchHeaders)
        }
    )


def _join_stairs(chunks: Sequence[IndexChunk]) -> Stairs:
    """Join the stairs; their batches are counted from the first window on."""
    stairs = [chunk.stairs for chunk in chunks]
    firsts = np.cumsum([0, *(len(chunk.headers) for chunk in chunks[:-1])])
    return Stairs(
        timestamp_ms=np.concatenate([each.timestamp_ms for each in stairs]),
        previous_timestamp_ms=np.concatenate([each.previous_timestamp_ms for each in stairs]),
        has_previous=np.concatenate([each.has_previous for each in stairs]),
        offset=np.concatenate([each.offset for each in stairs]),
        batch=np.concatenate([each.batch + first for each, first in zip(stairs, firsts.tolist(), strict=True)]),
    )
