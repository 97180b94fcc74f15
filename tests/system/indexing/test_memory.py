"""A segment of a gibibyte is indexed in the memory that docs/explanation/performance.md states, inside a worker of
Spark: at both depths, and with the worst of codecs and batches."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, build_batch
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.open_archive import open_archive
from coldlog.archive.stores.s3_client import S3Options
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.index_files import ANSWER_DDL, IndexPlace, files_of, outcomes_of, write_index_files
from coldlog.indexing.builds.segment_build import BuildOptions, build_segments
from coldlog.model.states import IndexDepth
from coldlog.runtime.settings import IndexSettings
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.index.time_index import TIME_INDEX

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TOPIC = TopicPartition(topic="large", partition=0)
WINDOW_BYTES = IndexSettings().window_bytes
SLACK_BYTES = 16 * MIB
"""Room for Spark's worker and Arrow: batches in transfer, memory pools that grow."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The same batch many times, with later timestamps each time."""

    codec: Codec
    record_count: int
    value_bytes: int
    size_bytes: int
    max_bytes: int
    """index.max_batch_bytes and index.max_decompressed_bytes."""

    def write(self, path: Path, batch: bytes) -> int:
        """Write the log; return how many times the batch is repeated."""
        count = self.size_bytes // len(batch) + 1
        base_ms, max_ms = struct.unpack_from(">qq", batch, 27)
        with path.open("wb") as log:
            for number in range(count):
                later = number * self.record_count
                again = bytearray(batch)
                struct.pack_into(">q", again, 0, later)
                struct.pack_into(">qq", again, 27, base_ms + later, max_ms + later)
                struct.pack_into(">I", again, 17, crc32c(memoryview(again)[21:]))
                log.write(again)
        return count

    def needed_bytes(self, batch_bytes: int) -> int:
        """What docs/explanation/performance.md states for a task."""
        windows = 2 * max(WINDOW_BYTES, batch_bytes)
        rows = 150 * self.record_count * max(1, WINDOW_BYTES // batch_bytes)
        if self.codec is Codec.NONE:
            return windows + rows
        buffer = max(2 * MIB, min(self.max_bytes, 4 * (self.value_bytes + 100) * self.record_count))
        if self.codec in (Codec.GZIP, Codec.LZ4):
            return windows + rows + 2 * buffer + batch_bytes
        return windows + rows + buffer * 5 // 4


DEPTHS = (IndexDepth.BATCH, IndexDepth.RECORD)
"""Those that read the log."""
SMALL_BATCHES = {"record_count": 64, "value_bytes": 900, "size_bytes": GIB, "max_bytes": 128 * MIB}
TINY_RECORDS = {"record_count": 8_000, "value_bytes": 0, "size_bytes": 128 * MIB, "max_bytes": 128 * MIB}
LARGE_BATCHES = {"record_count": 40, "value_bytes": MIB, "size_bytes": 120 * MIB, "max_bytes": 64 * MIB}


@pytest.mark.parametrize(
    "log",
    [
        Log(codec=Codec.NONE, **SMALL_BATCHES),
        Log(codec=Codec.ZSTD, **SMALL_BATCHES),
        Log(codec=Codec.NONE, **TINY_RECORDS),
        Log(codec=Codec.LZ4, **LARGE_BATCHES),
    ],
    ids=["gibibyte-none", "gibibyte-zstd", "tiny-records-none", "large-batches-lz4"],
)
def test_a_task_needs_the_memory_of_a_window_for_a_segment_of_any_size(
    spark: SparkSession, tmp_path: Path, log: Log
) -> None:
    records = [Record(timestamp_ms=1_000 + at, value=os.urandom(log.value_bytes)) for at in range(log.record_count)]
    batch = Batch(base_offset=0, records=tuple(records), codec=log.codec)
    once = build_batch(batch)
    few = Batch(base_offset=0, records=(Record(timestamp_ms=1_000, value=b"v"),), codec=log.codec)
    write_archive(tmp_path / "small", {TOPIC: [Segment(batches=(few,))]})
    [written] = write_archive(tmp_path / "large", {TOPIC: [Segment(batches=(batch,), index_interval_bytes=GIB)]})
    count = log.write(written.log, once)
    assert written.log.stat().st_size >= log.size_bytes
    needed = log.needed_bytes(len(once))
    if log.size_bytes == GIB:
        assert needed < 32 * MIB
    task = _bounded_task(tmp_path, log, needed + SLACK_BYTES)
    answers = spark.range(0, 1, 1, 1).mapInArrow(task, schema=ANSWER_DDL).toArrow()
    written.log.unlink()
    outcomes = outcomes_of(answers).to_pylist()
    assert [row["outcome"] for row in outcomes] == ["indexed"] * len(DEPTHS), outcomes
    assert [row["record_count"] for row in outcomes] == [log.record_count * count] * len(DEPTHS)
    stairs = [pq.read_metadata(tmp_path / file.path) for file in files_of(TIME_INDEX.name, answers)]
    assert [file.num_rows for file in stairs] == [log.record_count * count], "each record is a stair"


def _bounded_task(folder: Path, log: Log, allowance_bytes: int) -> Callable[[Batches], Batches]:
    """The build's task over the large archive, in as much more address space than the worker has when it has imported
    and compiled what it needs."""
    limits = DecodeLimits(max_batch_bytes=log.max_bytes, max_decompressed_bytes=log.max_bytes)
    small, large = (open_archive(str(folder / name), "local_tiered_storage") for name in ("small", "large"))
    place = IndexPlace(locations={table.name: str(folder) for table in INDEX_TABLES}, s3=S3Options(), build_number=1)

    # Inside, so that Spark sends it as it is: the worker has no module of this name.
    def index(layout: ArchiveLayout, depth: IndexDepth) -> Batches:
        listing = layout.list_segments(layout.list_partition_directories().directories[0])
        work = [
            SegmentWork(segment=each, log_modified_ms=0, count_from_offset=0, replaces_build_numbers=())
            for each in listing.segments
        ]
        options = BuildOptions(depth=depth, limits=limits, window_bytes=WINDOW_BYTES)
        return write_index_files(build_segments(layout, work, options), place)

    def run(batches: Batches) -> Batches:
        assert sum(batch.num_rows for batch in batches) == 1
        for depth in DEPTHS:
            for _ in index(small, depth):
                pass
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + allowance_bytes, before[1]))
        try:
            for depth in DEPTHS:
                yield from index(large, depth)
        finally:
            # Spark uses the worker again.
            resource.setrlimit(resource.RLIMIT_AS, before)

    return run
