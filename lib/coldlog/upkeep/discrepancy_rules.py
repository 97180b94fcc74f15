"""Say what is wrong with a segment, from its row of `segments` and what is known of its partition.

Pure: `reconcile` applies these rules, in this process or in Spark tasks. A rule returns what was expected and what was
found, or None if all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.discrepancies import DiscrepancyKind

Row = Mapping[str, Any]
Incarnation = tuple[str, int, str]
"""Topic, partition and topic id."""
Texts = tuple[str, str]

PATIENCE_MS = 60 * 60 * 1000
INCARNATION = ("topic", "partition", "topic_id")
SEGMENT = (*INCARNATION, "start_offset", "segment_id")
READ_COLUMNS = (
    *SEGMENT, "end_offset", "max_timestamp_ms", "metadata_max_timestamp_ms", "size_bytes", "segment_leader_epochs",
    "state", "state_source", "announced_start_offset", "announced_end_offset", "announced_max_timestamp_ms",
    "announced_size_bytes", "announced_leader_epochs", "announced_txn_index_empty", "event_timestamp_ms",
    "txn_index_empty", "is_listed", "objects", "missing_kinds", "log_modified_ms", "index_status",
    "abort_marker_count", "holes", "damaged_files", "is_within_lineage", "not_served_reason",
)  # fmt: skip
"""Columns of `segments` that the rules need; of the objects, rows have only the `object_count`."""
_STATE = RemoteLogSegmentState
_BELOW_LOG_START = "below_log_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What the announced segments of one incarnation of a partition say together."""

    placed_segment_count: int = 0
    newest_copy_event_ms: int | None = None
    announces_empty_from_offset: int | None = None


def discrepancies_of(row: Row, of_partition: PartitionFacts, newest_ms: int | None) -> list[dict[str, Any]]:
    """Return the rows of `discrepancies`, without their time, of one segment.

    `newest_ms` is the time of the newest event of all partitions.
    """
    segment, found = _Segment(row, of_partition, newest_ms), []
    for kind, rule in _RULES.items():
        texts = rule(segment)
        if texts is not None:
            told = {"kind": kind.value, "severity": kind.severity.value, "expected": texts[0], "found": texts[1]}
            found.append({name: row[name] for name in SEGMENT} | told | {"advice": kind.advice})
    return found


class _Segment:
    """A row, and what several rules ask of it."""

    __slots__ = (
        "goes_on", "is_announced", "is_copying", "is_deleting", "is_finished", "is_just_written", "is_orphan",
        "is_read", "is_waited_for", "of_partition", "row",
    )  # fmt: skip

    def __init__(self, row: Row, of_partition: PartitionFacts, newest_ms: int | None) -> None:
        self.row, self.of_partition = row, of_partition
        state = row["state"]
        self.is_announced = row["state_source"] == "events"
        self.is_finished = self.is_announced and state == _STATE.COPY_SEGMENT_FINISHED.name
        self.is_copying = self.is_announced and state == _STATE.COPY_SEGMENT_STARTED.name
        self.is_deleting = self.is_announced and state == _STATE.DELETE_SEGMENT_STARTED.name
        # Values that the build read count only while the objects are the ones that it read.
        self.is_read = row["is_listed"] and row["index_status"] == IndexStatus.INDEXED.value
        self.is_orphan = row["is_listed"] and row["index_status"] == IndexStatus.ORPHAN.value
        event_ms, newest_copy_ms = row["event_timestamp_ms"], of_partition.newest_copy_event_ms
        self.is_waited_for = event_ms is not None and newest_ms is not None and newest_ms - event_ms <= PATIENCE_MS
        is_passed_by = event_ms is not None and newest_copy_ms is not None and event_ms < newest_copy_ms
        self.goes_on = self.is_waited_for and not is_passed_by
        written_ms = row["log_modified_ms"]
        self.is_just_written = (
            written_ms is not None and newest_ms is not None and newest_ms < written_ms <= newest_ms + PATIENCE_MS
        )

    @property
    def objects(self) -> str:
        """How many objects were listed."""
        if not self.row["is_listed"]:
            return "no object"
        count = self.row["object_count"]
        return f"{count} object" if count == 1 else f"{count} objects"

    @property
    def event_and_objects(self) -> str:
        """The state, if one was announced, and how many objects were listed."""
        return f"{self.row['state'] if self.is_announced else 'no event'}, {self.objects}"

    @property
    def missing(self) -> str:
        """The files that are missing."""
        return "no " + ", ".join(self.row["missing_kinds"])


def _segment_missing(segment: _Segment) -> Texts | None:
    if not segment.is_finished or segment.row["is_listed"]:
        return None
    size_bytes = segment.row["announced_size_bytes"]
    return f"a log of {'unknown size' if size_bytes is None else f'{size_bytes} bytes'} with its files", segment.objects


