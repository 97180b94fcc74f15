"""Test what a run does when an indexed archive has one more segment: which bytes it reads, which files it writes, and
when lookups see the segment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, WrittenSegment, write_archive
from builders.segment_builder import Batch, Record, Segment, abort_marker
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.delta.warehouse import Warehouse
from counts.spark_work import counting_work
from damage.cut_runs import copies_behind_each_write, copies_in_order
from stores.noting_store import NotingStore, count_requests, take_notes
from worlds.golden_warehouse import run_pipeline

GROWING, OTHER = TopicPartition(topic="orders", partition=0), TopicPartition(topic="orders", partition=1)
OFFSETS = 9
"""The records of a segment, one millisecond apart."""
TIMES = range(1_000, 1_000 + 3 * OFFSETS + 1)

Answers = tuple[int | None, ...]
Actions = list[dict[str, dict[str, str]]]


class StepWork(NamedTuple):
    """What a step of a run did: commits of all tables, reads and listings of the archive, Spark jobs."""

    commits: int
    reads: int
    listings: int
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What a run did that found one new segment. `copies` are of the warehouse after each write, in order."""

    warehouse: Warehouse
    first: list[WrittenSegment]
    added: WrittenSegment
    read_first: dict[str, set[int]]
    read_then: dict[str, set[int]]
    actions: dict[str, Actions]
    copies: list[Path]
    work_first: dict[str, StepWork]
    work_then: dict[str, StepWork]


def _segment(start: int) -> Segment:
    """Plain records, and a transaction that is aborted."""
    records = [Record(timestamp_ms=1_000 + start + at, value=b"v" * 30) for at in range(OFFSETS - 1)]
    plain = [Batch(base_offset=start + at, records=tuple(records[at : at + 2])) for at in (0, 2, 4)]
    wrote = Batch(
        base_offset=start + 6,
        records=tuple(records[6:]),
        is_transactional=True,
        producer_id=7,
        producer_epoch=0,
        base_sequence=start,
    )
    end = start + OFFSETS - 1
    marker = abort_marker(offset=end, timestamp_ms=1_000 + end, producer_id=7, producer_epoch=0, leader_epoch=0)
    return Segment(batches=(*plain, wrote, marker), index_interval_bytes=0)


