"""Compare listing, events and stored rows of few segments, in this process.

The rules are those of `differences`, which has them for Spark; a test holds both to the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.layouts.layout import UnrecognizedObject
from coldlog.indexing.events.announced_here import EVENT_COLUMNS, SegmentKey, announced_here
from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS
from coldlog.indexing.events.positions import read_limited_events
from coldlog.indexing.scan.differences import (
    ANNOUNCED_TO_BUILDS,
    COMPARED_COLUMNS,
    FINISHED,
    FROM_EVENTS,
    FROM_LISTING,
    INDEX_KINDS,
    STORED_COLUMNS,
    UPDATED_COLUMNS,
    WRITTEN_COLUMNS,
    unrecognized_row,
    write_unrecognized,
)
from coldlog.indexing.scan.listing import LISTED_COLUMNS, LISTED_SCHEMA, SEGMENT_COLUMNS
from coldlog.indexing.scan.lost_announcements import lost_offsets
from coldlog.indexing.scan.named_segments import NamedListing
from coldlog.indexing.scan.settled_segments import without_settled
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.row_edits import Row, key_of
from coldlog.tables.delta.warehouse import Warehouse

_MOST_ROWS = 30_000
"""So many segments are compared one by one in this process."""
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.name
_TO_READ = (IndexStatus.PENDING.value, IndexStatus.QUARANTINED.value)
_NOT_ANNOUNCED: Row = dict.fromkeys(ANNOUNCED_COLUMNS)


class ComparedHere:
    """The comparison of few segments. `listed` and `stored` are those that were compared one by one, `some_stand` says
    that there are others in both; `unrecognized` are rows of `LISTED_SCHEMA`, `differences` those of `differences`."""

    def __init__(
        self,
        warehouse: Warehouse,
        listed: list[Row],
        stored: list[Row],
        differences: list[Row],
        *,
        some_stand: bool,
        unrecognized: list[Row],
    ) -> None:
        self._warehouse = warehouse
        self._listed = listed
        self._stored = stored
        self._differences = differences
        self._some_stand = some_stand
        self._unrecognized = unrecognized

    @classmethod
    def of(
        cls,
        warehouse: Warehouse,
        batches: Sequence[pa.RecordBatch],
        *,
        is_mirror: bool,
        has_unlisted: bool,
        named: NamedListing | None = None,
    ) -> ComparedHere | None:
        """Compare; None if that is too much for this process, or if events were lost, which needs Spark. `batches` have
        what was listed, those of `named` too."""
        stored = warehouse.small_table(SEGMENTS, STORED_COLUMNS) if named is None else named.stored
        if stored is None or lost_offsets(warehouse):
            return None
        events = read_limited_events(warehouse, EVENT_COLUMNS)
        if events is None:
            return None
        of_named = frozenset[tuple[str, int]]()
        if named is not None:
            stored, events, of_named = named.compared(events)
        listed = pa.Table.from_batches(batches, LISTED_SCHEMA)
        is_segment = pc.is_null(listed["unrecognized_name"])
        left = without_settled(stored, events, listed.select(SEGMENT_COLUMNS).filter(is_segment))
        announced = announced_here(left.events, warehouse.partitions)
        if announced is None or len(left.stored) > _MOST_ROWS:
            return None
        segments, rows = left.listed.to_pylist(), left.stored.to_pylist()
        unrecognized = listed.filter(pc.invert(is_segment)).to_pylist()
        found = differences_here(segments, announced, rows, is_mirror=is_mirror, governed=left.governed | of_named)
        if has_unlisted:
            found = without_unknown(found, list(filter(_is_unlisted, unrecognized)))
        some_stand = left.some_stand or named is not None
        return cls(warehouse, segments, rows, found, some_stand=some_stand, unrecognized=unrecognized)

    def forget(self) -> None:
        """Nothing is held elsewhere."""

    def counts(self) -> dict[str, int]:
        """How many segments are `new`, `changed` and `gone`."""
        return Counter(row["change"] for row in self._differences)

    def unlisted(self, most: int) -> list[tuple[str, str]]:
        """Names of directories that cannot be listed, in order, and why."""
        rows = [(row["unrecognized_name"], row["unrecognized_why"]) for row in self._unrecognized if _is_unlisted(row)]
        return sorted(rows)[:most]

    def lost_count(self) -> int:
        """How many segments are gone whose deletion was not announced."""
        gone = [row for row in self._differences if row["change"] == "gone"]
        return sum(row["state_source"] != FROM_EVENTS or not row["state"].startswith("DELETE") for row in gone)

    def is_another_archive(self) -> bool:
        """Whether the tables have segments, and none of them is listed."""
        if self._some_stand:
            return False
        known = {row["segment_id"] for row in self._stored if row["index_status"] != IndexStatus.GONE.value}
        return bool(known) and known.isdisjoint(row["segment_id"] for row in self._listed)

    def write(self) -> None:
        """Write the differences to `segments`."""
        new = [row for row in self._differences if row["change"] == "new"]
        others = [row for row in self._differences if row["change"] != "new"]
        if new:
            self._warehouse.append(SEGMENTS, [{name: row.get(name) for name in SEGMENTS.column_names} for row in new])
        if others:
            self._warehouse.merge(SEGMENTS, others, update=UPDATED_COLUMNS)

    def write_unrecognized(self, beside: Sequence[UnrecognizedObject]) -> int:
        """Update `unrecognized_objects` to what is listed and to what is `beside` the directories; count the rows."""
        wanted = {stray.name: unrecognized_row(stray) for stray in beside}
        for row in self._unrecognized:
            values = (row["unrecognized_name"], row["unrecognized_bytes"], row["unrecognized_why"])
            wanted[values[0]] = dict(zip(("name", "size_bytes", "why"), values, strict=True))
        stored = self._warehouse.rows_if_small(UNRECOGNIZED_OBJECTS, UNRECOGNIZED_OBJECTS.column_names)
        if stored is None:
            return write_unrecognized(self._warehouse, self._warehouse.local(UNRECOGNIZED_OBJECTS, wanted.values()))
        self._warehouse.merge(UNRECOGNIZED_OBJECTS, [row for row in wanted.values() if row not in stored])
        no_more = [{"name": row["name"]} for row in stored if row["name"] not in wanted]
        self._warehouse.delete_matching(UNRECOGNIZED_OBJECTS, no_more)
        return len(wanted)


def _is_unlisted(row: Row) -> bool:
    """As `IS_UNLISTED`, of an unrecognized row."""
    return row["topic"] is not None


def differences_here(
    listed: Iterable[Row],
    announced: Mapping[SegmentKey, Row],
    stored: Iterable[Row],
    *,
    is_mirror: bool,
    governed: frozenset[tuple[str, int]] = frozenset(),
) -> list[Row]:
    """Return what `differences` returns, as rows. `stored` has `STORED_COLUMNS`; events also say what belongs to the
    topic ids and partitions `governed`."""
    before = {key_of(SEGMENTS, row): row for row in stored}
    found = []
    for row in _expected(listed, announced, governed):
        change = _difference(row, before.pop(key_of(SEGMENTS, row), None), is_mirror=is_mirror)
        if change is not None:
            found.append(change)
    for row in before.values():
        change = _difference(None, row, is_mirror=is_mirror)
        if change is not None:
            found.append(change)
    return found


def _expected(
    listed: Iterable[Row], announced: Mapping[SegmentKey, Row], governed: frozenset[tuple[str, int]]
) -> Iterator[Row]:
    """Combine listing and events: the rows of `differences.expected_segments`, without lost announcements."""
    valid = {key: row for key, row in announced.items() if row["announced_state"] is not None}
    governed |= {(key[2], key[1]) for key, row in valid.items() if row["announced_start_offset"] is not None}
    seen = set[SegmentKey]()
    for row in listed:
        key = (row["topic"], row["partition"], row["topic_id"], row["segment_id"])
        seen.add(key)
        yield _of_listed(row, valid.get(key), is_governed=(row["topic_id"], row["partition"]) in governed)
    for key, row in valid.items():
        if key not in seen and row["announced_start_offset"] is not None:
            yield _of_announced(key, row)


def _of_listed(listed: Row, announced: Row | None, *, is_governed: bool) -> Row:
    if announced is None:
        status = IndexStatus.ORPHAN.value if is_governed else listed["index_status"]
        facts = {"state": listed["state"], "state_source": FROM_LISTING, "txn_index_empty": None, **_NOT_ANNOUNCED}
    else:
        state, missing = announced["announced_state"], listed["missing_kinds"]
        is_readable = not missing or (
            announced["announced_start_offset"] is not None and set(missing) <= set(INDEX_KINDS)
        )
        status = _announced_status(state, is_readable=is_readable, is_listed=True)
        facts = _of_events(announced)
    return {**{name: listed[name] for name in _OF_LISTING}, "is_listed": True, "index_status": status, **facts}


_OF_LISTING = ("topic", "partition", "topic_id", "segment_id", "start_offset", *LISTED_COLUMNS)


def _of_announced(key: SegmentKey, announced: Row) -> Row:
    status = _announced_status(announced["announced_state"], is_readable=False, is_listed=False)
    named = dict(zip(("topic", "partition", "topic_id", "segment_id"), key, strict=True))
    return {
        **named,
        "start_offset": announced["announced_start_offset"],
        **dict.fromkeys(LISTED_COLUMNS),
        "is_listed": False,
        "index_status": status,
        **_of_events(announced),
    }


def _of_events(announced: Row) -> Row:
    return {
        "state": announced["announced_state"],
        "state_source": FROM_EVENTS,
        "txn_index_empty": announced["announced_txn_index_empty"] or None,
        **{name: announced[name] for name in ANNOUNCED_COLUMNS},
    }


def _announced_status(state: str, *, is_readable: bool, is_listed: bool) -> str:
    if state.startswith("DELETE") or (state == FINISHED and not is_listed):
        return IndexStatus.GONE.value
    return (IndexStatus.PENDING if state == FINISHED and is_readable else IndexStatus.INCOMPLETE).value


def _difference(expected: Row | None, stored: Row | None, *, is_mirror: bool) -> Row | None:
    """Return the row to write with its `change`; None if nothing changes."""
    wanted = _wanted(expected, stored, is_mirror=is_mirror)
    if stored is None:
        change = "new"
    elif all(wanted[name] == stored[name] for name in (WRITTEN_COLUMNS if is_mirror else COMPARED_COLUMNS)):
        return None
    else:
        change = "gone" if wanted["index_status"] == IndexStatus.GONE.value else "changed"
    key = expected or stored
    assert key is not None
    return {**{name: key[name] for name in (*SEGMENTS.key, "topic_id")}, "change": change, **wanted}


def _wanted(expected: Row | None, stored: Row | None, *, is_mirror: bool) -> Row:
    """Return the new values of the updated columns, as `differences` does."""
    before: Mapping[str, Any] = dict.fromkeys(STORED_COLUMNS) if stored is None else stored
    wanted = {name: (before if expected is None else expected)[name] for name in WRITTEN_COLUMNS}
    is_listed = expected is not None and expected["is_listed"]
    if is_listed and expected is not None:
        if expected["log_modified_ms"] is not None and expected["size_bytes"] is None:
            # The listing does not show the size of a log: keep the size that the build read.
            wanted["size_bytes"] = before["size_bytes"]
    else:
        wanted |= {name: before[name] for name in LISTED_COLUMNS}
    for name in ("objects", "missing_kinds"):
        wanted[name] = wanted[name] if wanted[name] is not None else []
    wanted["is_listed"] = is_listed
    if before["build_number"] is not None:
        wanted["txn_index_empty"] = before["txn_index_empty"]
    is_same = (
        wanted["objects"] == before["objects"]
        and not _is_restored(wanted, before, is_mirror=is_mirror)
        and not _is_told_otherwise(wanted, before)
    )
    if expected is None:
        wanted |= {"index_status": IndexStatus.GONE.value, "state": _DELETED}
    else:
        wanted["index_status"] = _status(expected["index_status"], before, is_same=is_same)
    is_read = wanted["index_status"] != IndexStatus.PENDING.value and before["index_status"] not in _TO_READ
    wanted["index_depth"] = before["index_depth"] if is_same and is_read else None
    return wanted


def _is_restored(wanted: Row, before: Mapping[str, Any], *, is_mirror: bool) -> bool:
    """Whether the log may be another one of the same size."""
    return (is_mirror or _is_bad(before)) and wanted["log_modified_ms"] != before["log_modified_ms"]


def _is_told_otherwise(wanted: Row, before: Mapping[str, Any]) -> bool:
    """Whether new events tell more about the segment than the build knew that has read it."""
    if all(wanted[name] == before[name] for name in ANNOUNCED_TO_BUILDS):
        return False
    sizes = wanted["announced_size_bytes"], wanted["size_bytes"]
    return _is_bad(before) or (None not in sizes and sizes[0] != sizes[1])


def _is_bad(before: Mapping[str, Any]) -> bool:
    """Whether a build found the segment damaged."""
    return before["index_status"] == IndexStatus.QUARANTINED.value or before["damaged_files"] is not None


def _status(status: str, before: Mapping[str, Any], *, is_same: bool) -> str:
    """Return the index status of a segment from that of the listing and events, and the stored one."""
    if status != IndexStatus.PENDING.value or not is_same:
        return status
    known: str | None = before["index_status"]
    if known in (IndexStatus.INDEXED.value, IndexStatus.QUARANTINED.value):
        return known
    is_back = known not in (None, IndexStatus.PENDING.value) and before["index_depth"] is not None
    return IndexStatus.INDEXED.value if is_back else status


def without_unknown(differences: Sequence[Row], unlisted: Sequence[Row]) -> list[Row]:
    """Leave out segments that may be in a directory that cannot be listed."""
    places: dict[tuple[str, int], set[str]] = {}
    for row in unlisted:
        places.setdefault((row["topic"], row["partition"]), set()).add(row["topic_id"])

    def may_be_there(row: Row) -> bool:
        topic_ids = places.get((row["topic"], row["partition"]), set[str]())
        return not row["is_listed"] and bool({"", row["topic_id"]} & topic_ids)

    return [row for row in differences if not may_be_there(row)]
