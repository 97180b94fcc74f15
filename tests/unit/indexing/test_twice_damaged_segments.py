"""Test what becomes of a segment whose log is damaged together with a file that shows its transactions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.errors import Reason
from coldlog.model.states import IndexDepth
from damage.damaged_archives import LOG, Built, Partition, build, build_works, list_works, options, small_segment
from stores.memory_store import MemoryStore

WHOLE = Partition.of(small_segment(0, epoch=0), small_segment(8, epoch=1), small_segment(16, epoch=2))
SALVAGE = options(IndexDepth.RECORD, is_salvaging=True)


def _damaged(*suffixes: str) -> Partition:
    """The segment in the middle: the last bit of its log flipped, the other files shorter by two bytes."""
    found = WHOLE
    for suffix in suffixes:
        content = bytearray(WHOLE.content(suffix))
        content[-1] ^= 1
        found = found.with_content(suffix, bytes(content if suffix == LOG else content[:-2]))
    return found


def _outcomes(built: list[Built]) -> list[object]:
    return [each.outcome["outcome"] for each in built]


@pytest.mark.parametrize("side_file", [".snapshot", ".txnindex"])
def test_segment_is_left_out_as_a_whole_and_its_neighbours_are_not(side_file: str) -> None:
    """Of each of the two files alone only what is damaged is lost."""
    whole = build(WHOLE, SALVAGE)
    assert _outcomes(whole) == _outcomes(build(_damaged(LOG), SALVAGE)) == ["indexed"] * 3
    assert _outcomes(build(_damaged(side_file), SALVAGE)) == ["indexed"] * 3
    first, middle, last = build(_damaged(LOG, side_file), SALVAGE)
    assert (first, last) == (whole[0], whole[2])
    assert (middle.outcome["outcome"], middle.outcome["holes"]) == ("quarantined", None)
    assert middle.outcome["reason"] in (Reason.CRC_MISMATCH, Reason.PRODUCER_SNAPSHOT_INVALID, Reason.TXN_INDEX_INVALID)
    assert not middle.parts, "no row of its sound batches is written"


def test_segment_keeps_its_checkpoint_so_that_the_log_start_stays_known() -> None:
    layout = LocalTieredStorageLayout(store=MemoryStore(_damaged(LOG, ".snapshot").objects))
    work = replace(list_works(layout)[1], announced_end_offset=15)
    (built,) = build_works(layout, [work], SALVAGE)
    assert built.outcome["outcome"] == "quarantined"
    assert built.outcome["leader_epoch_checkpoint"] == build(WHOLE, SALVAGE)[1].outcome["leader_epoch_checkpoint"]
