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
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import pyarrow as pa

from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.errors import RetriableError, UsageError
from coldlog.indexing.events.decoded_events import (
    DAMAGE_COLUMNS,
    Cursor,
    NamedSegment,
    ReadHere,
    ReadInTasks,
    next_offset,
)
from coldlog.indexing.events.event_sources import NO_ANSWER, EventSource
from coldlog.indexing.events.positions import Positions, advance_positions, read_positions
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse

_MOST_NAMED = 10_000


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
    segments: Mapping[tuple[str, int], frozenset[NamedSegment]] = field(default_factory=dict)
    """Of `partitions`, those of which the new events say something of these segments only."""

    def facts(self) -> dict[str, object]:
        """The numbers."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("partitions", "segments")
        }


def read_events(warehouse: Warehouse, source: EventSource) -> ReadSummary:
    """Append all events up to the source's end to `segment_events`."""
    positions = read_positions(warehouse)
    cursors = _cursors(positions)
    raw = source.read(warehouse.spark, {partition: cursor.offset for partition, cursor in cursors.items()})
    read: ReadHere | ReadInTasks
    read = ReadHere.of(raw, cursors) if isinstance(raw, pa.Table) else ReadInTasks.of(raw, cursors)
    try:
        _require_answers(read.unanswered())
        lost = _require_same_topic(read, cursors, source)
        damaged_count = _record_damage(warehouse, read.damaged())
        lasts = read.lasts()
        _require_usable(lasts, source)
        partitions = frozenset[tuple[str, int]]() if not lasts else _named_partitions(read, lasts, cursors)
        segments = read.segments() if partitions else {}
        if lasts:
            new_rows = read.new_rows()
            warehouse.append(SEGMENT_EVENTS, new_rows, count=sum(row["rows"] for row in lasts))
            if isinstance(new_rows, list):
                advance_positions(warehouse, positions, new_rows)
    finally:
        read.forget()
    return ReadSummary(
        new_event_count=sum(row["events"] for row in lasts),
        unreadable_count=sum(row["unreadable"] for row in lasts),
        damaged_partition_count=damaged_count,
        missing_offset_count=sum(_missing_count(row, next_offset(cursors, row["metadata_partition"])) for row in lasts),
        lost_partitions=lost,
        partitions=None if damaged_count or lost else partitions,
        segments=segments,
    )


def _named_partitions(
    read: ReadHere | ReadInTasks, lasts: list[Row], cursors: dict[int, Cursor]
) -> frozenset[tuple[str, int]] | None:
    """Return the topics and partitions that the events name; None if they may say something of others, too.

    An event without a topic may be of any. If offsets are missing, or the last record of an earlier read was no event,
    this changes what all events of the metadata partition mean (`announced_segments`).
    """
    for row in lasts:
        partition = row["metadata_partition"]
        is_whole = row["rows"] == int(row["last_offset"]) + 1 - next_offset(cursors, partition)
        had_problem = partition in cursors and cursors[partition].has_problem
        if not is_whole or row["unreadable"] or row["lost_offset"] is not None or had_problem:
            return None
    named = read.places(_MOST_NAMED + 1)
    if len(named) > _MOST_NAMED:
        return None
    known = frozenset((topic, partition) for topic, partition in named if topic is not None and partition is not None)
    return known if len(known) == len(named) else None


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


def _cursors(positions: Positions) -> dict[int, Cursor]:
    return {
        partition: Cursor(offset=each.last_offset, value=each.value, has_problem=each.has_problem)
        for partition, each in positions.items()
    }


def _require_answers(failed: Row | None) -> None:
    """Raise an error if a part of the topic did not answer; the next run then reads the same events again."""
    if failed is not None:
        raise RetriableError(failed["message"]) if failed["reason"] == NO_ANSWER else UsageError(failed["message"])


def _require_same_topic(
    read: ReadHere | ReadInTasks, cursors: dict[int, Cursor], source: EventSource
) -> tuple[int, ...]:
    """Raise `UsageError` unless each partition has the stored event at the last offset read.

    Returns the partitions that are missing or end before that offset. If these are all partitions, it is another topic.
    """
    if not cursors:
        return ()
    lost = tuple(sorted(cursors.keys() - read.partitions()))
    if len(lost) == len(cursors):
        raise UsageError(
            f"every metadata partition of {source.uri} ends before the last offset read: the topic was created again, "
            "is an old copy, or belongs to another cluster; correct where metadata.* points, or use a new warehouse"
        )
    # The record at the cursor may have been lost since. Then a row of kind `lost` replaces it.
    for row in read.read_before():
        value = None if row["value"] is None else bytes(row["value"])
        if value != cursors[row["metadata_partition"]].value:
            raise UsageError(
                f"{source.uri} holds another event at offset {row['metadata_offset']} of metadata partition "
                f"{row['metadata_partition']} than was read before: the topic was created again or belongs to another "
                "cluster; correct where metadata.* points, or use a new warehouse"
            )
    return lost


def _record_damage(warehouse: Warehouse, found: list[Row]) -> int:
    """Update the rows of the metadata topic in `quarantine` to the present damage."""
    stored = warehouse.small_rows(QUARANTINE, QUARANTINE.column_names)
    before = {row["segment_id"]: row for row in stored if row["topic"] == METADATA_TOPIC}
    names = {row["object_name"] for row in found}
    removed = [row | {"is_repaired": True} for name, row in before.items() if name not in names]
    if removed:
        warehouse.merge(QUARANTINE, removed, remove="is_repaired")
    if found:
        now_ms = time.time_ns() // 1_000_000
        warehouse.merge(QUARANTINE, [_quarantine_row(row, before.get(row["object_name"]), now_ms) for row in found])
    return len(found)


def _quarantine_row(row: Row, before: Row | None, now_ms: int) -> Row:
    facts = {name: row[name] for name in DAMAGE_COLUMNS}
    stem = str(row["object_name"]).rpartition("/")[2].partition(".")[0]
    return {
        "topic": METADATA_TOPIC,
        "partition": row["metadata_partition"],
        "topic_id": "",
        "start_offset": int(stem),
        "segment_id": row["object_name"],
        **facts,
        "first_seen_ms": before["first_seen_ms"] if before else now_ms,
        "last_seen_ms": now_ms,
        "attempt_count": (before["attempt_count"] if before else 0) + 1,
    }