def _files_missing(segment: _Segment) -> Texts | None:
    if not segment.is_finished or not segment.row["is_listed"] or not segment.row["missing_kinds"]:
        return None
    return "every required file", segment.missing + ("; the log is served without" if segment.is_read else "")


def _size_differs(segment: _Segment) -> Texts | None:
    announced, listed = segment.row["announced_size_bytes"], segment.row["size_bytes"]
    if not segment.is_finished or not segment.row["is_listed"] or not _differ(announced, listed):
        return None
    return f"{announced} bytes", f"{listed} bytes"


def _start_offset_differs(segment: _Segment) -> Texts | None:
    announced, listed = segment.row["announced_start_offset"], segment.row["start_offset"]
    if not segment.is_finished or not segment.row["is_listed"] or not _differ(announced, listed):
        return None
    return f"offset {announced}", f"offset {listed}"


def _end_offset_differs(segment: _Segment) -> Texts | None:
    """The announced end is the offset before the next segment and can be after the last batch, but not before it. A
    build that knew the events has quarantined such a segment; this segment was read before its events."""
    announced, read = segment.row["announced_end_offset"], segment.row["end_offset"]
    if not segment.is_read or announced is None or read is None or read <= announced:
        return None
    return f"at most offset {announced}", f"offset {read}"


def _max_timestamp_differs(segment: _Segment) -> Texts | None:
    """A segment without timestamps is announced with the modification time of its file on the broker. A hole may have
    had the largest timestamp."""
    row = segment.row
    announced, read = row["announced_max_timestamp_ms"], row["metadata_max_timestamp_ms"]
    has_times = row["max_timestamp_ms"] is not None and row["max_timestamp_ms"] >= 0
    if not segment.is_read or row["holes"] is not None or not has_times or not _differ(announced, read):
        return None
    return f"{announced} ms", f"{read} ms"


def _leader_epochs_differ(segment: _Segment) -> Texts | None:
    announced, read = segment.row["announced_leader_epochs"], segment.row["segment_leader_epochs"]
    if not segment.is_read or announced is None or read is None:
        return None
    known = [each["leader_epoch"] for each in announced]
    others = dict.fromkeys(each["leader_epoch"] for each in read if each["leader_epoch"] >= 0)
    unannounced = [epoch for epoch in others if epoch not in known]
    return (f"leader epochs {_joined(known)}", f"leader epochs {_joined(unannounced)}") if unannounced else None


def _txn_index_denied(segment: _Segment) -> Texts | None:
    row = segment.row
    if not segment.is_read or not row["announced_txn_index_empty"] or row["txn_index_empty"] is not False:
        return None
    count = row["abort_marker_count"]
    # At sidecar depth nobody counts markers.
    return "no aborted transaction", ("" if count is None else f"{count} abort markers and ") + "a transaction index"


def _txn_index_in_doubt(segment: _Segment) -> Texts | None:
    """There is no entry if the transaction wrote nothing to this partition, or if the index was lost."""
    row = segment.row
    if not segment.is_read or not row["abort_marker_count"] or row["txn_index_empty"] is not None:
        return None
    denied = "; announced as empty" if row["announced_txn_index_empty"] else ""
    return f"entries for {row['abort_marker_count']} abort markers{denied}", "no entry"


def _txn_index_promised(segment: _Segment) -> Texts | None:
    """Brokers never write false. So a missing value means something only after this partition's first true."""
    row = segment.row
    if not segment.is_read or row["abort_marker_count"] != 0 or not row["txn_index_empty"]:
        return None
    first, start = segment.of_partition.announces_empty_from_offset, row["announced_start_offset"]
    is_promised = row["announced_txn_index_empty"] is False
    if row["announced_txn_index_empty"] is None:
        is_promised = first is not None and start is not None and start > first
    return ("aborted transactions", "no abort marker") if is_promised else None


def _log_damaged(segment: _Segment) -> Texts | None:
    holes, files = segment.row["holes"], segment.row["damaged_files"]
    if not segment.is_read or not holes:
        return None
    ends = ("an unknown end" if hole["to_offset"] is None else hole["to_offset"] for hole in holes)
    lost = _joined(f"{hole['from_offset']} to {end}" for hole, end in zip(holes, ends, strict=True))
    return "sound batches", "; ".join([f"offsets {lost} lost", *(files or ())])


def _side_file_damaged(segment: _Segment) -> Texts | None:
    row, files = segment.row, segment.row["damaged_files"] or []
    if not segment.is_read or row["holes"] is not None or len(files) <= len(row["missing_kinds"]):
        return None
    return "files that agree with the log", "; ".join(files)


