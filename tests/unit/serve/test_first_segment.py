"""Test that a consumer can read from the beginning if retention removed segments after the newest upload.

The newest leader epoch checkpoint then begins before all segments of the archive, and no event says what was deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from builders.segment_builder import Segment
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.questions import NOT_EXACT
from coldlog.model.fetch import FetchErrorCode, FetchFailure, FetchRequest
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.model.states import IndexDepth, OnGap
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.serve.archive_view import ArchiveView, OffsetQuestion
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from tables.scattered_tables import Row, write
from worlds.sidecar_world import EPOCH_MS, LIMITS, batch, sidecar_world

FIRST, END = 50, 60
START: Row = {
    "log_start_offset": FIRST,
    "log_start_source": "first_segment",
    "leader_epoch_lineage": [{"leader_epoch": 0, "start_offset": 0}],
}


@pytest.fixture
def view(tmp_path: Path) -> Iterator[ArchiveView]:
    """As an endpoint that does not skip gaps asks."""
    segment = Segment(batches=tuple(batch(at, EPOCH_MS + at) for at in range(FIRST, END)))
    world = sidecar_world(tmp_path, [segment], depths=[IndexDepth.RECORD])
    facts: Row = {"topic": "orders", "partition": 0, "topic_id": world.outcomes[0]["topic_id"], "unserved_ranges": []}
    shutil.rmtree(world.warehouse / PARTITION_METADATA.name)
    ends = {"earliest_offset": FIRST, "latest_tiered_offset": END - 1}
    write(world.warehouse, PARTITION_METADATA, [facts | ends | START])
    write(world.warehouse, QUARANTINE, [])
    with closing(RecordSource(str(world.warehouse), lambda: world.layout, LIMITS)) as source:
        yield ArchiveView(str(world.warehouse), source, LookupOptions(on_gap=OnGap.REFUSE))


def test_a_consumer_from_the_beginning_reads_from_the_first_segment_on(view: ArchiveView) -> None:
    asked = OffsetQuestion(
        topic="orders",
        partition=0,
        timestamp_ms=SpecialTimestamp.EARLIEST,
        leader_epoch=-1,
        is_committed=False,
        version=7,
    )
    (answers,), known = view.list_offsets([asked], looks=view.looks), view.partition("orders", 0)
    assert known is not None
    assert (answers.errors[0], answers.offsets[0], answers.leader_epochs[0]) == (ErrorCode.NONE, FIRST, 0)
    assert answers.exactness[0] == NOT_EXACT
    assert (known.ends.log_start_offset, known.ends.end_offset) == (FIRST, END)
    planned = view.plan(FetchRequest(topic="orders", partition=0, offset=FIRST, max_bytes=1 << 20))
    assert isinstance(planned, LogSlice)
    assert isinstance(view.read(planned), FetchedBatches)


def test_offsets_before_it_are_below_the_log_start(view: ArchiveView) -> None:
    """So a client resets to the beginning, as if a broker had deleted them."""
    failure = view.plan(FetchRequest(topic="orders", partition=0, offset=FIRST - 1, max_bytes=1 << 20))
    assert isinstance(failure, FetchFailure)
    assert failure.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
    assert failure.ends is not None
    assert failure.ends.log_start_offset == FIRST
