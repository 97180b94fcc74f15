"""Test that the files of a task hold the rows of the good segments that it read, and no other rows."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.layouts.paced_layout import PacedLayout
from coldlog.archive.open_archive import open_archive
from coldlog.archive.stores.s3_client import S3Options
from coldlog.errors import RetriableError
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds import index_files
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.index_files import IndexPlace, files_of, outcomes_of, throttled_of, write_index_files
from coldlog.indexing.builds.segment_build import BuildOptions, build_segments
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tiering import system_clock
from coldlog.tiering.read_pace import ReadPace, take_throttled
from coldlog.tiering.rules.throttled_reads import ThrottledReads
from virtual_clock import VirtualClock

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
# Small windows, so that pieces of a segment are there before its damage is met.
OPTIONS = BuildOptions(depth=IndexDepth.RECORD, limits=LIMITS, window_bytes=256, is_salvaging=False)
BATCHES = tuple(
    Batch(base_offset=2 * at, records=(Record(timestamp_ms=10 * at), Record(timestamp_ms=10 * at + 1)))
    for at in range(20)
)
PARTITIONS = [TopicPartition(topic="orders", partition=partition) for partition in range(4)]
DAMAGED = (1, 2)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """One segment for each partition, all with the same id; two are damaged at their end."""
    segment = Segment(batches=BATCHES, segment_id="x" * 21 + "A")
    written = write_archive(tmp_path / "archive", {place: [replace(segment)] for place in PARTITIONS})
    for at in DAMAGED:
        log = written[at].log
        os.truncate(log, log.stat().st_size - 1)
    return tmp_path / "archive"


def index(archive: Path, location: Path, pace: ReadPace | None = None) -> pa.Table:
    """Index all segments of the archive in one task, at a pace if there is one."""
    layout: ArchiveLayout = open_archive(str(archive), "local_tiered_storage")
    if pace is not None:
        layout = PacedLayout(layout=layout, pace=pace)
    works = [
        SegmentWork(segment=each, log_modified_ms=0, count_from_offset=0, replaces_build_numbers=())
        for directory in layout.list_partition_directories().directories
        for each in layout.list_segments(directory).segments
    ]
    works.sort(key=lambda work: work.segment.partition)
    locations = {table.name: str(location) for table in INDEX_TABLES}
    place = IndexPlace(locations=locations, s3=S3Options(), build_number=7)
    pieces = build_segments(layout, works, OPTIONS)
    return pa.Table.from_batches(write_index_files(pieces, place, partial(take_throttled, layout)))


def rows_of(table_name: str, answers: pa.Table, location: Path) -> list[dict[str, object]]:
    return [row for file in files_of(table_name, answers) for row in pq.read_table(location / file.path).to_pylist()]


def require_good_rows(answers: pa.Table, location: Path) -> None:
    good = [place.partition for place in PARTITIONS if place.partition not in DAMAGED]
    batches = rows_of(OFFSET_INDEX.name, answers, location)
    assert [(row["partition"], row["base_offset"]) for row in batches] == [
        (partition, batch.base_offset) for partition in good for batch in BATCHES
    ]
    assert {row["build_number"] for row in batches} == {7}
    stairs = rows_of(TIME_INDEX.name, answers, location)
    assert [(row["partition"], row["timestamp_ms"]) for row in stairs] == [
        (partition, record.timestamp_ms) for partition in good for batch in BATCHES for record in batch.records
    ]


def test_rows_of_damaged_segments_are_in_no_file_although_other_segments_have_their_id(
    archive: Path, tmp_path: Path
) -> None:
    answers = index(archive, tmp_path)
    outcomes = {row["partition"]: row["outcome"] for row in outcomes_of(answers).to_pylist()}
    assert outcomes == {0: "indexed", 1: "quarantined", 2: "quarantined", 3: "indexed"}
    assert [len(files_of(table.name, answers)) for table in (OFFSET_INDEX, TIME_INDEX)] == [1, 1]
    require_good_rows(answers, tmp_path)


@pytest.mark.parametrize(("piece_rows", "most_segments"), [(1, 1_000), (30, 1_000), (100_000, 1)])
def test_rows_are_the_same_however_many_are_written_together(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_rows: int, most_segments: int
) -> None:
    """A segment of more than 30 rows waits in a temporary file."""
    monkeypatch.setattr(index_files, "PIECE_ROWS", piece_rows)
    monkeypatch.setattr(index_files, "_MOST_SEGMENTS", most_segments)
    monkeypatch.setattr(index_files, "_OUTCOMES_AT_ONCE", 3)
    answers = index(archive, tmp_path)
    assert [row["partition"] for row in outcomes_of(answers).to_pylist()] == [0, 1, 2, 3]
    require_good_rows(answers, tmp_path)


def test_full_file_is_followed_by_another(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_files, "_FILE_BYTES", 1)
    monkeypatch.setattr(index_files, "_MOST_SEGMENTS", 1)
    answers = index(archive, tmp_path)
    assert [len(files_of(table.name, answers)) for table in (OFFSET_INDEX, TIME_INDEX)] == [2, 2]
    require_good_rows(answers, tmp_path)


def test_folder_that_cannot_be_written_is_a_retriable_error(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(RetriableError, match=r"gone/part-.* cannot be written: No such file"):
        index(archive, tmp_path / "gone")


def test_task_says_how_long_its_reads_waited_for_the_read_quota(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(system_clock, "SystemClock", lambda: clock)
    pace, began_ms = ReadPace(bytes_per_second=1_234), clock.time_ms
    for _ in range(2):
        answers = index(archive, tmp_path, pace)
        require_good_rows(answers, tmp_path)
        reads = throttled_of(answers)
        assert (reads.count, reads.total_ms, reads.longest_ms) == (
            len(clock.waits),
            clock.time_ms - began_ms,
            max(clock.waits),
        )
        assert reads.count > 10
        clock.waits.clear()
        began_ms = clock.time_ms
    assert throttled_of(index(archive, tmp_path)) == ThrottledReads()
