"""Test that a segment of whose log too much is damaged is left out as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.model.states import IndexDepth
from damage.damaged_archives import LOG, Partition, build_works, list_works, options, small_segment
from stores.memory_store import MemoryStore

PARTITION = Partition.of(small_segment(0, epoch=0), small_segment(8, epoch=1), small_segment(16, epoch=2))


@pytest.mark.parametrize("times_announced", [1, 4])
def test_segment_is_left_out_if_more_of_its_log_is_damaged_than_is_allowed(times_announced: int) -> None:
    """The last batch is damaged; the log was announced with as many bytes as it has, or with more."""
    log = bytearray(PARTITION.content(LOG))
    log[-1] ^= 1
    layout = LocalTieredStorageLayout(store=MemoryStore(PARTITION.with_content(LOG, bytes(log)).objects))
    size_bytes = times_announced * len(log)
    work = replace(list_works(layout)[1], announced_size_bytes=size_bytes)
    lost_share = (size_bytes - PARTITION.borders[-2]) / size_bytes
    outcomes = []
    for allowed in (1.0, lost_share + 0.01, lost_share - 0.01, 0.0):
        chosen = replace(options(IndexDepth.RECORD, is_salvaging=True), max_hole_share=allowed)
        (built,) = build_works(layout, [work], chosen)
        outcomes.append((built.outcome["outcome"], bool(built.outcome["holes"])))
    assert outcomes == [("indexed", True)] * 2 + [("quarantined", False)] * 2