def _outside_lineage(segment: _Segment) -> Texts | None:
    row = segment.row
    if row["is_within_lineage"] is not False or row["not_served_reason"] == _BELOW_LOG_START:
        return None
    epochs: Sequence[Row] | None = row["segment_leader_epochs"]
    texts = [f"{each['leader_epoch']} from offset {each['start_offset']}" for each in epochs or ()]
    found = f"leader epochs {_joined(texts)}" if texts else "no leader epochs"
    return "leader epochs of the newest checkpoint", found


def _announcement_lost(segment: _Segment) -> Texts | None:
    """Such a segment is served: its copy was announced as finished, or it is complete and its events are lost."""
    row = segment.row
    is_unplaced = segment.is_finished and row["announced_start_offset"] is None
    waits = row["index_status"] in (IndexStatus.ORPHAN.value, IndexStatus.INCOMPLETE.value)
    is_unnamed = not segment.is_announced and not waits and segment.of_partition.placed_segment_count > 0
    if not row["is_listed"] or not (is_unplaced or is_unnamed):
        return None
    return "COPY_SEGMENT_STARTED with its offsets", segment.event_and_objects


def _orphan(segment: _Segment) -> Texts | None:
    is_lost = segment.is_orphan and not segment.is_just_written
    return ("an event that announces it", segment.objects) if is_lost else None


def _copy_underway(segment: _Segment) -> Texts | None:
    is_underway = (segment.is_orphan and segment.is_just_written) or (segment.is_copying and segment.goes_on)
    return ("COPY_SEGMENT_FINISHED", segment.event_and_objects) if is_underway else None


def _copy_unfinished(segment: _Segment) -> Texts | None:
    is_left = segment.is_copying and not segment.goes_on
    return ("COPY_SEGMENT_FINISHED", segment.event_and_objects) if is_left else None


def _copy_incomplete(segment: _Segment) -> Texts | None:
    row = segment.row
    is_incomplete = row["is_listed"] and row["index_status"] == IndexStatus.INCOMPLETE.value
    return ("every required file", segment.missing) if is_incomplete and not segment.is_announced else None


def _deletion_underway(segment: _Segment) -> Texts | None:
    is_underway = segment.is_deleting and segment.is_waited_for
    return ("DELETE_SEGMENT_FINISHED", segment.event_and_objects) if is_underway else None


def _deletion_unfinished(segment: _Segment) -> Texts | None:
    is_left = segment.is_deleting and not segment.is_waited_for
    return ("DELETE_SEGMENT_FINISHED", segment.event_and_objects) if is_left else None


def _deleted_but_listed(segment: _Segment) -> Texts | None:
    is_deleted = segment.is_announced and segment.row["state"] == _STATE.DELETE_SEGMENT_FINISHED.name
    return ("no object", segment.objects) if is_deleted and segment.row["is_listed"] else None


def _differ(announced: object, found: object) -> bool:
    """Whether both are known, and differ."""
    return announced is not None and found is not None and announced != found


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


_RULES: dict[DiscrepancyKind, Callable[[_Segment], Texts | None]] = {
    DiscrepancyKind.SEGMENT_MISSING: _segment_missing,
    DiscrepancyKind.FILES_MISSING: _files_missing,
    DiscrepancyKind.SIZE_DIFFERS: _size_differs,
    DiscrepancyKind.START_OFFSET_DIFFERS: _start_offset_differs,
    DiscrepancyKind.END_OFFSET_DIFFERS: _end_offset_differs,
    DiscrepancyKind.MAX_TIMESTAMP_DIFFERS: _max_timestamp_differs,
    DiscrepancyKind.LEADER_EPOCHS_DIFFER: _leader_epochs_differ,
    DiscrepancyKind.TXN_INDEX_DENIED: _txn_index_denied,
    DiscrepancyKind.TXN_INDEX_IN_DOUBT: _txn_index_in_doubt,
    DiscrepancyKind.TXN_INDEX_PROMISED: _txn_index_promised,
    DiscrepancyKind.LOG_DAMAGED: _log_damaged,
    DiscrepancyKind.SIDE_FILE_DAMAGED: _side_file_damaged,
    DiscrepancyKind.OUTSIDE_LINEAGE: _outside_lineage,
    DiscrepancyKind.ANNOUNCEMENT_LOST: _announcement_lost,
    DiscrepancyKind.ORPHAN: _orphan,
    DiscrepancyKind.COPY_UNDERWAY: _copy_underway,
    DiscrepancyKind.COPY_UNFINISHED: _copy_unfinished,
    DiscrepancyKind.COPY_INCOMPLETE: _copy_incomplete,
    DiscrepancyKind.DELETION_UNDERWAY: _deletion_underway,
    DiscrepancyKind.DELETION_UNFINISHED: _deletion_unfinished,
    DiscrepancyKind.DELETED_BUT_LISTED: _deleted_but_listed,
}
