"""Update `segments` to what the archive lists and what the metadata topic announced.

The scan lists the archive (`listing`), joins what the metadata topic has announced (`announced_segments`), compares the
result with `segments`, and writes the differences: new segments, segments whose objects or state changed, segments that
are gone. The state is the announced one. The segments of a partition without known events are derived from the listing.
If such a segment is no longer listed, it counts as DELETE_SEGMENT_FINISHED (`gone`).

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

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coldlog.archive.layouts.layout import ArchiveLayout, SegmentFileKind, UnrecognizedObject
from coldlog.errors import UsageError
from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS, announced_segments
from coldlog.indexing.scan.listing import (
    IS_UNLISTED,
    LISTED_COLUMNS,
    LISTED_SCHEMA,
    SEGMENT_COLUMNS,
    ArchiveDigest,
    digests_of_batches,
    digests_of_frame,
    list_here,
    list_in_tasks,
)
from coldlog.indexing.scan.lost_announcements import lost_offsets, with_lost_announcements
from coldlog.indexing.scan.touched import Touched, in_partitions
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.runtime.arrow_frames import frame_of
from coldlog.runtime.console import Console, counted
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.warehouse import Warehouse

WRITTEN_COLUMNS = (
    *LISTED_COLUMNS, "is_listed", "state", "state_source", "index_status", "txn_index_empty", *ANNOUNCED_COLUMNS
)  # fmt: skip
_FROM_LISTING, _FROM_EVENTS = "listing", "events"
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
_INDEXES = (SegmentFileKind.OFFSET_INDEX.value, SegmentFileKind.TIME_INDEX.value)
"""The log says all that these do."""
_REPORTED_DIRECTORIES = 5
_SEGMENTS_HERE = 30
"""So many times `FEW_ROWS` stored segments are compared as rows of the driver."""


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
    `touched`, only these partitions are listed, and `warehouse` must be limited to them.
    """
    found_directories = layout.list_partition_directories()
    directories = in_partitions(found_directories.directories, touched)
    beside = found_directories.unrecognized if touched is None else ()
    here = list_here(layout, directories)
    if here is None:
        listed = list_in_tasks(warehouse, layout, directories).persist()
    else:
        listed = frame_of(warehouse.spark, pa.Table.from_batches(here, schema=LISTED_SCHEMA))
    try:
        digests = digests_of_frame(directories, listed) if here is None else digests_of_batches(directories, here)
        archive = ArchiveDigest.of([*digests, *(() if touched is None else touched.others)], beside)
        totals = archive.totals
        listed_segments = listed.where(F.col("unrecognized_name").isNull()).select(*SEGMENT_COLUMNS)
        expected = _expected(listed_segments, announced_segments(warehouse), lost_offsets(warehouse))
        stored = None if here is None else warehouse.small_table(SEGMENTS, times=_SEGMENTS_HERE)
        before = warehouse.read(SEGMENTS) if stored is None else warehouse.local(SEGMENTS, stored)
        found = _differences(expected, before, is_mirror=layout.is_mirror)
        # One query finds few differences; what follows works on these rows, without a Spark job.
        found_here = None if stored is None else found.toArrow()
        found = found.persist() if found_here is None else frame_of(warehouse.spark, found_here)
        differences = found
        if totals.unlisted:
            unlisted = listed.where(IS_UNLISTED)
            # From the cached rows: pushing this join into the expressions above takes the optimizer very long.
            differences = _without_unknown(found, unlisted)
            _report_unlisted(unlisted, totals.unlisted, report or Console().warn)
        counts: Mapping[str, int]
        if found_here is None or totals.unlisted:
            counts = {row["change"]: row["count"] for row in differences.groupBy("change").count().collect()}
        else:
            counts = Counter(found_here["change"].to_pylist())
        if not totals.segments:
            _refuse_emptied(warehouse, layout, differences)
        elif touched is None and counts.get("gone") and counts.get("new") and not accept_replaced:
            _refuse_replaced(warehouse, layout, listed_segments)
        _write_differences(warehouse, differences, counts)
        found.unpersist()
        unrecognized_count = 0
        if totals.unrecognized or beside or not warehouse.is_known_empty(UNRECOGNIZED_OBJECTS):
            unrecognized_count = _write_unrecognized(warehouse, listed, beside)
    finally:
        listed.unpersist()
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


