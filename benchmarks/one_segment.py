"""one_segment: how much faster is a large segment if all cores decode it?

A task without Spark: read, index and write the rows of one segment of 1 GiB, by one thread and by a thread for each
core, in turns. Checksums and decompression are shared. Reading, the order of the windows, rows and files are one
thread's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial

from benchmarks.shared.generated_logs import MIB, LogShape, RecordKind, get_archive
from benchmarks.shared.measuring import MEGABYTE, Figure, seconds_in_turns
from benchmarks.shared.sizes import Sizes

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.open_archive import open_archive
from coldlog.archive.stores.s3_client import S3Options
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.index_files import IndexPlace, write_index_files
from coldlog.indexing.builds.segment_build import BuildOptions, build_segments
from coldlog.model.states import IndexDepth
from coldlog.runtime.settings import IndexSettings
from coldlog.tables.definitions.catalog import INDEX_TABLES

_SETTINGS = IndexSettings()
_LIMITS = DecodeLimits(
    max_batch_bytes=_SETTINGS.max_batch_bytes, max_decompressed_bytes=_SETTINGS.max_decompressed_bytes
)


def measure_one_segment(sizes: Sizes) -> Iterator[Figure]:
    """Speeds in MB of log a second."""
    size_bytes, cores = sizes.one_segment_bytes, len(os.sched_getaffinity(0))
    archive = get_archive(
        LogShape(
            log_bytes=3 * size_bytes,
            segment_bytes=size_bytes,
            template_bytes=min(64 * MIB, size_bytes // 4),
            partition_count=1,
            records=RecordKind.CLICKS,
        )
    )
    layout = open_archive(str(archive.directory), "local_tiered_storage")
    for work in _works_of(layout):
        for depth in (IndexDepth.BATCH, IndexDepth.RECORD):
            calls = {
                "one": partial(_build, layout, work, depth, threads=1),
                "all": partial(_build, layout, work, depth, threads=cores),
            }
            seconds = seconds_in_turns(calls, sizes.turns)
            speeds = {name: work.log_bytes / taken / MEGABYTE for name, taken in seconds.items()}
            yield Figure(
                benchmark="one-segment",
                what=f"{depth.value} depth, {cores} threads",
                on=work.segment.topic,
                value=speeds["all"],
                unit="MB/s",
                against=f"one thread, {speeds['one']:,.0f} MB/s",
                ratio=speeds["all"] / speeds["one"],
            )


def _works_of(layout: ArchiveLayout) -> Iterator[SegmentWork]:
    """The first segment of each topic, which is the large one."""
    for directory in layout.list_partition_directories().directories:
        segment = layout.list_segments(directory).segments[0]
        yield SegmentWork(
            segment=segment, log_modified_ms=0, count_from_offset=segment.start_offset, replaces_build_numbers=()
        )


def _build(layout: ArchiveLayout, work: SegmentWork, depth: IndexDepth, *, threads: int) -> None:
    options = BuildOptions(
        depth=depth,
        limits=_LIMITS,
        window_bytes=_SETTINGS.window_bytes,
        bytes_per_thread=work.log_bytes // threads,
        most_threads=threads,
    )
    with tempfile.TemporaryDirectory() as folder:
        locations = {table.name: os.path.join(folder, table.name) for table in INDEX_TABLES}
        for location in locations.values():
            os.mkdir(location)
        place = IndexPlace(locations=locations, s3=S3Options(), build_number=1)
        for _ in write_index_files(build_segments(layout, [work], options), place):
            pass
