"""Find what is wrong with the events of the metadata topic, as the view `coldlog.archive_problems` does in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.table_rows import Rows, read_columns, read_table

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings

_METADATA_TOPIC = "__remote_log_metadata"
_ADVICE_LOST = (
    "their segments are served as listed; let the topic keep events longer than any tiered topic keeps records "
    "(retention.ms=-1)"
)
_ADVICE_UNREADABLE = "its content is unknown; repair the topic, then read it again into a new warehouse"
_ADVICE_NOT_FOUND = (
    "look for an offset gap next to it; restore its objects, or run again: its deletion may have been announced"
)
_PLACE = ("metadata_partition", "metadata_offset")
_PARTITION = ("topic", "partition", "topic_id")
_SEGMENT = (*_PARTITION, "segment_id")


def event_problems(settings: Settings) -> Rows:
    """Return a row for each event that is lost or cannot be read, and for each segment that was announced as copied,
    is not listed, and whose event with its offsets is lost."""
    events = read_columns(settings, SEGMENT_EVENTS, (*_PLACE, "event_kind", "problem", "event_count"))
    rows = [_of_event(event) for event in events.filter(pc.is_valid(events["problem"])).to_pylist()]
    incomplete = _incomplete(events)
    return [*rows, *_not_found(settings, incomplete)] if incomplete else rows


def _of_event(event: dict[str, Any]) -> dict[str, Any]:
    is_lost = event["event_kind"] == "lost"
    return {
        "severity": "warning" if is_lost else "error",
        "topic": _METADATA_TOPIC,
        "partition": event["metadata_partition"],
        "start_offset": event["metadata_offset"],
        "segment_id": None,
        "kind": "events_lost" if is_lost else "event_unreadable",
        "expected": "an event of remote log metadata",
        "found": event["problem"],
        "advice": _ADVICE_LOST if is_lost else _ADVICE_UNREADABLE,
        "first_seen_ms": None,
    }


def _incomplete(events: pa.Table) -> list[int]:
    """The partitions of the metadata topic of which a record before the last event is missing, or is no event."""
    counts = pc.fill_null(events["event_count"], 1)
    events = events.set_column(events.schema.get_field_index("event_count"), "event_count", counts)
    readable = events.filter(pc.is_null(events["problem"])).group_by("metadata_partition")
    counted = readable.aggregate([("event_count", "sum"), ("metadata_offset", "max")]).to_pylist()
    return [row["metadata_partition"] for row in counted if row["event_count_sum"] <= row["metadata_offset_max"]]


def _not_found(settings: Settings, incomplete: list[int]) -> Rows:
    from coldlog.tables.definitions.segments import SEGMENTS

    events = read_columns(settings, SEGMENT_EVENTS, (*_PLACE, *_SEGMENT, "event_kind", "state"))
    is_of_segment = pc.is_in(events["event_kind"], pa.array(["segment", "segment_update"]))
    is_wanted = pc.and_(is_of_segment, pc.is_in(events["metadata_partition"], pa.array(incomplete, pa.int32())))
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    announced = set[tuple[Any, ...]]()
    for event in events.filter(is_wanted).to_pylist():
        segment = tuple(event[name] for name in _SEGMENT)
        if event["event_kind"] == "segment":
            announced.add(segment)
        if segment not in last or last[segment]["metadata_offset"] < event["metadata_offset"]:
            last[segment] = event
    lost = {
        segment
        for segment, event in last.items()
        if segment not in announced and event["state"] == "COPY_SEGMENT_FINISHED"
    }
    if not lost:
        return []
    is_end = pc.is_in(events["event_kind"], pa.array(["tombstone", "partition_delete"]))
    ends = events.filter(is_end).to_pylist()
    removed = {
        (end["topic_id"], end["partition"], end["segment_id"]) for end in ends if end["event_kind"] == "tombstone"
    }
    deleted = {(end["topic_id"], end["partition"]) for end in ends if end["state"] == "DELETE_PARTITION_FINISHED"}
    listed = {
        tuple(row[name] for name in _SEGMENT) for row in read_table(settings, SEGMENTS, _SEGMENT, {"is_listed": True})
    }
    return [
        {
            "severity": "error",
            "topic": topic,
            "partition": partition,
            "start_offset": None,
            "segment_id": segment_id,
            "kind": "segment_not_found",
            "expected": "objects of a segment that was copied",
            "found": "COPY_SEGMENT_FINISHED, no object; the event with its offsets is lost",
            "advice": _ADVICE_NOT_FOUND,
            "first_seen_ms": None,
        }
        for topic, partition, topic_id, segment_id in lost - listed
        if (topic_id, partition, segment_id) not in removed and (topic_id, partition) not in deleted
    ]
