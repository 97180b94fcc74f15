"""Decode the records that a source has read, and ask them what a read must know: few in this process, many in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coldlog.indexing.events.event_rows import (
    LOST,
    SEGMENT,
    SEGMENT_UPDATE,
    TOMBSTONE,
    UNREADABLE,
    event_row,
    lost_row,
)
from coldlog.indexing.events.event_sources import NO_ANSWER, NO_LONGER_THERE, RAW_SCHEMA, REFUSED
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.row_edits import Row

DAMAGE_COLUMNS = RAW_SCHEMA.names[5:]
_NAMING_COLUMNS = ("event_kind", "topic", "topic_id", "partition", "segment_id", "state", "start_offset")
_MOST_NAMING = 10_000
"""More new events name most of an archive: then it is listed whole."""
_DECODED_SCHEMA = pa.schema(
    [
        *(field.with_nullable(True) for field in SEGMENT_EVENTS.arrow_schema),
        *(RAW_SCHEMA.field(name) for name in DAMAGE_COLUMNS),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The last record of a metadata partition that was read: its offset and value, and whether it was no event."""

    offset: int
    value: bytes | None
    has_problem: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSegment:
    """What new events say of a segment: where it begins, if one of them says that, and whether it is deleted."""

    topic_id: str
    segment_id: str
    start_offset: int | None
    is_deleted: bool


def next_offset(cursors: dict[int, Cursor], partition: int) -> int:
    return cursors[partition].offset + 1 if partition in cursors else 0


@dataclass(frozen=True, slots=True)
class ReadHere:
    """Few records that were read, decoded, as rows. The rows behind the cursors are the `new` ones."""

    rows: list[Row]
    new: list[Row]
    cursors: dict[int, Cursor]

    @classmethod
    def of(cls, raw: pa.Table, cursors: dict[int, Cursor]) -> ReadHere:
        names = _DECODED_SCHEMA.names
        rows = [{name: row.get(name) for name in names} for row in map(_decoded_row, raw.to_pylist())]
        new = [row for row in rows if row["reason"] is None and _is_new(row, cursors)]
        return cls(rows, new, cursors)

    def forget(self) -> None:
        """Nothing is held elsewhere."""

    def unanswered(self) -> Row | None:
        """A row of a part that did not answer."""
        return next((row for row in self.rows if row["reason"] in (NO_ANSWER, REFUSED)), None)

    def damaged(self) -> list[Row]:
        """The rows that stand for damage."""
        return [row for row in self.rows if row["reason"] is not None]

    def partitions(self) -> set[int]:
        """The metadata partitions of all rows."""
        return {row["metadata_partition"] for row in self.rows}

    def read_before(self) -> list[Row]:
        """The records, at most one of each partition, that an earlier run has read."""
        return [row for row in self.rows if not _is_new(row, self.cursors) and row["event_kind"] != LOST]

    def new_rows(self) -> list[Row]:
        """The rows to store."""
        return self.new

    def places(self, most: int) -> list[tuple[str | None, int | None]]:
        """Some topics and partitions that new events name."""
        return list({(row["topic"], row["partition"]): None for row in self.new})[:most]

    def segments(self) -> dict[tuple[str, int], frozenset[NamedSegment]]:
        """The segments that new events name, by topic and partition; no partition of which they say anything else."""
        return _segments_of(self.new)

    def lasts(self) -> list[Row]:
        """As `ReadInTasks.lasts`."""
        of_partitions: dict[int | None, list[Row]] = {}
        for row in self.new:
            of_partitions.setdefault(row["metadata_partition"], []).append(row)
        return [self._last(partition, rows) for partition, rows in of_partitions.items()]

    @staticmethod
    def _last(partition: int | None, rows: list[Row]) -> Row:
        offsets = [row["metadata_offset"] for row in rows if row["metadata_offset"] is not None]
        lost = [row["metadata_offset"] for row in rows if row["event_kind"] == LOST]
        return {
            "metadata_partition": partition,
            "last_offset": max(offsets, default=None),
            "events": len(rows) - len(lost),
            "unreadable": sum(row["event_kind"] == UNREADABLE for row in rows),
            "rows": len(rows),
            "offsets": len(set(offsets)),
            "lost_offset": max(lost, default=None),
            "is_keyed": any(row["record_key"] is not None for row in rows),
        }


