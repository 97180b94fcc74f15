"""Tell when segments were written, by columns of `segments`.

Of the incarnations of a topic, the current one is that of the segment that was written last (`index.partition_plan`). A
segment is written when its copy starts. Without this event, an event of a segment that is not deleted counts, then the
time of the log object. The time of a deletion says nothing: Kafka deletes the segments of a topic one by one, and a
topic that is created again may be copied meanwhile. It counts only where nothing else is known.

`planned_rows` has the same rule for one row.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

TIME_COLUMNS = ("state", "copy_started_ms", "event_timestamp_ms", "log_modified_ms")
"""The columns that are read."""


def written_ms(segments: pa.Table) -> pa.ChunkedArray:
    """When each segment was written; NULL if that is not known."""
    event_ms = pc.if_else(_is_deleted(segments), None, segments["event_timestamp_ms"])
    return pc.coalesce(segments["copy_started_ms"], event_ms, segments["log_modified_ms"])


def deleted_ms(segments: pa.Table) -> pa.ChunkedArray:
    """The time of the last event of each deleted segment; NULL for others."""
    return pc.if_else(_is_deleted(segments), segments["event_timestamp_ms"], None)


def _is_deleted(segments: pa.Table) -> pa.ChunkedArray:
    return pc.fill_null(pc.starts_with(segments["state"], "DELETE_SEGMENT"), False)