def _expected(listed: DataFrame, announced: DataFrame, lost: dict[int, list[int]]) -> DataFrame:
    """Combine listing and events: one row per segment, in the columns that a scan writes.

    If no event announced a segment of a partition with its offsets, only the listing counts for the partition. In other
    partitions, a listed segment is an orphan if no event announced it and lost events did not either. An orphan waits,
    and is indexed if it is announced later.

    A copy that was announced as finished, with its offsets, is also read without its offset and time index: the build
    serves it if its log is whole.
    """
    key = ["topic", "partition", "topic_id", "segment_id"]
    valid = announced.where(F.col("announced_state").isNotNull())
    placed = valid.where(F.col("announced_start_offset").isNotNull())
    governed = F.broadcast(placed.select("topic_id", "partition").distinct().withColumn("is_governed", F.lit(True)))
    both = listed.withColumn("listed", F.lit(True)).join(valid, key, "full_outer")
    both = both.where(F.coalesce("start_offset", "announced_start_offset").isNotNull())
    both = with_lost_announcements(both.join(governed, ["topic_id", "partition"], "left"), lost)
    state = F.col("announced_state")
    is_whole = F.col("listed") & (F.size("missing_kinds") == 0)
    without = F.array_except("missing_kinds", F.array(*map(F.lit, _INDEXES)))
    is_readable = is_whole | (F.col("listed") & (F.size(without) == 0) & F.col("announced_start_offset").isNotNull())
    status = (
        F.when(state.isNull() & F.col("is_governed") & ~F.col("may_be_announced"), IndexStatus.ORPHAN.value)
        .when(state.isNull(), F.col("index_status"))
        .when(state.startswith("DELETE"), IndexStatus.GONE.value)
        .when(F.col("listed").isNull() & (state == _FINISHED), IndexStatus.GONE.value)
        .when(is_readable & (state == _FINISHED), IndexStatus.PENDING.value)
        .otherwise(IndexStatus.INCOMPLETE.value)
    )
    return both.select(
        *key,
        F.coalesce("start_offset", "announced_start_offset").alias("start_offset"),
        F.coalesce("listed", F.lit(False)).alias("is_listed"),
        "size_bytes",
        "objects",
        "missing_kinds",
        "log_modified_ms",
        F.coalesce(state, "state").alias("state"),
        F.when(state.isNull(), _FROM_LISTING).otherwise(_FROM_EVENTS).alias("state_source"),
        status.alias("index_status"),
        F.nullif("announced_txn_index_empty", F.lit(False)).alias("txn_index_empty"),
        *ANNOUNCED_COLUMNS,
    )


_OF_BUILDS = ("topic_id", "build_number", "damaged_files")


