"""Test that the cores of a task's process share a large segment, and find what one core finds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, write_archive
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.archive.stores.s3_client import S3Options
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds import build_tasks
from coldlog.indexing.builds.index_files import IndexPlace, files_of, outcomes_of
from coldlog.indexing.builds.segment_build import BuildOptions
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.catalog import INDEX_TABLES
from planning import as_large_tables
from stores.noting_store import NotingStore
from tables.work_rows import works_of

WINDOW_BYTES = 256 << 10
OPTIONS = BuildOptions(
    depth=IndexDepth.RECORD,
    limits=DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20),
    window_bytes=WINDOW_BYTES,
)


def _write_segment(archive: Path) -> None:
    """A segment of 60 batches of 40 KB; each second record is later than all before."""
    values = [os.urandom(4_000) for _ in range(10)]
    batches = [
        Batch(
            base_offset=10 * number,
            records=tuple(
                Record(timestamp_ms=1_000 * number + 100 * at * (at % 2), value=value)
                for at, value in enumerate(values)
            ),
            codec=Codec.LZ4,
        )
        for number in range(60)
    ]
    partition = TopicPartition(topic="large", partition=0)
    write_archive(archive, {partition: [Segment(batches=tuple(batches), index_interval_bytes=4096)]})


def test_a_segment_that_all_cores_decode_has_the_same_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_segment(tmp_path / "archive")
    notes = tmp_path / "notes"
    root = str(tmp_path / "archive" / ARCHIVE_FOLDER)
    layout = LocalTieredStorageLayout(store=NotingStore(root=root, uri=root, notes=str(notes)))
    (directory,) = layout.list_partition_directories().directories
    (segment,) = layout.list_segments(directory).segments

    def build(name: str) -> tuple[list[object], int]:
        """The rows and the outcome; and how many bytes of the log were read."""
        locations = {table.name: str(tmp_path / name / table.name) for table in INDEX_TABLES}
        for location in locations.values():
            Path(location).mkdir(parents=True)
        notes.unlink()
        place = IndexPlace(locations=locations, s3=S3Options(), build_number=1)
        with as_large_tables():
            answers = build_tasks.run_build(spark, layout, OPTIONS, 1, works_of([segment]), place)
        reads = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
        files = {
            table: [Path(location) / file.path for file in files_of(table, answers)]
            for table, location in locations.items()
        }
        rows = {
            table: pa.concat_tables(map(pq.read_table, paths)).to_pylist() for table, paths in files.items() if paths
        }
        return [rows, outcomes_of(answers).to_pylist()], sum(read[2] for read in reads if read[0].endswith(".log"))

    size_bytes = layout.log_size_bytes(segment)
    alone, read_alone = build("alone")
    # Each window reads the batch again that the window before it cut.
    assert read_alone > size_bytes
    monkeypatch.setattr(build_tasks, "_LEAST_BYTES_PER_THREAD", WINDOW_BYTES)
    together, read_together = build("together")
    assert spark.sparkContext.defaultParallelism > 1
    assert read_together == size_bytes
    assert together == alone
    assert len(alone[0]["time_index"]) > 60  # type: ignore[index]
