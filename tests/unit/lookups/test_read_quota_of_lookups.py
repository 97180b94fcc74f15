"""Test that a lookup whose read of the archive the quota does not allow in time is answered so at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.archive.layouts.paced_layout import PacedLayout
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.tiering.process_pace import ProcessPace
from stores.noting_store import take_notes
from virtual_clock import VirtualClock
from worlds.sidecar_world import EPOCH_MS, LIMITS, rising, sidecar_world

AN_HOUR_MS = 3_600_000


@pytest.mark.parametrize("depth", [IndexDepth.SIDECAR, IndexDepth.BATCH])
def test_lookup_that_the_quota_does_not_allow_in_time_reads_nothing_and_does_not_wait(
    tmp_path: Path, depth: IndexDepth
) -> None:
    world = sidecar_world(tmp_path, [rising(50), rising(50, 100)], depths=[depth] * 2)
    clock = VirtualClock()
    pace = ProcessPace(1, clock)
    paced = PacedLayout(layout=world.layout, pace=pace)
    options = LookupOptions(batches=BatchReader(open_layout=lambda: paced, limits=LIMITS))
    asked = [("orders", 0, EPOCH_MS), ("orders", 0, EPOCH_MS + 5_000)]
    take_notes(world.notes)
    with OffsetReader(world.warehouse, options) as reader:
        # Its clock is far ahead of that of the deadline, so nothing may wait.
        clock.time_ms += 10**15
        answers = [reader.list_offsets([each], timeout_ms=AN_HOUR_MS)[0] for each in asked]
        assert [(row["error"], row["offset"]) for row in answers] == [("NONE", 0), ("REQUEST_TIMED_OUT", None)]
        assert len({name for name in take_notes(world.notes) if name.endswith(".log")}) == 1
        assert clock.waits == [], "a deadline that cannot be met is not waited for"
        assert [row["offset"] for row in reader.list_offsets(asked[1:])] == [198]
        assert clock.waits, "without a deadline it waits for the quota"