def _differences(expected: DataFrame, stored: DataFrame, *, is_mirror: bool) -> DataFrame:
    """Return the written columns of segments that are `new`, `changed` or `gone`.

    If only the modification time of a log changed, this counts in a mirror, where a file can be replaced by one of the
    same size, and for a segment in quarantine or with damaged files, which may have been restored. A segment that was
    gone and is back unchanged is still indexed.
    """
    before = stored.select(
        *SEGMENTS.key, *(F.col(name).alias(f"stored_{name}") for name in (*WRITTEN_COLUMNS, *_OF_BUILDS))
    )
    both = expected.withColumn("is_expected", F.lit(True)).join(before, list(SEGMENTS.key), "full_outer")
    wanted = _wanted(both, is_mirror=is_mirror)
    is_new = F.col("stored_index_status").isNull()
    compared = [name for name in WRITTEN_COLUMNS if is_mirror or name != "log_modified_ms"]
    is_same = F.lit(True)
    for name in compared:
        is_same = is_same & wanted[name].eqNullSafe(F.col(f"stored_{name}"))
    change = (
        F.when(is_new, "new")
        .when(is_same, None)
        .when(wanted["index_status"] == IndexStatus.GONE.value, "gone")
        .otherwise("changed")
    )
    columns = [wanted[name].alias(name) for name in WRITTEN_COLUMNS]
    topic_id = F.coalesce("topic_id", "stored_topic_id").alias("topic_id")
    return both.select(*SEGMENTS.key, topic_id, change.alias("change"), *columns).where(F.col("change").isNotNull())


def _wanted(both: DataFrame, *, is_mirror: bool) -> dict[str, Column]:
    """Return the new values of the written columns; a segment neither listed nor announced is gone."""
    stored = {name: F.col(f"stored_{name}") for name in WRITTEN_COLUMNS}
    is_expected, is_listed = F.col("is_expected").isNotNull(), F.coalesce("is_listed", F.lit(False))
    wanted = {name: F.when(is_expected, F.col(name)).otherwise(stored[name]) for name in WRITTEN_COLUMNS}
    for name in LISTED_COLUMNS:
        wanted[name] = F.when(is_listed, F.col(name)).otherwise(stored[name])
    # If the listing does not show the size of a log, keep the size that the build read.
    has_log = is_listed & F.col("log_modified_ms").isNotNull()
    kept_size = F.coalesce("size_bytes", stored["size_bytes"])
    wanted["size_bytes"] = F.when(has_log, kept_size).otherwise(wanted["size_bytes"])
    for name in ("objects", "missing_kinds"):
        wanted[name] = F.coalesce(wanted[name], F.from_json(F.lit("[]"), SEGMENTS.column_types[name]))
    wanted["is_listed"] = is_listed
    is_built = F.col("stored_build_number").isNotNull()
    wanted["txn_index_empty"] = F.when(is_built, stored["txn_index_empty"]).otherwise(wanted["txn_index_empty"])
    is_bad = (stored["index_status"] == IndexStatus.QUARANTINED.value) | F.col("stored_damaged_files").isNotNull()
    may_be_another = F.lit(is_mirror) | is_bad
    is_restored = may_be_another & ~F.col("log_modified_ms").eqNullSafe(stored["log_modified_ms"])
    is_usable = F.col("index_status") == IndexStatus.PENDING.value
    is_untouched = is_usable & F.col("objects").eqNullSafe(stored["objects"]) & ~F.coalesce(is_restored, F.lit(False))
    known = (IndexStatus.INDEXED.value, IndexStatus.QUARANTINED.value)
    is_back = ~stored["index_status"].isin(*known, IndexStatus.PENDING.value) & F.col("stored_build_number").isNotNull()
    wanted["index_status"] = (
        F.when(~is_expected, IndexStatus.GONE.value)
        .when(is_untouched & stored["index_status"].isin(*known), stored["index_status"])
        .when(is_untouched & is_back, IndexStatus.INDEXED.value)
        .otherwise(F.col("index_status"))
    )
    deleted = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.name
    wanted["state"] = F.when(is_expected, F.col("state")).otherwise(deleted)
    return wanted


def _without_unknown(differences: DataFrame, unlisted: DataFrame) -> DataFrame:
    """Leave out segments that may be in a directory that cannot be listed.

    If the layout does not know the topic id of a directory, these are all segments of that topic and partition.
    """
    places = unlisted.select(*(F.col(name).alias(f"unlisted_{name}") for name in ("topic", "partition", "topic_id")))
    is_there = (
        ~F.col("is_listed")
        & (F.col("topic") == F.col("unlisted_topic"))
        & (F.col("partition") == F.col("unlisted_partition"))
        & F.col("unlisted_topic_id").isin("", F.col("topic_id"))
    )
    return differences.join(F.broadcast(places), is_there, "left_anti")


