"""The differences between what an archive lists, what events announced, and the stored rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from coldlog.archive.layouts.layout import SegmentFileKind
from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS, SegmentKey
from coldlog.indexing.scan.listed_rows import LISTED_COLUMNS
from coldlog.indexing.scan.lost_announcements import may_be_announced, segment_key
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row, key_of

WRITTEN_COLUMNS = (
    *LISTED_COLUMNS, "is_listed", "state", "state_source", "index_status", "txn_index_empty", *ANNOUNCED_COLUMNS
)  # fmt: skip
_COMPARED_COLUMNS = tuple(name for name in WRITTEN_COLUMNS if name != "log_modified_ms")
"""What makes a segment `changed`, unless the layout is a mirror."""
UPDATED_COLUMNS = (*WRITTEN_COLUMNS, "index_depth")
"""What is written of a segment that has changed. Its index depth is NULL if its index was built from other objects; the
next build sets it."""
STORED_COLUMNS = (*SEGMENTS.key, *UPDATED_COLUMNS, "topic_id", "build_number", "damaged_files")
"""What a comparison needs of `segments`."""
_FROM_LISTING, FROM_EVENTS = "listing", "events"
_ANNOUNCED_TO_BUILDS = (
    "announced_size_bytes", "announced_end_offset", "announced_max_timestamp_ms", "announced_leader_epochs"
)  # fmt: skip
"""What a build compares with the log."""
_INDEX_KINDS = (SegmentFileKind.OFFSET_INDEX.value, SegmentFileKind.TIME_INDEX.value)
"""The log says all that these do."""
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.name
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
_TO_READ = (IndexStatus.PENDING.value, IndexStatus.QUARANTINED.value)
_NOT_ANNOUNCED: Row = dict.fromkeys(ANNOUNCED_COLUMNS)


def find_differences(
    listed: Iterable[Row],
    announced: Mapping[SegmentKey, Row],
    stored: Iterable[Row],
    *,
    is_mirror: bool,
    governed: frozenset[tuple[str, int]] = frozenset(),
    lost: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> list[Row]:
    """Return the rows to write, with their `change`: segments that are `new`, `changed` or `gone`.

    Args:
        listed: Rows of `LISTED_SCHEMA` that are segments.
        announced: What `fold_events` returns.
        stored: Rows of `segments` in `STORED_COLUMNS`.
        is_mirror: Whether a file of the archive can be replaced by another one of the same size.
        governed: Topic ids and partitions of other announced segments: events say what belongs to these, too.
        lost: The last offset of each run of lost events, by metadata partition (`may_be_announced`).
    """
    before = {key_of(SEGMENTS, row): row for row in stored}
    found = []
    for row in _expected(list(listed), announced, governed, lost):
        change = _difference(row, before.pop(key_of(SEGMENTS, row), None), is_mirror=is_mirror)
        if change is not None:
            found.append(change)
    for row in before.values():
        change = _difference(None, row, is_mirror=is_mirror)
        if change is not None:
            found.append(change)
    return found


def _expected(
    listed: Sequence[Row],
    announced: Mapping[SegmentKey, Row],
    governed: frozenset[tuple[str, int]],
    lost: Mapping[int, Sequence[int]],
) -> Iterator[Row]:
    """Combine listing and events: one row per segment, in the columns that a scan writes.

    If no event announced a segment of a partition with its offsets, only the listing counts for the partition. In other
    partitions, a listed segment is an orphan if no event announced it and lost events did not either. An orphan waits,
    and is indexed if it is announced later.

    A copy that was announced as finished, with its offsets, is also read without its offset and time index: the build
    serves it if its log is whole.
    """
    valid = {key: row for key, row in announced.items() if row["announced_state"] is not None}
    governed |= {(key[2], key[1]) for key, row in valid.items() if row["announced_start_offset"] is not None}
    may_be = may_be_announced(listed, valid, lost)
    seen = set[SegmentKey]()
    for row in listed:
        key = segment_key(row)
        seen.add(key)
        is_governed = (row["topic_id"], row["partition"]) in governed and key not in may_be
        yield _of_listed(row, valid.get(key), is_governed=is_governed)
    for key, row in valid.items():
        if key not in seen and row["announced_start_offset"] is not None:
            yield _of_announced(key, row)


def _of_listed(listed: Row, announced: Row | None, *, is_governed: bool) -> Row:
    if announced is None:
        status = IndexStatus.ORPHAN.value if is_governed else listed["index_status"]
        facts = {"state": listed["state"], "state_source": _FROM_LISTING, "txn_index_empty": None, **_NOT_ANNOUNCED}
    else:
        state, missing = announced["announced_state"], listed["missing_kinds"]
        is_readable = not missing or (
            announced["announced_start_offset"] is not None and set(missing) <= set(_INDEX_KINDS)
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
    if state.startswith("DELETE") or (state == _FINISHED and not is_listed):
        return IndexStatus.GONE.value
    return (IndexStatus.PENDING if state == _FINISHED and is_readable else IndexStatus.INCOMPLETE).value


def _difference(expected: Row | None, stored: Row | None, *, is_mirror: bool) -> Row | None:
    """Return the row to write with its `change`; None if nothing changes.

    If only the modification time of a log changed, this counts in a mirror, where a file can be replaced by one of the
    same size, and for a segment in quarantine or with damaged files, which may have been restored. A segment that was
    gone and is back unchanged is still indexed, if its index is of these objects.

    A segment that was read before its events is read again if they announce a log of another size, and if it is in
    quarantine or has damaged files: they may tell that its log is whole, or where it ended.
    """
    wanted = _wanted(expected, stored, is_mirror=is_mirror)
    if stored is None:
        change = "new"
    elif all(wanted[name] == stored[name] for name in (WRITTEN_COLUMNS if is_mirror else _COMPARED_COLUMNS)):
        return None
    else:
        change = "gone" if wanted["index_status"] == IndexStatus.GONE.value else "changed"
    key = expected or stored
    assert key is not None
    return {**{name: key[name] for name in (*SEGMENTS.key, "topic_id")}, "change": change, **wanted}


def _wanted(expected: Row | None, stored: Row | None, *, is_mirror: bool) -> Row:
    """Return the new values of the updated columns; a segment neither listed nor announced is gone."""
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
    if all(wanted[name] == before[name] for name in _ANNOUNCED_TO_BUILDS):
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
    """Leave out segments that may be in a directory that cannot be listed.

    If the layout does not know the topic id of a directory, these are all segments of that topic and partition.
    """
    places: dict[tuple[str, int], set[str]] = {}
    for row in unlisted:
        places.setdefault((row["topic"], row["partition"]), set()).add(row["topic_id"])

    def may_be_there(row: Row) -> bool:
        topic_ids = places.get((row["topic"], row["partition"]), set[str]())
        return not row["is_listed"] and bool({"", row["topic_id"]} & topic_ids)

    return [row for row in differences if not may_be_there(row)]
