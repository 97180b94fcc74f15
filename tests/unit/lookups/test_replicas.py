"""Test that times, offsets and records are those of the log, whatever leaders have uploaded beside it.

Of each kind ten archives are asked, or as many as WORLDS says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.fetch import FetchFailure, FetchRequest
from coldlog.model.states import IndexDepth, IsolationLevel
from coldlog.reader import OffsetReader
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slices import LogSlice
from drawn_examples import is_sampled, sampled
from worlds.planned_uploads import LIMITS, ORDERS, PlannedUploads, write_uploads
from worlds.replicas import Replicas, Truth, archived_truth

_EARLIEST, _MAX_TIMESTAMP, _LATEST_TIERED = -2, -3, -5
_WORLDS = int(os.environ.get("WORLDS", "10"))


def _worlds(seeds: range) -> Iterator[tuple[Replicas, Truth]]:
    for seed in sampled(seeds):
        replicas = Replicas(seed)
        replicas.live(replicas.random.randint(15, 45))
        replicas.settle()
        truth = archived_truth(replicas)
        if truth is not None:
            yield replicas, truth


@pytest.mark.parametrize("has_events", [True, False], ids=["events", "no events"])
@pytest.mark.parametrize("depth", IndexDepth)
def test_answers_are_those_of_the_log(tmp_path: Path, depth: IndexDepth, has_events: bool) -> None:
    first = 10_000 * [*IndexDepth].index(depth) + 100_000 * has_events
    count = 0
    for replicas, truth in _worlds(range(first, first + _WORLDS)):
        folder = tmp_path / str(replicas.seed)
        layout = write_uploads(folder, replicas.uploads)
        random = Random(replicas.seed)
        start = random.randrange(truth.batches[-1].last_offset) if random.random() < 0.5 else None
        uploads = PlannedUploads(uploads=replicas.uploads, layout=layout, depth=depth, has_events=has_events)
        uploads.publish(folder / "warehouse", start)
        _compare(truth, start or 0, folder / "warehouse", layout, f"seed {replicas.seed}")
        count += 1
    assert count >= (1 if is_sampled() else _WORLDS // 2)


def _compare(truth: Truth, start: int, warehouse: Path, layout: ArchiveLayout, told: str) -> None:
    records = [each for batch in truth.batches for each in batch.placed_records if each.offset >= start]
    times = sorted({max(0, each.timestamp_ms + more) for each in records for more in (-1, 0, 1)})
    firsts = [next((each for each in records if each.timestamp_ms >= time), None) for time in times]
    expected = [None if each is None else (each.offset, each.timestamp_ms, each.leader_epoch) for each in firsts]
    options = LookupOptions(batches=BatchReader(open_layout=lambda: layout, limits=LIMITS))
    with OffsetReader(warehouse, options) as reader:
        rows = reader.list_offsets([(ORDERS.topic, ORDERS.partition, time) for time in times])
        found = [(row["offset"], row["offset_timestamp_ms"], row["leader_epoch"]) for row in rows]
        assert [None if each[0] is None else each for each in found] == expected, told
        ends = (_EARLIEST, _MAX_TIMESTAMP, _LATEST_TIERED)
        rows = reader.list_offsets([(ORDERS.topic, ORDERS.partition, special) for special in ends])
    largest = max(records, key=lambda each: (each.timestamp_ms, -each.offset))
    assert [row["offset"] for row in rows] == [start, largest.offset, truth.end - 1], told
    for max_bytes in (1, 1 << 20):
        assert _fetched(warehouse, layout, start, IsolationLevel.READ_UNCOMMITTED, max_bytes) == truth.offsets(start), (
            told
        )
        committed = _fetched(warehouse, layout, start, IsolationLevel.READ_COMMITTED, max_bytes)
        assert committed == truth.committed_offsets(start), told


def _fetched(warehouse: Path, layout: ArchiveLayout, start: int, level: IsolationLevel, max_bytes: int) -> list[int]:
    """Fetch to the end, as a consumer does."""
    offsets, asked = (
        list[int](),
        FetchRequest(
            topic=ORDERS.topic, partition=ORDERS.partition, offset=start, max_bytes=max_bytes, isolation_level=level
        ),
    )
    with closing(RecordSource(str(warehouse), lambda: layout, LIMITS)) as source:
        while True:
            planned = source.plan(asked)
            answer = source.read(planned) if isinstance(planned, LogSlice) else planned
            if isinstance(answer, FetchFailure) or answer.next_offset <= asked.offset:
                return offsets
            offsets += [record.offset for record in answer.records]
            asked = replace(asked, offset=answer.next_offset)
