"""Update `segments` to what the archive lists and what the metadata topic announced.

The scan lists the archive (`listing`), folds what the metadata topic has announced (`announced_segments`), compares
both with `segments` (`comparison`), and writes the differences: new segments, segments whose objects or state changed,
segments that are gone. The state is the announced one. The segments of a partition without known events are derived
from the listing. If such a segment is no longer listed, it counts as DELETE_SEGMENT_FINISHED (`gone`).

A segment that was announced as copied and whose first event is missing (`announced_segments`) is indexed like any
other. Its offsets are read from its listing and its bytes. The same is true for a segment whose announcement the topic
may have lost (`lost_announcements`). A segment that is neither listed nor announced with its offsets has no row.

A partition directory that cannot be listed is reported and becomes a row of `unrecognized_objects`. All others are
scanned. Rows of its partition that are not listed elsewhere stay unchanged.

Events are read before the archive is listed. So a segment that is uploaded meanwhile is an orphan for one run and never
counts as missing.

Refused, because a wrong path must not empty a warehouse: an archive that lists no segment while the tables have some
whose deletion was not announced, and an archive that lists none of the segments in the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from coldlog.archive.layouts.layout import ArchiveLayout, PartitionDirectory
from coldlog.errors import UsageError
from coldlog.indexing.scan.comparison import ComparedHere, ComparedInTasks
from coldlog.indexing.scan.listed_rows import LISTED_SCHEMA
from coldlog.indexing.scan.listing import (
    ArchiveDigest,
    DirectoryDigest,
    ListingTotals,
    digests_of_batches,
    digests_of_frame,
    list_here,
    list_in_tasks,
)
from coldlog.indexing.scan.named_segments import NamedListing, list_named
from coldlog.indexing.scan.touched import Touched, in_partitions
from coldlog.runtime.console import Console, counted
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.warehouse import Warehouse

_REPORTED_DIRECTORIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSummary:
    """What one scan found and what had changed.

    `unlisted_count` counts directories, of `partition_count`, that could not be listed; `unrecognized_count` includes
    them.
    """

    partition_count: int
    segment_count: int
    log_bytes: int
    new_count: int
    changed_count: int
    gone_count: int
    incomplete_count: int
    unrecognized_count: int
    unlisted_count: int
    archive: ArchiveDigest

    def facts(self) -> dict[str, object]:
        """The numbers, and the digest of the archive."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "archive"}
        return numbers | {"listing_digest": self.archive.digest}


