"""Test what clients get when the segments that an endpoint has in its tables were expired or replaced since.

Newer tables name the segments as they are now. The endpoint opens them when it misses a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from kio.schema.errors import ErrorCode

from builders.segment_builder import Segment
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.fetch import FetchRequest
from coldlog.model.list_offsets import SpecialTimestamp
from coldlog.model.states import IndexDepth
from coldlog.records.fetch.record_source import RecordSource
from coldlog.serve.answers.fetch import answer_fetch
from coldlog.serve.answers.offsets import answer_list_offsets
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.context import Context
from coldlog.serve.messages import Request
from coldlog.serve.threads import Threads
from coldlog.tables.definitions.quarantine import QUARANTINE
from endpoint_context import endpoint_context
from tables.scattered_tables import write
from worlds.sidecar_world import EPOCH_MS, LIMITS, SidecarWorld, batch, sidecar_world

MIDDLE, END = 10, 20
"""Where the second segment begins, and where it ends."""


def _world(folder: Path, *starts: int, size: int = 2, depth: IndexDepth = IndexDepth.BATCH) -> SidecarWorld:
    """Segments that begin there. Each batch has so many records of one time."""
    ends = [*starts[1:], END]
    segments = [
        Segment(batches=tuple(batch(at, *[EPOCH_MS + at] * size) for at in range(start, end, size)))
        for start, end in zip(starts, ends, strict=True)
    ]
    world = sidecar_world(folder, segments, depths=[depth] * len(segments))
    write(world.warehouse, QUARANTINE, [])
    return world


def _publish(warehouse: Path, newer: Path) -> None:
    """Write newer tables, whose segments and partitions are others, as the next versions of the older ones."""
    for folder in newer.iterdir():
        rows = DeltaTable(str(folder)).to_pyarrow_table()
        write_deltalake(str(warehouse / folder.name), rows, mode="overwrite")


@pytest.mark.parametrize("depth", [IndexDepth.BATCH, IndexDepth.SIDECAR])
@pytest.mark.parametrize(("starts", "first"), [((MIDDLE,), MIDDLE), ((0, 6, MIDDLE), 8)])
def test_a_time_is_looked_up_in_the_segments_that_took_the_place_of_those_in_the_tables(
    tmp_path: Path, starts: Sequence[int], first: int, depth: IndexDepth
) -> None:
    """The first segment has expired, or several have replaced it."""
    old, new = _world(tmp_path / "old", 0, MIDDLE, depth=depth), _world(tmp_path / "new", *starts, depth=depth)
    options = LookupOptions(batches=BatchReader(open_layout=lambda: new.layout, limits=LIMITS), report_damage=False)
    with (
        closing(RecordSource(str(old.warehouse), lambda: new.layout, LIMITS)) as source,
        closing(Threads("test", 1)) as threads,
    ):
        view = ArchiveView(str(old.warehouse), source, options)
        context = endpoint_context(view, threads, timeout_ms=60_000, is_local=True)
        damaged = _offsets(context, EPOCH_MS + 7)
        assert damaged == [(ErrorCode.corrupt_message, -1)]
        assert view.looks == 1
        _publish(old.warehouse, new.warehouse)
        assert _offsets(context, EPOCH_MS + 7, SpecialTimestamp.EARLIEST) == [
            (ErrorCode.none, first),
            (ErrorCode.none, starts[0]),
        ]
        assert view.looks == 2


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("is_planned", [True, False])
def test_offsets_that_expired_since_the_tables_were_opened_are_out_of_range(
    tmp_path: Path, *, is_local: bool, is_planned: bool
) -> None:
    """A broker answers so, and the client goes to the new log start. After CORRUPT_MESSAGE its application fails.

    `is_planned`: what the plan takes is in memory, and the log is missed; otherwise a file of the tables is."""
    warehouse = tmp_path / "warehouse"
    old, new = _world(tmp_path / "old", 0, MIDDLE), _world(tmp_path / "new", MIDDLE)
    old.warehouse.rename(warehouse)
    with (
        closing(RecordSource(str(warehouse), lambda: new.layout, LIMITS)) as source,
        closing(Threads("test", 1)) as threads,
    ):
        view = ArchiveView(str(warehouse), source, LookupOptions())
        known = view.partition("orders", 0)
        assert known is not None
        assert known.ends.log_start_offset == 0
        if is_planned:
            view.plan(FetchRequest(topic="orders", partition=0, offset=3))
        context = endpoint_context(view, threads, is_local=is_local)
        warehouse.rename(tmp_path / "replaced")
        new.warehouse.rename(warehouse)
        found = _fetch(context, [3, MIDDLE])
    assert found == [
        (ErrorCode.offset_out_of_range, MIDDLE, END, False),
        (ErrorCode.none, MIDDLE, END, True),
    ]


@pytest.mark.parametrize("skips_gaps", [False, True])
@pytest.mark.parametrize("depth", [IndexDepth.BATCH, IndexDepth.SIDECAR])
def test_records_are_read_from_a_log_that_took_the_place_of_the_one_in_the_tables(
    tmp_path: Path, depth: IndexDepth, *, skips_gaps: bool
) -> None:
    """As after compaction, in a mirror of log directories: the same object has other batches."""
    old, new = (_world(tmp_path / name, 0, size=size, depth=depth) for name, size in (("old", 2), ("new", 5)))
    with (
        closing(RecordSource(str(old.warehouse), lambda: new.layout, LIMITS)) as source,
        closing(Threads("test", 1)) as threads,
    ):
        view = ArchiveView(str(old.warehouse), source, LookupOptions(), skips_gaps=skips_gaps)
        context = endpoint_context(view, threads, is_local=True)
        damaged = ErrorCode.none if skips_gaps else ErrorCode.corrupt_message
        assert _fetch(context, [8]) == [(damaged, 0, END, False)]
        _publish(old.warehouse, new.warehouse)
        assert _fetch(context, [8]) == [(ErrorCode.none, 0, END, True)]


def _offsets(context: Context, *timestamps_ms: int) -> list[tuple[ErrorCode, int]]:
    """Return error and offset for each time, each in a request of its own."""

    async def ask(timestamp_ms: int) -> Any:
        asked = SimpleNamespace(partition_index=0, timestamp=timestamp_ms, current_leader_epoch=-1)
        body = SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=[asked])])
        request = Request(api_key=2, version=9, correlation_id=0, client_id=None, body=body)
        return await answer_list_offsets(context, request)

    answers = [asyncio.run(ask(each))["topics"][0]["partitions"][0] for each in timestamps_ms]
    return [(each["error_code"], each["offset"]) for each in answers]


def _fetch(context: Context, offsets: Sequence[int]) -> list[tuple[ErrorCode, int, int, bool]]:
    """Return error, log start, end, and whether there are records, of a fetch at each offset."""
    asked = [
        SimpleNamespace(partition=0, fetch_offset=each, partition_max_bytes=1 << 20, current_leader_epoch=-1)
        for each in offsets
    ]
    body = SimpleNamespace(topics=[SimpleNamespace(topic="orders", partitions=asked)], max_wait=timedelta(0))
    request = Request(api_key=1, version=12, correlation_id=0, client_id=None, body=body)

    async def ask() -> Any:
        return await answer_fetch(context, request)

    (topic,) = asyncio.run(ask())["responses"]
    return [
        (each["error_code"], each["log_start_offset"], each["high_watermark"], bool(each["records"]))
        for each in topic["partitions"]
    ]
