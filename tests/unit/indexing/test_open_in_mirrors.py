"""Test which transactions count as open at the end of a mirror that has logs only.

The oracle follows the producers from the first batch on, as a broker does that has lost its snapshots.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from builders.log_directory_writer import write_partition
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker
from builders.side_files import ProducerStates
from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment
from coldlog.archive.layouts.wrapped_layout import WrappedLayout
from coldlog.archive.open_archive import open_archive
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.index_files import outcome_rows
from coldlog.indexing.builds.segment_build import BuildOptions, Outcome, build_segments
from coldlog.indexing.publish.planned_rows import READ_COLUMNS, plan_all_partitions
from coldlog.model.states import IndexDepth, IndexStatus
from coldlog.tables.definitions.segments import SEGMENTS
from drawn_examples import sampled
from tables.work_rows import mirrored_works

OPTIONS = BuildOptions(
    depth=IndexDepth.BATCH,
    limits=DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20),
    window_bytes=1 << 20,
)
Row = dict[str, Any]
_COLUMNS = (*READ_COLUMNS, "leader_epoch_checkpoint")
_SCHEMA = pa.schema([SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in _COLUMNS])


class _Counting(WrappedLayout):
    """A layout that counts reads of logs."""

    reads = 0

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        _Counting.reads += 1
        return WrappedLayout.read_log_range(self, segment, position, length, until)


def _transactional(offset: int, producer_id: int) -> Batch:
    record = Record(timestamp_ms=offset, value=b"v")
    return Batch(base_offset=offset, records=(record,), is_transactional=True, producer_id=producer_id)


def _plain(offset: int) -> Batch:
    return Batch(base_offset=offset, records=(Record(timestamp_ms=offset, value=b"v"),))


def _marker(offset: int, producer_id: int, *, is_abort: bool = False) -> Batch:
    make = abort_marker if is_abort else commit_marker
    return make(offset=offset, timestamp_ms=offset, producer_id=producer_id, producer_epoch=-1, leader_epoch=0)


def _drawn(draws: random.Random) -> list[Segment]:
    """A log of up to eight segments; in a part of them nothing is transactional."""
    segments, offset = [], 0
    for _ in range(draws.randint(1, 8)):
        batches, is_quiet = [], draws.random() < 0.2
        for _ in range(draws.randint(1, 5)):
            producer_id, kind = draws.randrange(4), draws.random()
            if is_quiet or kind < 0.2:
                batches.append(_plain(offset))
            elif kind < 0.6:
                batches.append(_transactional(offset, producer_id))
            else:
                batches.append(_marker(offset, producer_id, is_abort=kind > 0.8))
            offset += 1
        segments.append(Segment(batches=tuple(batches)))
    return segments


def _open_from(segments: Sequence[Segment]) -> int | None:
    """The first offset of the oldest transaction that the segments leave open."""
    states = ProducerStates()
    for segment in segments:
        for batch in segment.batches:
            states.add(batch)
    open_from = (each.current_txn_first_offset for each in states.producers.values())
    return min((offset for offset in open_from if offset >= 0), default=None)


def _layout_of(folder: Path, segments: Sequence[Segment]) -> ArchiveLayout:
    """Only the logs were copied."""
    for file in write_partition(folder, "orders", 0, segments).iterdir():
        if file.suffix != ".log":
            file.unlink()
    return _Counting(layout=open_archive(str(folder), "log_directories"))


def _built(layout: ArchiveLayout, *, in_tasks: bool = False) -> list[Row]:
    """The rows of the segments, built in one task, or each in its own."""
    (directory,) = layout.list_partition_directories().directories
    works = mirrored_works(layout.list_segments(directory).segments)
    tasks = [[work] for work in works] if in_tasks else [works]
    parts = [part for task in tasks for part in build_segments(layout, task, OPTIONS)]
    known = {
        "state": "COPY_SEGMENT_FINISHED",
        "state_source": "listing",
        "index_status": IndexStatus.INDEXED.value,
        "build_number": 1,
    }
    outcomes = outcome_rows([part.row for part in parts if isinstance(part, Outcome)]).to_pylist()
    return [dict.fromkeys(_COLUMNS) | {name: row[name] for name in row if name in _COLUMNS} | known for row in outcomes]


def _published(rows: Sequence[Row]) -> tuple[list[Row], Row]:
    """The rows as the plan leaves them, and the row of the partition."""
    planned = plan_all_partitions(pa.Table.from_pylist(list(rows), schema=_SCHEMA), {}, {}).to_pylist()
    changes = {row["segment_id"]: {name: row[name] for name in row if name in _COLUMNS} for row in planned}
    return [row | changes.get(row["segment_id"], {}) for row in rows], changes[None] | planned[-1]


def test_stable_offset_is_the_brokers_also_when_the_last_segments_disappear() -> None:
    for seed in sampled(range(100)):
        segments = _drawn(random.Random(seed))
        with TemporaryDirectory() as folder:
            rows = _built(_layout_of(Path(folder), segments))
        for count in range(len(rows), 0, -1):
            rows, partition = _published(rows[:count])
            open_from, end = _open_from(segments[:count]), rows[-1]["end_offset"] + 1
            assert partition["stable_offset"] == (end if open_from is None else open_from), (seed, count)


@pytest.mark.parametrize("in_tasks", [False, True])
def test_transaction_goes_on_in_segments_without_a_marker(tmp_path: Path, *, in_tasks: bool) -> None:
    """It began in the first one, and has no record in the others. In one of them nothing is transactional."""
    batches = [_transactional(0, 1)], [_transactional(1, 2)], [_plain(2)], [_marker(3, 1), _marker(4, 2)]
    segments = [Segment(batches=tuple(each)) for each in batches]
    rows = _built(_layout_of(tmp_path, segments), in_tasks=in_tasks)
    stable = [_published(rows[:count])[1]["stable_offset"] for count in (1, 2, 3, 4)]
    assert stable == [0, 0, 0, 5]


def test_a_task_reads_each_log_once(tmp_path: Path) -> None:
    """Though each segment has a transaction that the segment before it has not ended."""
    segments = [Segment(batches=(_transactional(at, at),)) for at in range(6)]
    layout = _layout_of(tmp_path, segments)
    _Counting.reads = 0
    rows = _built(layout)
    assert [row["open_from_offset"] for row in rows] == [0] * 6
    assert _Counting.reads == len(segments) + 1, "the last one is read once more, to find its end"
