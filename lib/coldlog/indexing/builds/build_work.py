"""Find the segments to index, and the offset from which each is counted.

One query over `segments` surveys the work (`survey_builds`), and a second one reads the pending segments, if there are
any. The serving plan gives the segments that contain a log start offset. The result has all values of a segment's row
that the build needs. Of a large table, about `MOST_AT_ONCE` segments are read at a time, so that the memory of the
driver does not grow with the archive: several whole partitions, or a range of offsets of a large one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from coldlog.errors import Reason
from coldlog.indexing.builds.build_plan import WORK_COLUMNS, WorkTable
from coldlog.indexing.builds.pending_here import find_pending_here, find_work_here
from coldlog.indexing.builds.preceding_segments import FARTHEST
from coldlog.indexing.deepened_part import DeepenedPart
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.model.states import IndexDepth, IndexStatus
from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Key, Row, key_of
from coldlog.tables.delta.warehouse import Warehouse

MOST_AT_ONCE = 500_000
"""Their rows take half a gigabyte, and their outcomes as much. Spark's driver refuses results above 1 GiB."""
_SURVEYED_COLUMNS = ("build_number", "index_status", "damaged_files", "superseded_build_numbers")
_OLDER_RULE = re.compile(
    "last offset -?[0-9]+ at byte [0-9]+"
    "|the last offset of a batch between this entry's position and the next one's; "
    "the batch at byte [0-9]+ ends with offset [0-9]+"
)
"""What `expected` was when older rules refused the offset indexes of followers, and those of older log cleaners. The
present rule must write another text (`index_checks`), or each run would read what it refuses again."""
_EARLIEST_MS, _LATEST_MS = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSurvey:
    """The work for a build, counted in `segments`."""

    last_build_number: int
    pending_count: int
    retriable_count: int
    superseded_count: int


def survey_builds(warehouse: Warehouse) -> BuildSurvey:
    """Count the work in `segments`, without a query if the table is small.

    The number is that of all partitions, also in a run that is limited to some: none may be given to two builds.
    """
    rows = warehouse.rows_if_small(SEGMENTS, _SURVEYED_COLUMNS)
    if rows is not None:
        status = [row["index_status"] for row in rows]
        return BuildSurvey(
            last_build_number=warehouse.greatest(SEGMENTS, "build_number") or 0,
            pending_count=status.count(IndexStatus.PENDING.value),
            retriable_count=sum(
                row["index_status"] == IndexStatus.QUARANTINED.value or bool(row["damaged_files"]) for row in rows
            ),
            superseded_count=sum(row["superseded_build_numbers"] is not None for row in rows),
        )
    counts = (
        replace(warehouse, partitions=None)
        .read(SEGMENTS)
        .agg(
            F.coalesce(F.max("build_number"), F.lit(0)).alias("last_build_number"),
            F.count_if(F.col("index_status") == IndexStatus.PENDING.value).alias("pending_count"),
            F.count_if(_is_retriable()).alias("retriable_count"),
            F.count("superseded_build_numbers").alias("superseded_count"),
        )
    )
    return BuildSurvey(**counts.collect()[0].asDict())


def _is_retriable() -> Column:
    """Select segments with a file that was damaged, and may have been restored."""
    return (F.col("index_status") == IndexStatus.QUARANTINED.value) | (F.size("damaged_files") > 0)


def _is_log_damaged() -> Column:
    """Select segments whose log was read and found damaged. Of those in quarantine, one that had an index before."""
    is_lost = (F.col("index_status") == IndexStatus.QUARANTINED.value) & F.col("build_number").isNotNull()
    has_holes = (F.col("index_status") == IndexStatus.INDEXED.value) & F.col("holes").isNotNull()
    return is_lost | has_holes