def _report_unlisted(unlisted: DataFrame, count: int, report: Callable[[str], None]) -> None:
    directories = counted(count, "partition directory", "partition directories")
    report(f"{directories} could not be listed; the rows of their segments stay unchanged:")
    for row in unlisted.orderBy("unrecognized_name").limit(_REPORTED_DIRECTORIES).collect():
        report(f"  {row['unrecognized_name']}: {row['unrecognized_why']}")
    if count > _REPORTED_DIRECTORIES:
        report(f"  ... and {count - _REPORTED_DIRECTORIES:,} more; see table unrecognized_objects")


def _refuse_emptied(warehouse: Warehouse, layout: ArchiveLayout, differences: DataFrame) -> None:
    is_announced = (F.col("state_source") == _FROM_EVENTS) & F.col("state").startswith("DELETE")
    lost = differences.where((F.col("change") == "gone") & ~is_announced).count()
    if lost:
        raise UsageError(
            f"the archive {layout.uri} lists no segment, but the warehouse {warehouse.uri} has {lost}; correct "
            "archive.uri, or use another warehouse for another archive"
        )


def _refuse_replaced(warehouse: Warehouse, layout: ArchiveLayout, listed: DataFrame) -> None:
    known = warehouse.read(SEGMENTS).where(F.col("index_status") != IndexStatus.GONE.value).select("segment_id")
    if known.head(1) and not known.join(listed.select("segment_id"), "segment_id", "left_semi").head(1):
        raise UsageError(
            f"the archive {layout.uri} holds none of the segments in the warehouse {warehouse.uri}; use another "
            "warehouse for another archive, or --set scan.accept_replaced_archive=true if all segments were replaced"
        )


def _write_differences(warehouse: Warehouse, differences: DataFrame, counts: Mapping[str, int]) -> None:
    if not counts:
        return
    if set(counts) == {"new"}:
        unknown = [name for name in SEGMENTS.column_names if name not in differences.columns]
        types = SEGMENTS.column_types
        rows = differences.withColumns({name: F.lit(None).cast(types[name]) for name in unknown})
        warehouse.append(SEGMENTS, rows, count=counts["new"])
        return
    new = differences.where(F.col("change") == "new")
    if counts.get("new"):
        _write_differences(warehouse, new, {"new": counts["new"]})
    others = differences.where(F.col("change") != "new")
    warehouse.merge(SEGMENTS, others, update=WRITTEN_COLUMNS, count=sum(counts.values()) - counts.get("new", 0))


def _write_unrecognized(warehouse: Warehouse, listed: DataFrame, beside: tuple[UnrecognizedObject, ...]) -> int:
    in_directories = listed.where(F.col("unrecognized_name").isNotNull()).select(
        F.col("unrecognized_name").alias("name"),
        F.col("unrecognized_bytes").alias("size_bytes"),
        F.col("unrecognized_why").alias("why"),
    )
    at_the_root = warehouse.local(
        UNRECOGNIZED_OBJECTS, [{"name": s.name, "size_bytes": s.size_bytes, "why": s.why} for s in beside]
    )
    found = in_directories.unionByName(at_the_root).dropDuplicates(["name"]).persist()
    stored = warehouse.read(UNRECOGNIZED_OBJECTS)
    columns = list(UNRECOGNIZED_OBJECTS.column_names)
    count = found.count()
    new = found.join(stored, columns, "left_anti")
    no_more = stored.join(found, ["name"], "left_anti")
    if new.head(1):
        warehouse.merge(UNRECOGNIZED_OBJECTS, new)
    if no_more.head(1):
        warehouse.delete_keys(UNRECOGNIZED_OBJECTS, no_more)
    found.unpersist()
    return count
