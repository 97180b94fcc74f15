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
from kio.schema.errors import ErrorCode

from builders.segment_builder import Segment
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.model.fetch import FetchRequest
from coldlog.model.states import IndexDepth
from coldlog.records.fetch.record_source import RecordSource
from coldlog.serve.answers.fetch import answer_fetch
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


def _world(folder: Path, *starts: int) -> SidecarWorld:
    segments = [
        Segment(batches=tuple(batch(at, EPOCH_MS + at) for at in range(start, start + MIDDLE))) for start in starts
    ]
    world = sidecar_world(folder, segments, depths=[IndexDepth.BATCH] * len(segments))
    write(world.warehouse, QUARANTINE, [])
    return world


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
