"""Append the new events of the metadata topic to `segment_events`.

A source is read from the last offset of each metadata partition in `segment_events`. The records after it are appended
in one commit, so a killed run repeats nothing and loses nothing. The record at the last offset is read again and must
equal the stored one: a source of another cluster, or a topic that was created again, is refused.

Damage in the topic's log ends the read of that metadata partition. It is a row of `quarantine` until it is repaired;
other partitions are read on. Offsets that are missing among the new events, or before them, are counted. Compaction
leaves such holes too. So in a partition whose records have keys, only offsets that retention removed are counted. If
retention removed some, a row of kind `lost` is stored at the last of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.errors import RetriableError, UsageError
from coldlog.indexing.events.event_rows import EVENTS_HERE, LOST, UNREADABLE, event_row, lost_row
from coldlog.indexing.events.event_sources import NO_ANSWER, NO_LONGER_THERE, RAW_SCHEMA, REFUSED, EventSource
from coldlog.runtime.arrow_frames import frame_of
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse

_MOST_NAMED = 10_000
_DAMAGE = RAW_SCHEMA.names[5:]
_DECODED_SCHEMA = pa.schema(
    [
        *(field.with_nullable(True) for field in SEGMENT_EVENTS.arrow_schema),
        *(RAW_SCHEMA.field(name) for name in _DAMAGE),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSummary:
    """What one run read.

    `missing_offset_count` counts offsets, up to the last new event of each partition, that no run has read: the topic
    or its copy has lost them. Holes that compaction may have left do not count. `lost_partitions` are missing, or end
    before the offset that was read before.
    """

    new_event_count: int
    unreadable_count: int
    damaged_partition_count: int
    missing_offset_count: int
    lost_partitions: tuple[int, ...] = ()
    partitions: frozenset[tuple[str, int]] | None = frozenset()
    """Topics and partitions that the new events name. None: they may say something of others, too."""

    def facts(self) -> dict[str, object]:
        """The numbers."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "partitions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    offset: int
    value: bytes | None
    has_problem: bool


def read_events(warehouse: Warehouse, source: EventSource) -> ReadSummary:
    """Append all events up to the source's end to `segment_events`."""
    cursors = _cursors(warehouse)
    raw = source.read(warehouse.spark, {partition: cursor.offset for partition, cursor in cursors.items()})
    decoded = _decoded(warehouse.spark, raw)
    try:
        _require_answers(decoded)
        lost = _require_same_topic(decoded, cursors, source)
        damaged_count = _record_damage(warehouse, decoded.where(F.col("reason").isNotNull()))
        new = _after_cursors(decoded.where(F.col("reason").isNull()), cursors)
        lasts = _lasts(new)
        _require_usable(lasts, source)
        partitions = frozenset[tuple[str, int]]() if not lasts else _named_partitions(new, lasts, cursors)
        if lasts:
            warehouse.append(SEGMENT_EVENTS, new, count=sum(row["rows"] for row in lasts))
    finally:
        decoded.unpersist()
    return ReadSummary(
        new_event_count=sum(row["events"] for row in lasts),
        unreadable_count=sum(row["unreadable"] for row in lasts),
        damaged_partition_count=damaged_count,
        missing_offset_count=sum(_missing_count(row, _next_offset(cursors, row[0])) for row in lasts),
        lost_partitions=lost,
        partitions=None if damaged_count or lost else partitions,
    )


def _named_partitions(
    new: DataFrame, lasts: list[Row], cursors: dict[int, _Cursor]
) -> frozenset[tuple[str, int]] | None:
    """Return the topics and partitions that the events name; None if they may say something of others, too.

    An event without a topic may be of any. If offsets are missing, or the last record of an earlier read was no event,
    this changes what all events of the metadata partition mean (`announced_segments`).
    """
    is_whole = all(row["rows"] == int(row["last_offset"]) + 1 - _next_offset(cursors, row[0]) for row in lasts)
    is_clear = not any(
        row["unreadable"] or row["lost_offset"] is not None or (row[0] in cursors and cursors[row[0]].has_problem)
        for row in lasts
    )
    if not is_whole or not is_clear:
        return None
    named = new.select("topic", "partition").distinct().limit(_MOST_NAMED + 1).collect()
    if len(named) > _MOST_NAMED or any(row["topic"] is None or row["partition"] is None for row in named):
        return None
    return frozenset((row["topic"], row["partition"]) for row in named)


