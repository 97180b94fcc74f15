"""Compare what an archive lists and what events announced with the stored rows, in Spark.

`differences_here` has the same rules for few segments, without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coldlog.archive.layouts.layout import SegmentFileKind, UnrecognizedObject
from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS, announced_segments
from coldlog.indexing.scan.listing import IS_UNLISTED, LISTED_COLUMNS, SEGMENT_COLUMNS
from coldlog.indexing.scan.lost_announcements import lost_offsets, with_lost_announcements
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse

WRITTEN_COLUMNS = (
    *LISTED_COLUMNS, "is_listed", "state", "state_source", "index_status", "txn_index_empty", *ANNOUNCED_COLUMNS
)  # fmt: skip
COMPARED_COLUMNS = tuple(name for name in WRITTEN_COLUMNS if name != "log_modified_ms")
"""What makes a segment `changed`, unless the layout is a mirror."""
UPDATED_COLUMNS = (*WRITTEN_COLUMNS, "index_depth")
"""What is written of a segment that has changed. Its index depth is NULL if its index was built from other objects; the
next build sets it."""
STORED_COLUMNS = (*SEGMENTS.key, *UPDATED_COLUMNS, "topic_id", "build_number", "damaged_files")
"""What a comparison needs of `segments`."""
FROM_LISTING, FROM_EVENTS = "listing", "events"
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
ANNOUNCED_TO_BUILDS = (
    "announced_size_bytes", "announced_end_offset", "announced_max_timestamp_ms", "announced_leader_epochs"
)  # fmt: skip
"""What a build compares with the log."""
INDEX_KINDS = (SegmentFileKind.OFFSET_INDEX.value, SegmentFileKind.TIME_INDEX.value)
"""The log says all that these do."""


class ComparedInTasks:
    """The comparison of many segments, which executors hold until `forget`. `listed` has `LISTED_SCHEMA`."""

    def __init__(self, warehouse: Warehouse, listed: DataFrame, *, is_mirror: bool, has_unlisted: bool) -> None:
        self._warehouse = warehouse
        self._listed = listed
        self._segments = listed.where(F.col("unrecognized_name").isNull()).select(*SEGMENT_COLUMNS)
        expected = expected_segments(self._segments, announced_segments(warehouse), lost_offsets(warehouse))
        self._found = differences(expected, warehouse.read(SEGMENTS), is_mirror=is_mirror).persist()
        self._differences = self._found
        self._counts: dict[str, int] | None = None
        if has_unlisted:
            # From the cached rows: pushing this join into the expressions above takes the optimizer very long.
            self._differences = without_unknown(self._found, listed.where(IS_UNLISTED))

    def forget(self) -> None:
        """Drop the rows."""
        self._found.unpersist()

    def counts(self) -> dict[str, int]:
        """How many segments are `new`, `changed` and `gone`."""
        if self._counts is None:
            counted = self._differences.groupBy("change").count().collect()
            self._counts = {row["change"]: row["count"] for row in counted}
        return self._counts

    def unlisted(self, most: int) -> list[tuple[str, str]]:
        """Names of directories that cannot be listed, in order, and why."""
        rows = self._listed.where(IS_UNLISTED).orderBy("unrecognized_name").limit(most).collect()
        return [(row["unrecognized_name"], row["unrecognized_why"]) for row in rows]

    def lost_count(self) -> int:
        """How many segments are gone whose deletion was not announced."""
        is_announced = (F.col("state_source") == FROM_EVENTS) & F.col("state").startswith("DELETE")
        return self._differences.where((F.col("change") == "gone") & ~is_announced).count()

    def is_another_archive(self) -> bool:
        """Whether the tables have segments, and none of them is listed."""
        is_there = F.col("index_status") != IndexStatus.GONE.value
        known = self._warehouse.read(SEGMENTS).where(is_there).select("segment_id")
        listed = self._segments.select("segment_id")
        return bool(known.head(1)) and not known.join(listed, "segment_id", "left_semi").head(1)

    def write(self) -> None:
        """Write the differences to `segments`."""
        counts = self.counts()
        new, other_count = counts.get("new", 0), sum(counts.values()) - counts.get("new", 0)
        if new:
            unknown = [name for name in SEGMENTS.column_names if name not in self._differences.columns]
            nulls = {name: F.lit(None).cast(SEGMENTS.column_types[name]) for name in unknown}
            rows = self._differences.where(F.col("change") == "new").withColumns(nulls)
            self._warehouse.append(SEGMENTS, rows, count=new)
        if other_count:
            others = self._differences.where(F.col("change") != "new")
            self._warehouse.merge(SEGMENTS, others, update=UPDATED_COLUMNS, count=other_count)

    def write_unrecognized(self, beside: Sequence[UnrecognizedObject]) -> int:
        """Update `unrecognized_objects` to what is listed and to what is `beside` the directories; count the rows."""
        in_directories = self._listed.where(F.col("unrecognized_name").isNotNull()).select(
            F.col("unrecognized_name").alias("name"),
            F.col("unrecognized_bytes").alias("size_bytes"),
            F.col("unrecognized_why").alias("why"),
        )
        at_the_root = self._warehouse.local(UNRECOGNIZED_OBJECTS, list(map(unrecognized_row, beside)))
        return write_unrecognized(self._warehouse, in_directories.unionByName(at_the_root))


def unrecognized_row(stray: UnrecognizedObject) -> Row:
    """The row of an object that the layout does not know."""
    return {"name": stray.name, "size_bytes": stray.size_bytes, "why": stray.why}


def write_unrecognized(warehouse: Warehouse, rows: DataFrame) -> int:
    """Update `unrecognized_objects` to the rows; return their number."""
    found = rows.dropDuplicates(["name"]).persist()
    stored = warehouse.read(UNRECOGNIZED_OBJECTS)
    count = found.count()
    new = found.join(stored, list(UNRECOGNIZED_OBJECTS.column_names), "left_anti")
    no_more = stored.join(found, ["name"], "left_anti")
    if new.head(1):
        warehouse.merge(UNRECOGNIZED_OBJECTS, new)
    if no_more.head(1):
        warehouse.delete_keys(UNRECOGNIZED_OBJECTS, no_more)
    found.unpersist()
    return count


def expected_segments(listed: DataFrame, announced: DataFrame, lost: dict[int, list[int]]) -> DataFrame:
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
    without = F.array_except("missing_kinds", F.array(*map(F.lit, INDEX_KINDS)))
    is_readable = is_whole | (F.col("listed") & (F.size(without) == 0) & F.col("announced_start_offset").isNotNull())
    status = (
        F.when(state.isNull() & F.col("is_governed") & ~F.col("may_be_announced"), IndexStatus.ORPHAN.value)
        .when(state.isNull(), F.col("index_status"))
        .when(state.startswith("DELETE"), IndexStatus.GONE.value)
        .when(F.col("listed").isNull() & (state == FINISHED), IndexStatus.GONE.value)
        .when(is_readable & (state == FINISHED), IndexStatus.PENDING.value)
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
        F.when(state.isNull(), FROM_LISTING).otherwise(FROM_EVENTS).alias("state_source"),
        status.alias("index_status"),
        F.nullif("announced_txn_index_empty", F.lit(False)).alias("txn_index_empty"),
        *ANNOUNCED_COLUMNS,
    )


_OF_BUILDS = ("topic_id", "build_number", "index_depth", "damaged_files")


def differences(expected: DataFrame, stored: DataFrame, *, is_mirror: bool) -> DataFrame:
    """Return the updated columns of segments that are `new`, `changed` or `gone`.

    If only the modification time of a log changed, this counts in a mirror, where a file can be replaced by one of the
    same size, and for a segment in quarantine or with damaged files, which may have been restored. A segment that was
    gone and is back unchanged is still indexed, if its index is of these objects.

    A segment that was read before its events is read again if they announce a log of another size, and if it is in
    quarantine or has damaged files: they may tell that its log is whole, or where it ended.
    """
    before = stored.select(
        *SEGMENTS.key, *(F.col(name).alias(f"stored_{name}") for name in (*WRITTEN_COLUMNS, *_OF_BUILDS))
    )
    both = expected.withColumn("is_expected", F.lit(True)).join(before, list(SEGMENTS.key), "full_outer")
    wanted = _wanted(both, is_mirror=is_mirror)
    is_new = F.col("stored_index_status").isNull()
    is_same = F.lit(True)
    for name in WRITTEN_COLUMNS if is_mirror else COMPARED_COLUMNS:
        is_same = is_same & wanted[name].eqNullSafe(F.col(f"stored_{name}"))
    change = (
        F.when(is_new, "new")
        .when(is_same, None)
        .when(wanted["index_status"] == IndexStatus.GONE.value, "gone")
        .otherwise("changed")
    )
    columns = [wanted[name].alias(name) for name in UPDATED_COLUMNS]
    topic_id = F.coalesce("topic_id", "stored_topic_id").alias("topic_id")
    return both.select(*SEGMENTS.key, topic_id, change.alias("change"), *columns).where(F.col("change").isNotNull())


def _wanted(both: DataFrame, *, is_mirror: bool) -> dict[str, Column]:
    """Return the new values of the updated columns; a segment neither listed nor announced is gone."""
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
    is_restored = may_be_another & ~wanted["log_modified_ms"].eqNullSafe(stored["log_modified_ms"])
    is_same = wanted["objects"].eqNullSafe(stored["objects"]) & ~F.coalesce(is_restored, F.lit(False))
    is_same = is_same & ~F.coalesce(_is_told_otherwise(wanted, stored, is_bad), F.lit(False))
    is_untouched = (F.col("index_status") == IndexStatus.PENDING.value) & is_same
    known = (IndexStatus.INDEXED.value, IndexStatus.QUARANTINED.value)
    is_back = ~stored["index_status"].isin(*known, IndexStatus.PENDING.value) & F.col("stored_index_depth").isNotNull()
    wanted["index_status"] = (
        F.when(~is_expected, IndexStatus.GONE.value)
        .when(is_untouched & stored["index_status"].isin(*known), stored["index_status"])
        .when(is_untouched & is_back, IndexStatus.INDEXED.value)
        .otherwise(F.col("index_status"))
    )
    is_to_read = wanted["index_status"] == IndexStatus.PENDING.value
    was_to_read = stored["index_status"].isin(IndexStatus.PENDING.value, IndexStatus.QUARANTINED.value)
    wanted["index_depth"] = F.when(is_same & ~is_to_read & ~was_to_read, F.col("stored_index_depth"))
    deleted = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.name
    wanted["state"] = F.when(is_expected, F.col("state")).otherwise(deleted)
    return wanted


def _is_told_otherwise(wanted: dict[str, Column], stored: dict[str, Column], is_bad: Column) -> Column:
    """Whether new events tell more about the segment than the build knew that has read it."""
    is_told = F.lit(False)
    for name in ANNOUNCED_TO_BUILDS:
        is_told = is_told | ~wanted[name].eqNullSafe(stored[name])
    return is_told & (is_bad | (wanted["announced_size_bytes"] != wanted["size_bytes"]))


def without_unknown(found: DataFrame, unlisted: DataFrame) -> DataFrame:
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
    return found.join(F.broadcast(places), is_there, "left_anti")