def iter_pending_work(
    warehouse: Warehouse,
    found: BuildSurvey,
    *,
    retry_quarantined: bool,
    decryption_key_ids: frozenset[str],
    is_mirror: bool,
) -> Iterator[WorkTable]:
    """Yield the segments to index: pending ones and some in quarantine.

    With `retry_quarantined`, all segments in quarantine are read again, and all whose index files were damaged. Without
    it, only segments in quarantine whose reason may no longer apply are read again. A segment with damaged files or an
    abort that is not listed is read again soon after a pending one, whose log may show where its transactions began. A
    segment is counted from the log start offset if, by the start offsets of the segments, that offset is inside it.
    """
    retried = frozenset[Key]()
    if found.retriable_count and not retry_quarantined:
        retried = _find_void_reasons(warehouse, decryption_key_ids)
    if not (found.pending_count or retried or (retry_quarantined and found.retriable_count)):
        return
    few = find_pending_here(warehouse, retried, retry_quarantined=retry_quarantined, is_mirror=is_mirror)
    if few is not None:
        yield few
        return
    is_wanted = F.col("index_status") == IndexStatus.PENDING.value
    segments = warehouse.read(SEGMENTS)
    if retry_quarantined:
        is_wanted = is_wanted | _is_retriable()
    if retried:
        chosen = warehouse.local_keys(SEGMENTS, retried).withColumn("is_retried", F.lit(True))
        segments = segments.join(F.broadcast(chosen), list(SEGMENTS.key), "left")
        is_wanted = is_wanted | (_is_retriable() & F.col("is_retried").isNotNull())
    segments = segments.withColumn("is_last", _is_last() if is_mirror else F.lit(False))
    in_order = Window.partitionBy("topic", "partition", "topic_id").orderBy("start_offset", "segment_id")
    next_start = F.lead("start_offset").over(in_order)
    is_pending = F.col("index_status") == IndexStatus.PENDING.value
    is_soon_after = F.coalesce(F.max(is_pending).over(in_order.rowsBetween(-FARTHEST, -1)), F.lit(False))
    segments = segments.withColumn("is_again", _is_in_doubt() & is_soon_after)
    is_wanted = is_wanted | F.col("is_again")
    holds_log_start = (F.col("start_offset") < F.col("log_start_offset")) & (
        next_start.isNull() | (next_start > F.col("log_start_offset"))
    )
    counted = segments.join(F.broadcast(warehouse.read(LOG_START_OFFSETS)), ["topic", "partition"], "left").withColumn(
        "count_from_offset", F.when(holds_log_start, F.col("log_start_offset")).otherwise(F.col("start_offset"))
    )
    yield from _iter_work(counted.where(is_wanted), found.pending_count + found.retriable_count)


def _is_in_doubt() -> Column:
    """Select segments for which a build may find something else when the segments before them are there."""
    is_unlisted = F.col("txn_index_empty").isNull() & (F.col("abort_marker_count") > 0)
    is_aborting = (F.col("index_status") == IndexStatus.INDEXED.value) & is_unlisted
    return F.col("is_listed") & F.coalesce(_is_retriable() | is_aborting, F.lit(False))


def _find_void_reasons(warehouse: Warehouse, key_ids: frozenset[str]) -> frozenset[Key]:
    """Find the keys of segments in quarantine that may be readable now.

    Either a missing key (`expected` is its id) is available now, or an older rule refused their offset indexes, which
    the text in `expected` shows.
    """

    def is_void(row: Row) -> bool:
        if row["reason"] == Reason.DECRYPTION_KEY_MISSING.value:
            return row["expected"] in key_ids
        return row["reason"] == Reason.OFFSET_INDEX_INVALID.value and _OLDER_RULE.fullmatch(row["expected"]) is not None

    rows = warehouse.small_rows(QUARANTINE, (*QUARANTINE.key, "reason", "expected"))
    return frozenset(key_of(QUARANTINE, row) for row in rows if is_void(row))


def iter_recount_work(warehouse: Warehouse, plan: ServingPlan, *, is_mirror: bool) -> Iterator[WorkTable]:
    """Yield indexed segments that serve from another offset than the one that they were counted from.

    `plan` is made again, and forgotten if there are such segments.
    """
    plan.forget()
    count = plan.totals.uncounted_segment_count
    if not count:
        return
    uncounted = plan.uncounted_segments()
    if not isinstance(uncounted, DataFrame):
        from_offsets = {key_of(SEGMENTS, row): row["must_count_from"] for row in uncounted}
        few = find_work_here(warehouse, from_offsets, is_mirror=is_mirror)
        if few is not None:
            plan.forget()
            yield few
            return
    counted_from = plan.uncounted_frame().withColumnRenamed("must_count_from", "count_from_offset")
    segments = warehouse.read(SEGMENTS).withColumn("is_last", _is_last() if is_mirror else F.lit(False))
    yield from _iter_work(segments.join(counted_from, list(SEGMENTS.key), "inner"), count)
    plan.forget()


def iter_reported_work(warehouse: Warehouse, reports: Sequence[Row], *, is_mirror: bool) -> Iterator[WorkTable]:
    """Yield the segments of reports of damage that still have the build that was reported."""
    if not reports:
        return
    key = [*SEGMENTS.key, "build_number"]
    reported = warehouse.local(DAMAGE_REPORTS, [dict(row) for row in reports]).select(*key)
    segments = warehouse.read(SEGMENTS).withColumn("is_last", _is_last() if is_mirror else F.lit(False))
    is_readable = (F.col("index_status") == IndexStatus.INDEXED.value) & F.col("is_listed")
    found = segments.where(is_readable).join(F.broadcast(reported), key, "left_semi")
    yield from _iter_work(found.withColumn("count_from_offset", _counted_from()), len(reports))


