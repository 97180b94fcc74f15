"""Test that an endpoint that runs on answers from the tables that are there now, also if they were made anew."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from builders.segment_builder import Segment
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.model.fetch import FetchRequest
from coldlog.model.states import IndexDepth
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slices import LogSlice
from coldlog.serve.archive_view import ArchiveView, OffsetQuestion
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from tables.scattered_tables import write, write_file
from worlds.sidecar_world import EPOCH_MS, LIMITS, batch, sidecar_world

COUNT, LATER_MS = 10, 500
READ_TABLES = (SEGMENTS, PARTITION_METADATA, OFFSET_INDEX, TIME_INDEX, INTERVAL_INDEX, TXN_INDEX, QUARANTINE)


def _make_tables(folder: Path, *, count: int = COUNT, first_ms: int = EPOCH_MS) -> Path:
    """Index an archive of so many records. All such warehouses take as many commits."""
    segment = Segment(batches=tuple(batch(at, first_ms + at) for at in range(count)))
    world = sidecar_world(folder, [segment], depths=[IndexDepth.RECORD])
    write(world.warehouse, QUARANTINE, [])
    # In one file and in order, as a build writes them: then they are kept in memory.
    shutil.rmtree(world.warehouse / TIME_INDEX.name)
    write_file(world.warehouse, TIME_INDEX, world.rows[TIME_INDEX.name])
    return world.warehouse


@pytest.fixture
def source(tmp_path: Path) -> Iterator[RecordSource]:
    warehouse = _make_tables(tmp_path)
    with closing(RecordSource(str(warehouse), lambda: None, LIMITS)) as opened:  # type: ignore[arg-type,return-value]  # no log is read
        yield opened


def _view(source: RecordSource, tmp_path: Path) -> ArchiveView:
    return ArchiveView(str(tmp_path / "warehouse"), source, LookupOptions())


def _rebuild(tmp_path: Path) -> None:
    """Set the tables aside, and make them of an archive that has grown and whose records are later."""
    made = _make_tables(tmp_path / "grown", count=2 * COUNT, first_ms=EPOCH_MS + LATER_MS)
    (tmp_path / "warehouse").rename(tmp_path / "replaced")
    made.rename(tmp_path / "warehouse")


def _question(timestamp_ms: int) -> OffsetQuestion:
    return OffsetQuestion(
        topic="orders", partition=0, timestamp_ms=timestamp_ms, leader_epoch=-1, is_committed=False, version=7
    )


def test_tables_that_were_made_anew_with_as_many_commits_are_read(source: RecordSource, tmp_path: Path) -> None:
    """By fetches, lookups, the readers that are kept for the next lookup, and the times that are kept in memory."""
    view, asked = _view(source, tmp_path), _question(EPOCH_MS + 3)
    known, (answers,) = view.partition("orders", 0), view.list_offsets([asked], looks=view.looks)
    assert known is not None
    assert (known.ends.end_offset, answers.offsets.tolist()) == (COUNT, [3])
    assert view.known_offset(asked) == (3, EPOCH_MS + 3, 0)
    _rebuild(tmp_path)
    assert view.refresh()
    assert view.known_offset(asked) is None
    known, (answers,) = view.partition("orders", 0), view.list_offsets([asked], looks=view.looks)
    assert known is not None
    assert (known.ends.end_offset, answers.offsets.tolist()) == (2 * COUNT, [0])
    planned = view.plan(FetchRequest(topic="orders", partition=0, offset=COUNT, max_bytes=1))
    assert isinstance(planned, LogSlice)


@pytest.mark.parametrize("table", READ_TABLES, ids=lambda table: table.name)
def test_what_was_read_is_kept_until_a_table_has_a_new_version(
    table: TableDefinition, source: RecordSource, tmp_path: Path
) -> None:
    view = _view(source, tmp_path)
    assert not view.refresh()
    write_file(tmp_path / "warehouse", table, [])
    assert view.refresh()
    assert not view.refresh()