def _lasts(new: DataFrame) -> list[Row]:
    """Return one row per metadata partition: its last offset, its numbers of events, unreadable events, rows and
    offsets, the last lost offset (NULL: none), and whether records have keys."""
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
    return new.groupBy("metadata_partition").agg(*columns).collect()


def _missing_count(row: Row, next_offset: int) -> int:
    if row["is_keyed"]:
        return 0 if row["lost_offset"] is None else int(row["lost_offset"]) + 1 - next_offset
    return int(row["last_offset"]) + 1 - int(row["events"]) - next_offset


def _require_usable(lasts: list[Row], source: EventSource) -> None:
    """Refuse unusable records before anything is written, because events are never removed."""
    if any(row["metadata_partition"] is None or row["last_offset"] is None for row in lasts):
        raise UsageError(f"{source.uri} holds records whose partition or offset is not an integer; correct them")
    twice = [row["metadata_partition"] for row in lasts if row["rows"] != row["offsets"]]
    if twice:
        raise UsageError(f"{source.uri} holds two values for one offset of metadata partition {twice[0]}; remove one")
    count, unreadable = sum(row["events"] for row in lasts), sum(row["unreadable"] for row in lasts)
    if count and count == unreadable:
        raise UsageError(
            f"none of the {count} records of {source.uri} is a remote log metadata event; correct metadata.*"
        )


def _next_offset(cursors: dict[int, _Cursor], partition: int) -> int:
    return cursors[partition].offset + 1 if partition in cursors else 0


def _cursors(warehouse: Warehouse) -> dict[int, _Cursor]:
    return {
        row["metadata_partition"]: _Cursor(
            offset=row["metadata_offset"],
            value=None if row["value"] is None else bytes(row["value"]),
            has_problem=row["problem"] is not None,
        )
        for row in _last_events(warehouse)
    }


def _last_events(warehouse: Warehouse) -> Iterable[Mapping[str, Any]]:
    """Return the last event that was read of each metadata partition, with the columns of a cursor."""
    key, columns = "metadata_partition", ("metadata_partition", "metadata_offset", "value", "problem")
    few = warehouse.small_table(SEGMENT_EVENTS, columns, times=EVENTS_HERE)
    if few is not None:
        partitions = few[key].to_numpy()
        order = np.lexsort((few["metadata_offset"].to_numpy(), partitions))
        is_last = np.diff(partitions[order], append=-1) != 0
        found: list[dict[str, Any]] = few.take(pa.array(order[is_last])).to_pylist()
        return found
    # The offsets first: the values of all events are many times their bytes.
    events = warehouse.read(SEGMENT_EVENTS)
    lasts = events.groupBy(key).agg(F.max("metadata_offset").alias("last")).collect()
    is_one = F.lit(False)
    for row in lasts:
        is_one |= (F.col(key) == row[key]) & (F.col("metadata_offset") == row["last"])
    return [row.asDict() for row in events.where(is_one).select(*columns).collect()]


def _decoded(spark: SparkSession, raw: DataFrame | pa.Table) -> DataFrame:
    if isinstance(raw, pa.Table):
        return frame_of(spark, pa.Table.from_pylist(list(map(_decoded_row, raw.to_pylist())), schema=_DECODED_SCHEMA))
    types = SEGMENT_EVENTS.column_types | dict.fromkeys(_DAMAGE, "STRING") | {"position": "BIGINT"}
    ddl = ", ".join(f"{name} {types[name]}" for name in _DECODED_SCHEMA.names)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([_decoded_row(row) for row in batch.to_pylist()], schema=_DECODED_SCHEMA)

    return raw.mapInArrow(decode, schema=ddl).persist()


def _decoded_row(row: dict[str, Any]) -> dict[str, object]:
    if row["reason"] == NO_LONGER_THERE:
        return {**row, "reason": None, **lost_row()}
    return row if row["reason"] else {**row, **event_row(row["value"], row["record_key"])}