def iter_shallow_work(warehouse: Warehouse, part: DeepenedPart, *, is_mirror: bool) -> Iterator[WorkTable]:
    """Yield the segments of the part. Each is counted from the same offset as before."""
    depths = list(IndexDepth)
    lesser = [each.value for each in depths[: depths.index(part.depth)]]
    segments = warehouse.read(SEGMENTS).withColumn("is_last", _is_last() if is_mirror else F.lit(False))
    is_wanted = (F.col("index_status") == IndexStatus.INDEXED.value) & F.col("index_depth").isin(lesser)
    is_wanted = is_wanted & F.col("is_listed")
    if part.from_timestamp_ms is not None:
        is_wanted = is_wanted & (F.coalesce("max_timestamp_ms", F.lit(_LATEST_MS)) >= part.from_timestamp_ms)
    if part.to_timestamp_ms is not None:
        is_wanted = is_wanted & (F.coalesce("min_timestamp_ms", F.lit(_EARLIEST_MS)) <= part.to_timestamp_ms)
    shallow = segments.where(is_wanted)
    known = (row["topic"] for row in shallow.select("topic").distinct().collect())
    topics = [topic for topic in known if any(fnmatchcase(topic, pattern) for pattern in part.topics)]
    wanted = shallow.where(F.col("topic").isin(topics))
    yield from _iter_work(wanted.withColumn("count_from_offset", _counted_from()))


def _counted_from() -> Column:
    """The offset that a segment was counted from before."""
    return F.coalesce("counted_from_offset", "start_offset")


def _is_last() -> Column:
    """Whether no listed segment of the same directory begins after this one."""
    directory = F.regexp_replace(F.try_element_at("objects", F.lit(1))["name"], "/[^/]*$", "")
    in_directory = Window.partitionBy("topic", "partition", "topic_id", directory)
    last_start = F.max(F.when(F.col("is_listed"), F.col("start_offset"))).over(in_directory)
    return F.coalesce(F.col("start_offset") == last_start, F.lit(False))


def _iter_work(segments: DataFrame, at_most: int | None = None) -> Iterator[WorkTable]:
    """Yield the segments, some at a time, as they were at first: what is built meanwhile is not seen.

    `at_most`: how many there are at most; None: not known.
    """
    columns = (*WORK_COLUMNS, "count_from_offset", "is_last")
    wanted = segments.select(*columns, _is_log_damaged().alias("is_log_damaged"))
    if at_most is not None and at_most <= MOST_AT_ONCE:
        yield WorkTable.of(wanted.toArrow())
        return
    counts = wanted.groupBy("topic", "partition").count().orderBy("topic", "partition").toArrow().to_pylist()
    for first, last in _parts([row["count"] for row in counts]):
        low, high = ((counts[at]["topic"], counts[at]["partition"]) for at in (first, last))
        topic, place = F.col("topic"), F.struct("topic", "partition")
        # By the topic, files are skipped.
        here = wanted.where(topic.between(low[0], high[0]) & place.between(_place(low), _place(high)))
        is_large = counts[first]["count"] > MOST_AT_ONCE
        for is_part in _offset_ranges(here) if is_large else [F.lit(True)]:
            yield WorkTable.of(here.where(is_part).toArrow())


def _offset_ranges(segments: DataFrame) -> Iterator[Column]:
    """Divide the segments of one partition into ranges of offsets, of about `MOST_AT_ONCE` segments each. Segments that
    begin at the same offset stay together."""
    starts = segments.select("start_offset").orderBy("start_offset").toArrow()["start_offset"]
    firsts = starts.take(pa.array(range(0, len(starts), MOST_AT_ONCE))).to_pylist()
    bounds = [*dict.fromkeys(firsts), None]
    for low, high in pairwise(bounds):
        is_part = F.col("start_offset") >= low
        yield is_part if high is None else is_part & (F.col("start_offset") < high)


def _parts(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Divide partitions into parts of at most `MOST_AT_ONCE` segments. `counts` has the segments of each partition.

    Return the first and the last partition of each part. A larger partition is a part alone.
    """
    parts, room = list[tuple[int, int]](), 0
    for at, count in enumerate(counts):
        if not parts or count > room:
            parts.append((at, at))
            room = MOST_AT_ONCE
        parts[-1] = (parts[-1][0], at)
        room -= count
    return parts


def _place(partition: tuple[str, int]) -> Column:
    return F.struct(F.lit(partition[0]).alias("topic"), F.lit(partition[1]).alias("partition"))