def scan_segments(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    *,
    accept_replaced: bool = False,
    report: Callable[[str], None] | None = None,
    touched: Touched | None = None,
) -> ScanSummary:
    """Update `segments` and `unrecognized_objects` to what the archive lists.

    `report` receives lines about directories that cannot be listed; without it they are printed to stderr. With
    `touched`, only these partitions are listed, some of them by name, and `warehouse` must be limited to them.
    """
    found_directories = layout.list_partition_directories()
    directories = in_partitions(found_directories.directories, touched)
    beside = found_directories.unrecognized if touched is None else ()
    listed = _list(warehouse, layout, directories, touched)
    try:
        archive = ArchiveDigest.of([*listed.digests, *(() if touched is None else touched.others)], beside)
        totals = archive.totals
        compared = _compare(warehouse, listed, totals, is_mirror=layout.is_mirror)
        if compared is None:
            return scan_segments(warehouse, layout, report=report, touched=_whole(touched))
        try:
            if totals.unlisted:
                _report_unlisted(compared, totals.unlisted, report or Console().warn)
            counts = compared.counts()
            if not totals.segments:
                _refuse_emptied(warehouse, layout, compared)
            elif touched is None and counts.get("gone") and counts.get("new") and not accept_replaced:
                _refuse_replaced(warehouse, layout, compared)
            compared.write()
        finally:
            compared.forget()
        unrecognized_count = 0
        if totals.unrecognized or beside or not warehouse.is_known_empty(UNRECOGNIZED_OBJECTS):
            unrecognized_count = compared.write_unrecognized(beside)
    finally:
        listed.forget()
    return ScanSummary(
        partition_count=len(archive.directories),
        segment_count=totals.segments,
        log_bytes=totals.log_bytes,
        new_count=counts.get("new", 0),
        changed_count=counts.get("changed", 0),
        gone_count=counts.get("gone", 0),
        incomplete_count=totals.incomplete,
        unrecognized_count=unrecognized_count,
        unlisted_count=totals.unlisted,
        archive=archive,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """What was listed: rows in this process, some of them by name (`named`), or rows that tasks hold."""

    digests: tuple[DirectoryDigest, ...]
    here: list[pa.RecordBatch] | None = None
    named: NamedListing | None = None
    in_tasks: DataFrame | None = None

    def forget(self) -> None:
        """Drop the rows of tasks."""
        if self.in_tasks is not None:
            self.in_tasks.unpersist()


def _list(
    warehouse: Warehouse, layout: ArchiveLayout, directories: Sequence[PartitionDirectory], touched: Touched | None
) -> _Listed:
    named = list_named(warehouse, layout, directories, touched)
    whole = directories if named is None else named.whole(directories)
    here = list_here(layout, whole)
    if here is None:
        rows = list_in_tasks(warehouse, layout, directories).persist()
        return _Listed(digests=tuple(digests_of_frame(directories, rows)), in_tasks=rows)
    digests = tuple(digests_of_batches(whole, here))
    if named is None:
        return _Listed(digests=digests, here=here)
    return _Listed(digests=(*digests, *named.digests), here=[*here, *named.batches], named=named)


def _whole(touched: Touched | None) -> Touched | None:
    return None if touched is None else replace(touched, named={})


def _compare(
    warehouse: Warehouse, listed: _Listed, totals: ListingTotals, *, is_mirror: bool
) -> ComparedHere | ComparedInTasks | None:
    """Compare what was listed with events and stored rows, in this process or in tasks. None if only tasks can, and not
    all of each partition was listed."""
    rows = listed.in_tasks
    if listed.here is not None:
        compared = ComparedHere.of(warehouse, listed.here, is_mirror=is_mirror, named=listed.named)
        if compared is not None or listed.named is not None:
            return compared
        rows = frame_of(warehouse.spark, pa.Table.from_batches(listed.here, schema=LISTED_SCHEMA))
    assert rows is not None
    return ComparedInTasks(
        warehouse, rows, is_mirror=is_mirror, has_unlisted=totals.unlisted > 0, segment_count=totals.segments
    )


def _report_unlisted(compared: ComparedHere | ComparedInTasks, count: int, report: Callable[[str], None]) -> None:
    directories = counted(count, "partition directory", "partition directories")
    report(f"{directories} could not be listed; the rows of their segments stay unchanged:")
    for name, why in compared.unlisted(_REPORTED_DIRECTORIES):
        report(f"  {name}: {why}")
    if count > _REPORTED_DIRECTORIES:
        report(f"  ... and {count - _REPORTED_DIRECTORIES:,} more; see table unrecognized_objects")


def _refuse_emptied(warehouse: Warehouse, layout: ArchiveLayout, compared: ComparedHere | ComparedInTasks) -> None:
    lost = compared.lost_count()
    if lost:
        raise UsageError(
            f"the archive {layout.uri} lists no segment, but the warehouse {warehouse.uri} has {lost}; correct "
            "archive.uri, or use another warehouse for another archive"
        )


def _refuse_replaced(warehouse: Warehouse, layout: ArchiveLayout, compared: ComparedHere | ComparedInTasks) -> None:
    if compared.is_another_archive():
        raise UsageError(
            f"the archive {layout.uri} holds none of the segments in the warehouse {warehouse.uri}; use another "
            "warehouse for another archive, or --set scan.accept_replaced_archive=true if all segments were replaced"
        )