def _after_cursors(rows: DataFrame, cursors: dict[int, _Cursor]) -> DataFrame:
    """Keep the rows after the cursors. Rows without an offset are kept too, so that they are refused later."""
    return rows.where((F.col("metadata_offset") > _last_read(cursors)) | F.col("metadata_offset").isNull())


def _last_read(cursors: dict[int, _Cursor]) -> Column:
    """The last offset that was read before of a row's metadata partition; -1 if none."""
    unread = F.lit(-1).cast("bigint")
    if not cursors:
        return unread
    last = [F.lit(number) for partition, cursor in cursors.items() for number in (partition, cursor.offset)]
    return F.coalesce(F.try_element_at(F.create_map(*last), F.col("metadata_partition")), unread)


def _require_answers(decoded: DataFrame) -> None:
    """Raise an error if a part of the topic did not answer; the next run then reads the same events again."""
    failed = decoded.where(F.col("reason").isin(NO_ANSWER, REFUSED)).select("reason", "message").head(1)
    for row in failed:
        raise RetriableError(row["message"]) if row["reason"] == NO_ANSWER else UsageError(row["message"])


def _require_same_topic(decoded: DataFrame, cursors: dict[int, _Cursor], source: EventSource) -> tuple[int, ...]:
    """Raise `UsageError` unless each partition has the stored event at the last offset read.

    Returns the partitions that are missing or end before that offset. If these are all partitions, it is another topic.
    """
    if not cursors:
        return ()
    present = {row[0] for row in decoded.select("metadata_partition").distinct().collect()}
    lost = tuple(sorted(cursors.keys() - present))
    if len(lost) == len(cursors):
        raise UsageError(
            f"every metadata partition of {source.uri} ends before the last offset read: the topic was created again, "
            "is an old copy, or belongs to another cluster; correct where metadata.* points, or use a new warehouse"
        )
    # The record at the cursor may have been lost since. Then a row of kind `lost` replaces it.
    again = decoded.where((F.col("metadata_offset") <= _last_read(cursors)) & ~F.col("event_kind").eqNullSafe(LOST))
    for row in again.select("metadata_partition", "metadata_offset", "value").collect():
        value = None if row["value"] is None else bytes(row["value"])
        if value != cursors[row["metadata_partition"]].value:
            raise UsageError(
                f"{source.uri} holds another event at offset {row['metadata_offset']} of metadata partition "
                f"{row['metadata_partition']} than was read before: the topic was created again or belongs to another "
                "cluster; correct where metadata.* points, or use a new warehouse"
            )
    return lost


def _record_damage(warehouse: Warehouse, damaged: DataFrame) -> int:
    """Update the rows of the metadata topic in `quarantine` to the present damage."""
    found = damaged.collect()
    known = warehouse.read(QUARANTINE).where(F.col("topic") == METADATA_TOPIC)
    before = {row["segment_id"]: row for row in known.collect()}
    names = {row["object_name"] for row in found}
    repaired = [row.asDict() for name, row in before.items() if name not in names]
    if repaired:
        removed = [row | {"is_repaired": True} for row in repaired]
        warehouse.merge(QUARANTINE, removed, remove="is_repaired")
    if found:
        now_ms = time.time_ns() // 1_000_000
        rows = [_quarantine_row(row.asDict(), before.get(row["object_name"]), now_ms) for row in found]
        warehouse.merge(QUARANTINE, rows)
    return len(found)


def _quarantine_row(row: dict[str, object], before: object, now_ms: int) -> dict[str, object]:
    facts = {name: row[name] for name in _DAMAGE}
    stem = str(row["object_name"]).rpartition("/")[2].partition(".")[0]
    return {
        "topic": METADATA_TOPIC,
        "partition": row["metadata_partition"],
        "topic_id": "",
        "start_offset": int(stem),
        "segment_id": row["object_name"],
        **facts,
        "first_seen_ms": before["first_seen_ms"] if before else now_ms,  # type: ignore[index]  # a row of the table
        "last_seen_ms": now_ms,
        "attempt_count": (before["attempt_count"] if before else 0) + 1,  # type: ignore[index]
    }
