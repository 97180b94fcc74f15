"""scan: which segments does the archive hold now?

Lists the partition directories on the driver and the segments of each in tasks, compares with `segments` and writes
what differs: new segments, segments whose objects changed, segments that have gone. No object is opened. Without the
metadata topic a copy with all its required files counts as COPY_SEGMENT_FINISHED, one that lacks any as
COPY_SEGMENT_STARTED (`incomplete`), and one that has gone as DELETE_SEGMENT_FINISHED (`gone`).

Refused: an archive that lists no segment while the tables know some; a wrong path must not empty a warehouse.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.archive.layout import ArchiveLayout, ListedSegment, PartitionDirectory, SegmentFileKind, UnrecognizedObject
from coldlog.errors import UsageError
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.segments import SEGMENTS
from coldlog.tables.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.warehouse import Warehouse

LISTED_COLUMNS = ("size_bytes", "objects", "missing_kinds", "log_modified_ms", "state", "state_source", "index_status")
_FROM_LISTING = "listing"
_DIRECTORIES_A_TASK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSummary:
    """What one listing found and what of it was new."""

    partition_count: int
    segment_count: int
    log_bytes: int
    new_count: int
    changed_count: int
    gone_count: int
    incomplete_count: int
    unrecognized_count: int


def scan_segments(warehouse: Warehouse, layout: ArchiveLayout) -> ScanSummary:
    """Brings `segments` and `unrecognized_objects` to what the archive lists."""
    directories = layout.list_partition_directories()
    listed = _list_in_tasks(warehouse, layout, directories.directories).persist()
    try:
        listed_segments = listed.where(F.col("unrecognized_name").isNull()).select(*_LISTED_SCHEMA.names[:-3])
        differences = _differences(listed_segments, warehouse.read(SEGMENTS)).persist()
        counts = {row["change"]: row["count"] for row in differences.groupBy("change").count().collect()}
        totals = listed_segments.agg(
            F.count("*").alias("segments"),
            F.sum("size_bytes").alias("bytes"),
            F.count_if(F.size("missing_kinds") > 0).alias("incomplete"),
        ).collect()[0]
        _refuse_emptied(warehouse, layout, totals["segments"])
        _write_differences(warehouse, differences, counts)
        differences.unpersist()
        unrecognized_count = _write_unrecognized(warehouse, listed, directories.unrecognized)
    finally:
        listed.unpersist()
    return ScanSummary(
        partition_count=len(directories.directories),
        segment_count=totals["segments"],
        log_bytes=totals["bytes"] or 0,
        new_count=counts.get("new", 0),
        changed_count=counts.get("changed", 0),
        gone_count=counts.get("gone", 0),
        incomplete_count=totals["incomplete"],
        unrecognized_count=unrecognized_count,
    )


def read_log_start_offsets(warehouse: Warehouse, path: str) -> int:
    """Takes over log start offsets from a CSV file `topic,partition,log_start_offset`; returns how many changed."""
    rows = [_log_start_offset(path, number, row) for number, row in _csv_rows(path)]
    repeated = len(rows) - len({(row["topic"], row["partition"]) for row in rows})
    if repeated:
        raise UsageError(f"{path}: {repeated} topic-partitions are named more than once; name each once")
    given = warehouse.local(LOG_START_OFFSETS, rows)
    stored = warehouse.read(LOG_START_OFFSETS)
    changed = given.join(stored, list(LOG_START_OFFSETS.column_names), "left_anti")
    changed_count = changed.count()
    if changed_count:
        warehouse.merge(LOG_START_OFFSETS, changed)
    return changed_count


def _csv_rows(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in LOG_START_OFFSETS.column_names if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path}: the first line must name topic,partition,log_start_offset; {missing} lack")
            for row in reader:
                yield reader.line_num, row
    except OSError as unreadable:
        raise UsageError(f"log_start_offsets.uri cannot be read: {path}: {unreadable.strerror}") from unreadable
    except UnicodeDecodeError as unreadable:
        raise UsageError(f"{path}: not UTF-8 text: {unreadable.reason} at byte {unreadable.start}") from unreadable


def _log_start_offset(path: str, number: int, row: dict[str, str]) -> dict[str, object]:
    try:
        partition, offset = int(row["partition"]), int(row["log_start_offset"])
    except (TypeError, ValueError) as unreadable:
        raise UsageError(
            f"{path}, line {number}: partition and log_start_offset must be integers: {row}"
        ) from unreadable
    if not row["topic"] or not 0 <= partition < 2**31 or not 0 <= offset < 2**63:
        raise UsageError(f"{path}, line {number}: a topic, a partition and an offset of 0 or more are expected: {row}")
    return {"topic": row["topic"], "partition": partition, "log_start_offset": offset}


_LISTED_SCHEMA = pa.schema(
    [
        *(
            SEGMENTS.arrow_schema.field(name).with_nullable(True)
            for name in ("topic", "partition", "topic_id", "start_offset", "segment_id", *LISTED_COLUMNS)
        ),
        ("unrecognized_name", pa.string()),
        ("unrecognized_bytes", pa.int64()),
        ("unrecognized_why", pa.string()),
    ]
)


def _list_in_tasks(
    warehouse: Warehouse, layout: ArchiveLayout, directories: tuple[PartitionDirectory, ...]
) -> DataFrame:
    """Every segment and every stray object below `directories`, in the columns of `_LISTED_SCHEMA`."""
    spark = warehouse.spark
    groups = [directories[i : i + _DIRECTORIES_A_TASK] for i in range(0, len(directories), _DIRECTORIES_A_TASK)]

    def list_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                for directory in groups[group]:
                    yield _listing_rows(layout, directory)

    task_count = max(1, len(groups))
    tasks = spark.range(0, len(groups), 1, task_count)
    ddl = ", ".join(f"{name} {_DDL_TYPES[name]}" for name in _LISTED_SCHEMA.names)
    return tasks.mapInArrow(list_groups, schema=ddl)


_DDL_TYPES = {column.name: column.type for column in SEGMENTS.columns} | {
    "unrecognized_name": "STRING",
    "unrecognized_bytes": "BIGINT",
    "unrecognized_why": "STRING",
}


def _listing_rows(layout: ArchiveLayout, directory: PartitionDirectory) -> pa.RecordBatch:
    listing = layout.list_segments(directory)
    rows = [_segment_row(segment) for segment in listing.segments]
    rows += [
        {"unrecognized_name": stray.name, "unrecognized_bytes": stray.size_bytes, "unrecognized_why": stray.why}
        for stray in listing.unrecognized
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_LISTED_SCHEMA)


def _segment_row(segment: ListedSegment) -> dict[str, object]:
    log = segment.find_object(SegmentFileKind.LOG)
    is_whole = not segment.missing_kinds
    state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED if is_whole else RemoteLogSegmentState.COPY_SEGMENT_STARTED
    return {
        "topic": segment.topic,
        "partition": segment.partition,
        "topic_id": segment.topic_id,
        "start_offset": segment.start_offset,
        "segment_id": segment.segment_id,
        "size_bytes": log.size_bytes if log else None,
        "objects": [
            {"kind": listed.kind.value, "name": listed.name, "size_bytes": listed.size_bytes}
            for listed in segment.objects
        ],
        "missing_kinds": [kind.value for kind in segment.missing_kinds],
        "log_modified_ms": log.modified_ms if log else None,
        "state": state.name,
        "state_source": _FROM_LISTING,
        "index_status": (IndexStatus.PENDING if is_whole else IndexStatus.INCOMPLETE).value,
    }


def _differences(listed: DataFrame, stored: DataFrame) -> DataFrame:
    """Listed columns of segments that are `new`, `changed` or `gone`, with the status each is to have.

    A changed time alone matters only to a segment in quarantine: it may have been restored. One that was gone and is
    back unchanged is indexed still.
    """
    before = stored.select(
        *SEGMENTS.key, *(F.col(name).alias(f"stored_{name}") for name in (*LISTED_COLUMNS, "topic_id", "build_number"))
    )
    both = listed.withColumn("is_listed", F.lit(True)).join(before, list(SEGMENTS.key), "full_outer")
    status = F.col("stored_index_status")
    is_same = F.col("objects").eqNullSafe(F.col("stored_objects"))
    is_restored = (status == IndexStatus.QUARANTINED.value) & ~F.col("log_modified_ms").eqNullSafe(
        F.col("stored_log_modified_ms")
    )
    change = (
        F.when(status.isNull(), "new")
        .when(F.col("is_listed").isNull() & (status != IndexStatus.GONE.value), "gone")
        .when(F.col("is_listed") & (~is_same | is_restored | (status == IndexStatus.GONE.value)), "changed")
    )
    is_back = (status == IndexStatus.GONE.value) & is_same & F.col("stored_build_number").isNotNull()
    wanted = {name: F.coalesce(F.col(name), F.col(f"stored_{name}")) for name in (*LISTED_COLUMNS, "topic_id")}
    is_gone = F.col("change") == "gone"
    wanted["state"] = F.when(is_gone, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.name).otherwise(wanted["state"])
    wanted["index_status"] = (
        F.when(is_gone, IndexStatus.GONE.value)
        .when(is_back, IndexStatus.INDEXED.value)
        .otherwise(wanted["index_status"])
    )
    columns = [wanted[name].alias(name) for name in ("topic_id", *LISTED_COLUMNS)]
    return (
        both.withColumn("change", change).where(F.col("change").isNotNull()).select(*SEGMENTS.key, "change", *columns)
    )


def _refuse_emptied(warehouse: Warehouse, layout: ArchiveLayout, listed_count: int) -> None:
    if listed_count:
        return
    known = warehouse.read(SEGMENTS).where(F.col("index_status") != IndexStatus.GONE.value).count()
    if known:
        raise UsageError(
            f"the archive {layout.uri} lists no segment, but the warehouse {warehouse.uri} knows {known}; correct "
            "archive.uri, or use another warehouse for another archive"
        )


def _write_differences(warehouse: Warehouse, differences: DataFrame, counts: dict[str, int]) -> None:
    if not counts:
        return
    if set(counts) == {"new"}:
        unknown = [name for name in SEGMENTS.column_names if name not in differences.columns]
        types = SEGMENTS.column_types
        warehouse.append(SEGMENTS, differences.withColumns({name: F.lit(None).cast(types[name]) for name in unknown}))
        return
    new = differences.where(F.col("change") == "new")
    if counts.get("new"):
        _write_differences(warehouse, new, {"new": counts["new"]})
    warehouse.merge(SEGMENTS, differences.where(F.col("change") != "new"), update=LISTED_COLUMNS)


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