@dataclass(frozen=True, slots=True)
class ReadInTasks:
    """Many records, which executors decode and hold until `forget`."""

    rows: DataFrame
    new: DataFrame
    cursors: dict[int, Cursor]

    @classmethod
    def of(cls, raw: DataFrame, cursors: dict[int, Cursor]) -> ReadInTasks:
        rows = _decoded(raw)
        new = rows.where(F.col("reason").isNull())
        # Rows without an offset are kept too, so that they are refused later.
        is_new = (F.col("metadata_offset") > _last_read(cursors)) | F.col("metadata_offset").isNull()
        return cls(rows, new.where(is_new), cursors)

    def forget(self) -> None:
        """Drop the rows."""
        self.rows.unpersist()

    def unanswered(self) -> Row | None:
        """A row of a part that did not answer."""
        failed = self.rows.where(F.col("reason").isin(NO_ANSWER, REFUSED)).head(1)
        return failed[0].asDict() if failed else None

    def damaged(self) -> list[Row]:
        """The rows that stand for damage."""
        return [row.asDict() for row in self.rows.where(F.col("reason").isNotNull()).collect()]

    def partitions(self) -> set[int]:
        """The metadata partitions of all rows."""
        return {row[0] for row in self.rows.select("metadata_partition").distinct().collect()}

    def read_before(self) -> list[Row]:
        """The records, at most one of each partition, that an earlier run has read."""
        is_known = (F.col("metadata_offset") <= _last_read(self.cursors)) & ~F.col("event_kind").eqNullSafe(LOST)
        known = self.rows.where(is_known).select("metadata_partition", "metadata_offset", "value")
        return [row.asDict() for row in known.collect()]

    def new_rows(self) -> DataFrame:
        """The rows to store."""
        return self.new

    def segments(self) -> dict[tuple[str, int], frozenset[NamedSegment]]:
        """As `ReadHere.segments`; nothing if there are many events."""
        rows = self.new.select(*_NAMING_COLUMNS).limit(_MOST_NAMING + 1).collect()
        return _segments_of([row.asDict() for row in rows]) if len(rows) <= _MOST_NAMING else {}

    def places(self, most: int) -> list[tuple[str | None, int | None]]:
        """Some topics and partitions that new events name."""
        named = self.new.select("topic", "partition").distinct().limit(most).collect()
        return [(row["topic"], row["partition"]) for row in named]

    def lasts(self) -> list[Row]:
        """Return one row per metadata partition: its last offset, its numbers of events, unreadable events, rows and
        offsets, the last lost offset (None: none), and whether records have keys."""
        is_lost = F.col("event_kind") == LOST
        columns = (
            F.max("metadata_offset").alias("last_offset"),
            F.count_if(~is_lost).alias("events"),
            F.count_if(F.col("event_kind") == UNREADABLE).alias("unreadable"),
            F.count("*").alias("rows"),
            F.count_distinct("metadata_offset").alias("offsets"),
            F.max(F.when(is_lost, F.col("metadata_offset"))).alias("lost_offset"),
            F.expr("count(record_key) > 0").alias("is_keyed"),
        )
        return [row.asDict() for row in self.new.groupBy("metadata_partition").agg(*columns).collect()]


def _segments_of(events: Iterable[Row]) -> dict[tuple[str, int], frozenset[NamedSegment]]:
    found: dict[tuple[str, int], dict[tuple[str, str], list[Row]]] = {}
    others = set[tuple[str, int]]()
    for row in events:
        place, key = (row["topic"], row["partition"]), (row["topic_id"], row["segment_id"])
        if row["event_kind"] in (SEGMENT, SEGMENT_UPDATE, TOMBSTONE) and None not in key:
            found.setdefault(place, {}).setdefault(key, []).append(row)
        else:
            others.add(place)
    return {
        place: frozenset(_named(key, rows) for key, rows in segments.items())
        for place, segments in found.items()
        if place not in others
    }


def _named(key: tuple[str, str], rows: list[Row]) -> NamedSegment:
    starts = [row["start_offset"] for row in rows if row["start_offset"] is not None]
    is_deleted = any(row["event_kind"] == TOMBSTONE or str(row["state"]).startswith("DELETE") for row in rows)
    return NamedSegment(
        topic_id=key[0], segment_id=key[1], start_offset=min(starts, default=None), is_deleted=is_deleted
    )


def _is_new(row: Row, cursors: dict[int, Cursor]) -> bool:
    """Whether a row is behind its cursor. One without an offset is new, so that it is refused later."""
    offset = row["metadata_offset"]
    return offset is None or offset >= next_offset(cursors, row["metadata_partition"])


def _decoded(raw: DataFrame) -> DataFrame:
    types = SEGMENT_EVENTS.column_types | dict.fromkeys(DAMAGE_COLUMNS, "STRING") | {"position": "BIGINT"}
    ddl = ", ".join(f"{name} {types[name]}" for name in _DECODED_SCHEMA.names)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([_decoded_row(row) for row in batch.to_pylist()], schema=_DECODED_SCHEMA)

    return raw.mapInArrow(decode, schema=ddl).persist()


def _decoded_row(row: dict[str, Any]) -> dict[str, object]:
    if row["reason"] == NO_LONGER_THERE:
        return {**row, "reason": None, **lost_row()}
    return row if row["reason"] else {**row, **event_row(row["value"], row["record_key"])}


def _last_read(cursors: dict[int, Cursor]) -> Column:
    """The last offset that was read before of a row's metadata partition; -1 if none."""
    unread = F.lit(-1).cast("bigint")
    if not cursors:
        return unread
    last = [F.lit(number) for partition, cursor in cursors.items() for number in (partition, cursor.offset)]
    return F.coalesce(F.try_element_at(F.create_map(*last), F.col("metadata_partition")), unread)
