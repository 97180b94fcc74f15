"""List the segments of the archive: a small one in this process, a larger one in Spark tasks.

A task lists many partition directories, several at once. The result has one row per segment and one row per object that
the layout does not recognize (`listed_rows`). No object is opened, except an object that names a directory's topic.

The digest of the archive (`ArchiveDigest`) follows from the sum of the rows' digests and from the directories, so it
does not depend on who lists: the tasks of a run, or a process without Spark (`digest_archive`).

A directory that cannot be listed (`ArchiveError`) does not end the task, but becomes a row. A store that does not
answer ends the task.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.archive.inventory.reported_layout import ReportedLayout
from coldlog.archive.layouts.layout import (
    ArchiveLayout,
    DirectoryListing,
    PartitionDirectory,
    SegmentFileKind,
    UnrecognizedObject,
)
from coldlog.archive.stores.local_store import LocalStore
from coldlog.errors import ArchiveError
from coldlog.indexing.digests import digest_of
from coldlog.indexing.scan.listed_rows import LISTED_SCHEMA, listed_row, rows_of, unlisted_row
from coldlog.indexing.scan.listing_processes import map_in_processes
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse

# Of the unrecognized rows, only a directory that cannot be listed has its partition.
IS_UNLISTED = "unrecognized_name IS NOT NULL AND topic IS NOT NULL"
_LOG_OBJECT_BYTES = "aggregate(filter(objects, o -> o.kind = 'log'), 0L, (bytes, o) -> bytes + o.size_bytes)"
_MOST_DIRECTORIES_A_TASK, _LISTED_AT_ONCE = 64, 16
_DIGESTED_AT_ONCE = 1024
"""Directories whose rows one process holds."""
_MOST_SEGMENTS_ALONE = 10_000
"""More segments on a local disk are listed in several processes, which take a second to start."""
_MOST_DIRECTORIES_HERE, _MOST_ROWS_HERE = 256, 30_000
"""What is listed in this process, because Spark's tasks take seconds to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingTotals:
    """Numbers of what was listed. `unrecognized` includes the `unlisted` directories; `digests` is a sum."""

    segments: int = 0
    log_bytes: int = 0
    incomplete: int = 0
    unrecognized: int = 0
    unlisted: int = 0
    digests: int = 0

    @classmethod
    def of(cls, rows: pa.RecordBatch | pa.Table) -> ListingTotals:
        """Count rows of `LISTED_SCHEMA`."""
        objects = pc.list_flatten(rows["objects"])
        is_log = pc.equal(pc.struct_field(objects, "kind"), SegmentFileKind.LOG.value)
        segments = pc.sum(pc.is_null(rows["unrecognized_name"])).as_py() or 0
        return cls(
            segments=segments,
            log_bytes=pc.sum(pc.struct_field(objects.filter(is_log), "size_bytes")).as_py() or 0,
            incomplete=pc.sum(pc.greater(pc.list_value_length(rows["missing_kinds"]), 0)).as_py() or 0,
            unrecognized=len(rows) - segments,
            unlisted=pc.count(rows["topic"]).as_py() - segments,
            digests=sum(rows["row_digest"].to_pylist()),
        )

    def __sub__(self, other: ListingTotals) -> ListingTotals:
        return ListingTotals(**{name: getattr(self, name) - getattr(other, name) for name in self.__slots__})

    def __add__(self, other: ListingTotals) -> ListingTotals:
        return ListingTotals(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryDigest:
    """What a listing found in one partition directory. The times are those of the table `directory_digests`."""

    directory: PartitionDirectory
    totals: ListingTotals
    listed_ms: int | None = field(default=None, compare=False)
    seen_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveDigest:
    """What a listing found. `digest` is the same if names, sizes and modification times of logs are the same."""

    digest: str
    directories: tuple[DirectoryDigest, ...]
    beside: tuple[UnrecognizedObject, ...]

    @property
    def totals(self) -> ListingTotals:
        """The numbers of all directories."""
        return sum((each.totals for each in self.directories), ListingTotals())

    @classmethod
    def of(cls, directories: Iterable[DirectoryDigest], beside: tuple[UnrecognizedObject, ...]) -> ArchiveDigest:
        """Join the digests of all directories, and of the objects beside them."""
        ordered = tuple(sorted(directories, key=lambda each: each.directory.name))
        listing = DirectoryListing(directories=tuple(each.directory for each in ordered), unrecognized=beside)
        digests = sum(each.totals.digests for each in ordered)
        return cls(digest=listing_digest(listing, digests), directories=ordered, beside=beside)


def list_here(layout: ArchiveLayout, directories: Sequence[PartitionDirectory]) -> list[pa.RecordBatch] | None:
    """List what `list_in_tasks` lists, in this process: a batch per directory. None if that is too much."""
    if len(directories) > _MOST_DIRECTORIES_HERE:
        return None
    batches: list[pa.RecordBatch] = []
    start, count, rows = 0, 1, 0
    # One directory may have a million segments. So it starts with one, and goes on with twice as many.
    while start < len(directories):
        for batch in list_directories(layout, directories[start : start + count]):
            batches.append(batch)
            rows += len(batch)
            if rows > _MOST_ROWS_HERE:
                return None
        start, count = start + count, min(count * 2, _LISTED_AT_ONCE)
    return batches


def list_in_tasks(warehouse: Warehouse, layout: ArchiveLayout, directories: Sequence[PartitionDirectory]) -> DataFrame:
    """List, in the columns of `LISTED_SCHEMA`, every segment and unrecognized object below `directories`, and the
    directories that cannot be listed."""
    spark = warehouse.spark
    slots = spark.sparkContext.defaultParallelism
    size = max(1, min(_MOST_DIRECTORIES_A_TASK, math.ceil(len(directories) / slots)))
    groups = [directories[i : i + size] for i in range(0, len(directories), size)]
    ddl = ", ".join(f"{name} {_DDL_TYPES[name]}" for name in LISTED_SCHEMA.names)
    task_count = max(1, len(groups))
    if isinstance(layout, ReportedLayout):
        # Each task gets its part of the report.
        parts = pa.array((pickle.dumps((layout.part(group), group)) for group in groups), pa.binary())
        return frame_of(spark, pa.table({"part": parts})).repartition(task_count).mapInArrow(_list_parts, schema=ddl)

    def list_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                yield from list_directories(layout, groups[group])

    return spark.range(0, len(groups), 1, task_count).mapInArrow(list_groups, schema=ddl)


def _list_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in batch.column(0):
            yield from list_directories(*pickle.loads(part.as_buffer()))


def list_directories(layout: ArchiveLayout, directories: Sequence[PartitionDirectory]) -> Iterator[pa.RecordBatch]:
    """Iterate over rows of `LISTED_SCHEMA`, one batch per directory, in order."""
    if isinstance(getattr(layout, "store", None), LocalStore):
        # Threads would only wait for each other: the listing of 100,000 segments takes 7.5 s in one, 16 s in sixteen.
        yield from map(partial(_listing_rows, layout), directories)
        return
    # A store answers one page at a time, and most of the time is waiting. A report is on this machine.
    is_reported = layout.is_reported if isinstance(layout, ReportedLayout) else _is_never_reported
    with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
        live = threads.map(partial(_listing_rows, layout), [each for each in directories if not is_reported(each)])
        for directory in directories:
            yield _listing_rows(layout, directory) if is_reported(directory) else next(live)


def _is_never_reported(_: PartitionDirectory) -> bool:
    return False


def digest_archive(layout: ArchiveLayout, known: Mapping[str, DirectoryDigest] | None = None) -> ArchiveDigest:
    """List the archive in this process, but for what is `known` of directories by name, and return its digest."""
    listing = layout.list_partition_directories()
    kept = {} if known is None else {each.directory: each for each in known.values()}
    digests = [kept[each] for each in listing.directories if each in kept]
    found = [each for each in listing.directories if each not in kept]
    return ArchiveDigest.of([*digests, *_digests(layout, found)], listing.unrecognized)


def _digests(layout: ArchiveLayout, directories: Sequence[PartitionDirectory]) -> Iterator[DirectoryDigest]:
    """List directories in this process, and in more of them if there are many segments on a local disk."""
    is_local, count = isinstance(getattr(layout, "store", None), LocalStore), 0
    at_once = _LISTED_AT_ONCE if is_local else _DIGESTED_AT_ONCE
    for start in range(0, len(directories), at_once):
        rest = directories[start:]
        if is_local and count > _MOST_SEGMENTS_ALONE:
            totals = map_in_processes(partial(_totals_of, layout), rest)
            yield from (DirectoryDigest(directory=each, totals=found) for each, found in zip(rest, totals, strict=True))
            return
        group = rest[:at_once]
        for digest in digests_of_batches(group, list_directories(layout, group)):
            count += digest.totals.segments
            yield digest


def _totals_of(layout: ArchiveLayout, directory: PartitionDirectory) -> ListingTotals:
    return ListingTotals.of(_listing_rows(layout, directory))


def digests_of_batches(
    directories: Iterable[PartitionDirectory], batches: Iterable[pa.RecordBatch]
) -> Iterator[DirectoryDigest]:
    """Digest what was listed, a batch per directory."""
    for directory, rows in zip(directories, batches, strict=True):
        yield DirectoryDigest(directory=directory, totals=ListingTotals.of(rows))


def digests_of_frame(directories: Iterable[PartitionDirectory], listed: DataFrame) -> Iterator[DirectoryDigest]:
    """Digest what tasks listed, with one query."""
    is_segment = F.col("unrecognized_name").isNull()
    counts = listed.groupBy("directory").agg(
        F.count_if(is_segment).alias("segments"),
        F.sum(F.when(is_segment, F.expr(_LOG_OBJECT_BYTES))).alias("log_bytes"),
        F.count_if(is_segment & (F.size("missing_kinds") > 0)).alias("incomplete"),
        F.count("unrecognized_name").alias("unrecognized"),
        F.expr(f"count_if({IS_UNLISTED})").alias("unlisted"),
        # A decimal, because a sum of BIGINT would overflow.
        F.sum(F.col("row_digest").cast("decimal(38, 0)")).alias("digests"),
    )
    found = {row["directory"]: row.asDict() for row in counts.collect()}
    for directory in directories:
        row = found.get(directory.name, {})
        totals = ListingTotals(**{name: int(row.get(name) or 0) for name in ListingTotals.__slots__})
        yield DirectoryDigest(directory=directory, totals=totals)


def listing_digest(listing: DirectoryListing, row_digests: int) -> str:
    """Return the digest of an archive from its directories and the sum of `row_digest`, in any order of rows."""
    directories = sorted((each.name, each.topic, each.topic_id, each.partition) for each in listing.directories)
    beside = sorted((each.name, each.size_bytes, each.why) for each in listing.unrecognized)
    return digest_of([directories, beside, row_digests])


_DDL_TYPES = {column.name: column.type for column in SEGMENTS.columns} | {
    "unrecognized_name": "STRING",
    "unrecognized_bytes": "BIGINT",
    "unrecognized_why": "STRING",
    "row_digest": "BIGINT",
    "directory": "STRING",
}


def _listing_rows(layout: ArchiveLayout, directory: PartitionDirectory) -> pa.RecordBatch:
    try:
        listing = layout.list_segments(directory)
    except ArchiveError as wrong:
        return rows_of(directory, [unlisted_row(directory, wrong)])
    rows = [listed_row(segment) for segment in listing.segments]
    rows += [
        {"unrecognized_name": stray.name, "unrecognized_bytes": stray.size_bytes, "unrecognized_why": stray.why}
        for stray in listing.unrecognized
    ]
    return rows_of(directory, rows)
