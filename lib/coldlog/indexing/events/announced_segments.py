"""Fold the events of the metadata topic into the state of each segment.

The fold takes the events of a segment in order, like Kafka's RemoteLogMetadataCache:

- A segment's first event must announce COPY_SEGMENT_STARTED.
- An update changes only state, broker, event time and custom metadata. So txn_index_empty is kept.
- Invalid transitions, and updates of segments that were not announced, are dropped and counted.
- A segment that has reached DELETE_SEGMENT_FINISHED is forgotten. Only a new announcement is valid after that.
- The deletion of a partition goes MARKED, STARTED, FINISHED; other transitions are dropped. When it is finished, every
  segment announced before is forgotten in the same way.

Events of a metadata partition may be missing: retention removed the oldest, compaction (KIP-1266) removed older events
of a key, or a record cannot be read. The offsets show this. Then three more rules apply in that metadata partition:

- An update of a segment whose first event is missing sets its state. Values that only the first event has are NULL.
- A segment may reach DELETE_SEGMENT_FINISHED from any state, and a partition's deletion may reach any later state.
- A first event may announce any state: it then has the segment's whole state in one record.

A tombstone that names a segment means that its deletion was finished, because Kafka writes it after that. A tombstone
that names no segment (see `remote_log_keys`) changes no state, as in a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coldlog.indexing.events.event_rows import PARTITION_DELETE, SEGMENT, SEGMENT_UPDATE, TOMBSTONE
from coldlog.tables.delta.row_edits import Row

SegmentKey = tuple[str, int, str, str]
"""Topic, partition, topic id and segment id."""
FOLDED_KINDS = (SEGMENT, SEGMENT_UPDATE, PARTITION_DELETE, TOMBSTONE)
"""Kinds of the events that tell of segments."""

_COPYING, _COPIED = "COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"
_DELETING, _DELETED = "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"
_VALID_BEFORE = {
    _COPIED: (_COPYING, _COPIED),
    _DELETING: (_COPYING, _COPIED, _DELETING),
    _DELETED: (_DELETING,),
}
"""From which states an update leads to a state."""
_MARKED, _STARTED, _FINISHED = "DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED"
_VALID_BEFORE_PARTITION = {
    _MARKED: (None, _MARKED, _FINISHED),
    _STARTED: (_MARKED, _STARTED),
    _FINISHED: (_STARTED, _FINISHED),
}
FIRST_COLUMNS = {
    "announced_start_offset": "start_offset",
    "announced_end_offset": "end_offset",
    "announced_max_timestamp_ms": "max_timestamp_ms",
    "announced_size_bytes": "size_bytes",
    "announced_leader_epochs": "segment_leader_epochs",
    "announced_txn_index_empty": "txn_index_empty",
}
"""Columns of a segment's row, and those of its first event that they come from."""
LAST_COLUMNS = ("broker_id", "event_timestamp_ms", "custom_metadata")
"""Those of its last event."""
ANNOUNCED_COLUMNS = (
    *FIRST_COLUMNS, "copy_started_ms", *LAST_COLUMNS, "was_copied", "dropped_event_count"
)  # fmt: skip
"""What a segment's row in `segments` has of its events."""
_PLACE = ("metadata_partition", "metadata_offset")
EVENT_COLUMNS = (
    *_PLACE, "event_kind", "topic", "topic_id", "partition", "segment_id", "state",
    *FIRST_COLUMNS.values(), *LAST_COLUMNS, "problem", "event_count",
)  # fmt: skip


def fold_events(events: Iterable[Row]) -> dict[SegmentKey, Row]:
    """Fold events, in any order, into a row for each segment that they name.

    Events have `EVENT_COLUMNS` and `is_complete`: all records of their metadata partition are present and readable. A
    row has `announced_state`, `ANNOUNCED_COLUMNS`, and the `metadata_partition` and `metadata_offset` of the
    announcement. The state is NULL if no event of the segment was valid; then only `dropped_event_count` has a meaning.
    The announced start offset is NULL if the first event is missing; so is `copy_started_ms` if no event before the
    deletion is left.
    """
    of_segments: dict[tuple[int, str, str], list[Row]] = {}
    of_partitions: dict[tuple[str, int, str], list[Row]] = {}
    for event in sorted(events, key=_place):
        kind = event["event_kind"]
        if kind == PARTITION_DELETE:
            of_partitions.setdefault((event["topic"], event["partition"], event["topic_id"]), []).append(event)
        elif kind in (SEGMENT, SEGMENT_UPDATE, TOMBSTONE) and event["segment_id"] is not None:
            of_segments.setdefault((event["partition"], event["topic_id"], event["segment_id"]), []).append(event)
    finished = {partition: _deletions(deletes) for partition, deletes in of_partitions.items()}
    folded: dict[SegmentKey, Row] = {}
    for (partition, topic_id, segment_id), named in of_segments.items():
        topics = [str(each["topic"]) for each in named if each["topic"] is not None]
        if not topics:  # nothing is known of a segment with only a tombstone
            continue
        topic = max(topics)
        # The end of a partition's deletion is an event of each of its segments.
        ends = finished.get((topic, partition, topic_id), [])
        folded[topic, partition, topic_id, segment_id] = _fold(sorted([*named, *ends], key=_place))
    return folded


def _place(event: Mapping[str, Any]) -> tuple[int, int]:
    partition, offset = (event[name] for name in _PLACE)
    return partition, offset


def _fold(events: Iterable[Mapping[str, Any]]) -> Row:
    """Fold the events of one segment, in order."""
    first: Mapping[str, Any] | None = None
    last: Mapping[str, Any] | None = None
    state: str | None = None
    was_copied, dropped = False, 0
    for event in events:
        first, last = first or event, last or event
        if event["event_kind"] in (PARTITION_DELETE, TOMBSTONE):
            state = None if state is None else _DELETED
        elif _is_valid(event, state, first):
            if event["event_kind"] == SEGMENT or state is None:
                first = event
            is_first = event["event_kind"] == SEGMENT
            was_copied = event["state"] == _COPIED or (was_copied and not is_first)
            last, state = event, event["state"]
        else:
            dropped += 1
    assert first is not None
    assert last is not None
    return {
        "announced_state": state,
        **{name: first[column] for name, column in FIRST_COLUMNS.items()},
        "copy_started_ms": first["event_timestamp_ms"] if str(first["state"]).startswith("COPY") else None,
        **{name: last[name] for name in LAST_COLUMNS},
        "was_copied": was_copied,
        "dropped_event_count": dropped,
        **{name: first[name] for name in _PLACE},
    }


def _is_valid(event: Mapping[str, Any], state: str | None, first: Mapping[str, Any]) -> bool:
    wanted = event["state"]
    if event["event_kind"] == SEGMENT:
        is_next = wanted == _COPYING and (state in (None, _COPYING, _DELETED) or first["start_offset"] is None)
    else:
        is_next = state is not None and state in _VALID_BEFORE.get(wanted, ())
    if is_next or event["is_complete"] or wanted == _COPYING:
        return is_next
    return state is None or (wanted == _DELETED and state != _DELETED)


def _deletions(events: Iterable[Row]) -> list[Row]:
    """Return the events that finish the deletion of a partition."""
    state: str | None = None
    finished = []
    for event in events:
        wanted = event["state"]
        is_over_hole = state is None or (wanted == _FINISHED and state == _MARKED)
        if state in _VALID_BEFORE_PARTITION[wanted] or (not event["is_complete"] and is_over_hole):
            state = wanted
            if state == _FINISHED:
                finished.append(event)
    return finished