@pytest.fixture(scope="module")
def growth(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Growth:
    folder = tmp_path_factory.mktemp("growth")
    archive, location, notes = folder / "archive", folder / "warehouse", folder / "notes"
    store = NotingStore(root=str(archive / ARCHIVE_FOLDER), uri=str(archive), notes=str(notes))
    layout = LocalTieredStorageLayout(store=store)
    first = write_archive(archive, {GROWING: [_segment(0), _segment(OFFSETS)], OTHER: [_segment(0)]})

    def counting(into: dict[str, StepWork]) -> Callable[[str], AbstractContextManager[None]]:
        @contextmanager
        def around(step: str) -> Iterator[None]:
            commits, requests = _commit_count(location), count_requests(notes)
            with counting_work(spark) as work:
                yield
            reads, listings = (now - before for now, before in zip(count_requests(notes), requests, strict=True))
            into[step] = StepWork(
                commits=_commit_count(location) - commits,
                reads=reads,
                listings=listings,
                jobs=work.jobs,
            )

        return around

    work_first: dict[str, StepWork] = {}
    work_then: dict[str, StepWork] = {}
    warehouse = run_pipeline(spark, layout, location, around=counting(work_first))
    read_first = take_notes(notes)
    before = {table.name: len(_logs(location, table)) for table in ALL_TABLES}
    written = write_archive(archive, {GROWING: [_segment(start) for start in (0, OFFSETS, 2 * OFFSETS)]})
    with pytest.MonkeyPatch.context() as patch, copies_behind_each_write(location, folder / "copies", patch):
        run_pipeline(spark, layout, location, around=counting(work_then))
    return Growth(
        warehouse=warehouse,
        first=first,
        added=written[-1],
        read_first=read_first,
        read_then=take_notes(notes),
        actions={table.name: _actions(location, table, before[table.name]) for table in ALL_TABLES},
        copies=copies_in_order(folder / "copies"),
        work_first=work_first,
        work_then=work_then,
    )


def _commit_count(location: Path) -> int:
    return sum(1 for _ in location.glob("*/_delta_log/*.json"))


def test_each_step_does_no_more_than_its_part(growth: Growth) -> None:
    """Of the first run into empty tables, and of the run that found one new segment."""
    most_first = {
        "scan": StepWork(commits=1, reads=0, listings=3, jobs=0),
        "build": StepWork(commits=4, reads=19, listings=2, jobs=0),
        "materialize": StepWork(commits=5, reads=0, listings=0, jobs=0),
        "reconcile": StepWork(commits=0, reads=0, listings=0, jobs=0),
    }
    most_then = {
        "scan": StepWork(commits=1, reads=0, listings=3, jobs=0),
        "build": StepWork(commits=4, reads=7, listings=1, jobs=0),
        "materialize": StepWork(commits=5, reads=0, listings=0, jobs=0),
        "reconcile": StepWork(commits=0, reads=0, listings=0, jobs=0),
    }
    for done, most in ((growth.work_first, most_first), (growth.work_then, most_then)):
        assert done == most


def test_only_the_new_segment_and_the_snapshot_before_it_are_read(growth: Growth) -> None:
    # The notes tell: of the first run they name every object.
    assert growth.read_first.keys() == {name for segment in growth.first for name in _objects(segment)}
    objects = _objects(growth.added)
    assert len(objects) == 6
    # The snapshot says where the transactions began that the new segment's index lists.
    before = {name: path for name, path in _objects(growth.first[1]).items() if path.suffix == ".snapshot"}
    assert growth.read_then == {name: set(range(path.stat().st_size)) for name, path in (objects | before).items()}


def test_files_are_added_to_index_tables_and_none_is_removed(growth: Growth) -> None:
    for table in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
        actions = growth.actions[table.name]
        added = [action["add"]["path"] for action in actions if "add" in action]
        assert added, table.name
        assert not any("remove" in action for action in actions), table.name
        location = Path(growth.warehouse.uri) / table.name
        rows = [row for path in added for row in pq.read_table(location / path, columns=["segment_id"]).to_pylist()]
        assert {row["segment_id"] for row in rows} == {growth.added.segment_id}, table.name


def test_files_have_statistics_of_the_skipping_columns_and_of_no_others(growth: Growth) -> None:
    seen = set()
    for table in ALL_TABLES:
        for action in growth.actions[table.name]:
            if "add" in action:
                statistics = json.loads(action["add"]["stats"])
                assert statistics["nullCount"].keys() == set(table.skipping_columns), table.name
                assert statistics["minValues"].keys() <= set(table.skipping_columns), table.name
                seen.add(table.name)
    assert seen >= {"segments", "offset_index", "time_index", "txn_index", "txn_segments", "partition_metadata"}


def test_answers_after_each_write_are_the_old_or_the_new_ones(growth: Growth) -> None:
    wanted = [1_000 + at if at < 3 * OFFSETS else None for at in range(3 * OFFSETS + 1)]
    new = tuple(None if time is None else time - 1_000 for time in wanted)
    old = tuple(offset if offset is not None and offset < 2 * OFFSETS else None for offset in new)
    answers = [_answers(copy) for copy in growth.copies]
    assert [each for each, _ in groupby(answers)] == [old, new]
    assert len(growth.copies) > 6
    assert _answers(Path(growth.warehouse.uri)) == new
    # What is said of the partition as a whole changes at once too, and not before its records are found.
    whole = [_of_partition(copy) for copy in growth.copies]
    end = 2 * OFFSETS - 1, 3 * OFFSETS - 1
    assert [each for each, _ in groupby(whole)] == [(0, each, each + 1_000) for each in end]
    assert whole.index((0, end[1], end[1] + 1_000)) >= answers.index(new)


def _answers(location: Path) -> Answers:
    with OffsetReader(location) as reader:
        found = [reader.offset_for_timestamp(GROWING.topic, GROWING.partition, time) for time in TIMES]
        other = [reader.offset_for_timestamp(OTHER.topic, OTHER.partition, time) for time in (1_000, 1_000 + OFFSETS)]
    assert [None if each is None else each.offset for each in other] == [0, None]
    return tuple(None if each is None else each.offset for each in found)


def _of_partition(location: Path) -> tuple[int | None, int | None, int | None]:
    """Earliest and latest offset, and the newest timestamp."""
    place = GROWING.topic, GROWING.partition
    with OffsetReader(location) as reader:
        newest = reader.max_timestamp(*place)
        assert newest is not None
        assert newest.timestamp_ms == newest.offset + 1_000
        return reader.earliest_offset(*place), reader.latest_tiered_offset(*place), newest.timestamp_ms


def _objects(segment: WrittenSegment) -> dict[str, Path]:
    """Every file of a segment, by its name in the archive."""
    files = segment.stem.parent.glob(f"{segment.stem.name}.*")
    return {f"{path.parent.name}/{path.name}": path for path in files}


def _logs(location: Path, table: TableDefinition) -> list[Path]:
    return sorted((location / table.name / "_delta_log").glob("*.json"))


def _actions(location: Path, table: TableDefinition, from_version: int) -> Actions:
    """The actions of every commit from a version on."""
    lines = [line for log in _logs(location, table)[from_version:] for line in log.read_text().splitlines()]
    return [json.loads(line) for line in lines]
