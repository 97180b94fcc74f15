"""Test what clients get whose position is after the offsets that segments serve, but not after the end of the log.

The last segment was served before, and is damaged or missing now. A consumer checks its position by the end of its
leader epoch. If that is before its position, it goes back, and reads records again when the segment is there again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from builders.segment_builder import Segment
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.model.states import IndexDepth
from coldlog.records.fetch.record_source import RecordSource
from coldlog.serve.answers.fetch import answer_fetch
from coldlog.serve.answers.offsets import answer_epoch_ends
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.messages import Request
from coldlog.serve.threads import Threads
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from endpoint_context import endpoint_context
from tables.scattered_tables import Row, write
from worlds.sidecar_world import EPOCH_MS, LIMITS, batch, sidecar_world

END, LAST = 10, 19
"""The offset after the served ones, and the last one of the log."""
OLD, NEW = 3, 4
GREATEST = 2**63 - 1
OUT_OF_RANGE, LOST = ErrorCode.offset_out_of_range, ErrorCode.corrupt_message


def _ask(
    folder: Path,
    unserved: list[Row],
    answer: Any,
    body: object,
    quarantined: Sequence[int] = (),
    *,
    skips_gaps: bool = False,
) -> Any:
    segment = Segment(batches=tuple(batch(at, EPOCH_MS + at) for at in range(END)))
    world = sidecar_world(folder, [segment], depths=[IndexDepth.BATCH])
    facts: Row = {"topic": "orders", "partition": 0, "topic_id": world.outcomes[0]["topic_id"]}
    lineage = [{"leader_epoch": OLD, "start_offset": 0}, {"leader_epoch": NEW, "start_offset": 5}]
    facts |= {"earliest_offset": 0, "latest_tiered_offset": END - 1, "leader_epoch_lineage": lineage}
    shutil.rmtree(world.warehouse / PARTITION_METADATA.name)
    write(world.warehouse, PARTITION_METADATA, [facts | {"unserved_ranges": unserved}])
    place: Row = {"topic": "orders", "partition": 0, "topic_id": world.outcomes[0]["topic_id"]}
    write(world.warehouse, QUARANTINE, [place | {"segment_id": "x", "start_offset": each} for each in quarantined])

    async def ask() -> Any:
        view = ArchiveView(str(world.warehouse), source, LookupOptions(), skips_gaps=skips_gaps)
        request = Request(api_key=1, version=12, correlation_id=0, client_id=None, body=body)
        return await answer(endpoint_context(view, threads, is_local=True), request)

    opened = RecordSource(str(world.warehouse), lambda: world.layout, LIMITS)
    with closing(opened) as source, closing(Threads("test", 1)) as threads:
        return asyncio.run(ask())


def _range(first: int, last: int | None) -> Row:
    return {"from_offset": first, "to_offset": last, "max_timestamp_bound_ms": None}


def _epoch_end(folder: Path, unserved: list[Row], epoch: int) -> int:
    asked = SimpleNamespace(partition=0, leader_epoch=epoch, current_leader_epoch=NEW)
    topics = [SimpleNamespace(topic="orders", partitions=[asked])]
    ((found,),) = (each["partitions"] for each in _ask(folder, unserved, answer_epoch_ends, _body(topics))["topics"])
    assert (found["error_code"], found["leader_epoch"]) == (ErrorCode.none, epoch)
    return int(found["end_offset"])


def _body(topics: list[SimpleNamespace]) -> SimpleNamespace:
    return SimpleNamespace(topics=topics, max_wait=timedelta(0))


@pytest.mark.parametrize(
    ("unserved", "end"),
    [
        ([], END),
        ([_range(2, 3)], END),
        ([_range(2, 3), _range(END, LAST)], LAST + 1),
        ([_range(END, None)], GREATEST),
    ],
)
def test_newest_epoch_ends_with_the_log_also_if_no_segment_serves_its_end(
    tmp_path: Path, unserved: list[Row], end: int
) -> None:
    assert _epoch_end(tmp_path, unserved, NEW) == end


def test_older_epoch_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    assert _epoch_end(tmp_path, [_range(END, LAST)], OLD) == 5


def _errors(folder: Path, unserved: list[Row], offsets: Iterable[int], **options: Any) -> dict[int, ErrorCode]:
    """The error of a fetch at each offset; where there is none, it gets no records."""
    asked = [
        SimpleNamespace(partition=0, fetch_offset=each, partition_max_bytes=1, current_leader_epoch=NEW)
        for each in offsets
    ]
    body = _body([SimpleNamespace(topic="orders", partitions=asked)])
    (topic,) = _ask(folder, unserved, answer_fetch, body, **options)["responses"]
    assert not any(each["records"] for each in topic["partitions"])
    return dict(zip(offsets, [each["error_code"] for each in topic["partitions"]], strict=True))


@pytest.mark.parametrize(("unserved", "within"), [([], OUT_OF_RANGE), ([_range(END, LAST)], LOST)])
def test_fetch_of_an_offset_that_no_segment_serves_is_an_error_and_no_jump(
    tmp_path: Path, unserved: list[Row], within: ErrorCode
) -> None:
    """A client that has read all that is served waits, and one whose offset is after the end of the log jumps."""
    expected = {END: ErrorCode.none, END + 1: within, LAST: within, LAST + 1: within, LAST + 2: OUT_OF_RANGE}
    assert _errors(tmp_path, unserved, expected) == expected


@pytest.mark.parametrize("quarantined", [[], [END]])
def test_clients_wait_at_the_lost_end_if_gaps_are_passed_over(tmp_path: Path, quarantined: list[int]) -> None:
    beyond = LOST if quarantined else OUT_OF_RANGE
    expected = {END: ErrorCode.none, END + 1: ErrorCode.none, LAST + 1: ErrorCode.none, LAST + 2: beyond}
    found = _errors(tmp_path, [_range(END, LAST)], expected, quarantined=quarantined, skips_gaps=True)
    assert found == expected
