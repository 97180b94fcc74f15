"""The rows of a listing: one per segment, and one per object that the layout does not recognize.

The state of a segment is derived from its files: a copy with all required ones counts as COPY_SEGMENT_FINISHED,
otherwise as COPY_SEGMENT_STARTED (`incomplete`). A directory that cannot be listed is an unrecognized row that has its
partition, which distinguishes it from an empty one. Each row has a digest of its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from coldlog.archive.layouts.layout import BundleKind, ListedSegment, PartitionDirectory, SegmentFileKind
from coldlog.archive.layouts.sorted_entries import unrecognized_directory
from coldlog.errors import ArchiveError
from coldlog.indexing.digests import digest_bytes
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row

LISTED_COLUMNS = ("size_bytes", "objects", "missing_kinds", "log_modified_ms")
LISTED_SCHEMA = pa.schema(
    [
        *(
            SEGMENTS.arrow_schema.field(name).with_nullable(True)
            for name in (
                "topic",
                "partition",
                "topic_id",
                "start_offset",
                "segment_id",
                *LISTED_COLUMNS,
                "state",
                "index_status",
            )
        ),
        ("unrecognized_name", pa.string()),
        ("unrecognized_bytes", pa.int64()),
        ("unrecognized_why", pa.string()),
        ("row_digest", pa.int64()),
        ("directory", pa.string()),
    ]
)
SEGMENT_COLUMNS = tuple(LISTED_SCHEMA.names[:-5])


def is_unlisted(row: Mapping[str, object]) -> bool:
    """Whether the row is of a directory that cannot be listed."""
    return row["unrecognized_name"] is not None and row["topic"] is not None


def rows_of(directory: PartitionDirectory, rows: Iterable[Row]) -> pa.RecordBatch:
    """Add the directory and the digest to each row."""
    digested = [
        {
            **row,
            "row_digest": int.from_bytes(digest_bytes(row)[:8], "big", signed=True),
            "directory": directory.name,
        }
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(digested, schema=LISTED_SCHEMA)


def unlisted_row(directory: PartitionDirectory, wrong: ArchiveError) -> dict[str, object]:
    """Make the row of a directory that cannot be listed; unlike unrecognized objects, it has the partition."""
    shown = unrecognized_directory(directory.name, f"cannot be listed: {wrong}")
    return {
        "topic": directory.topic,
        "partition": directory.partition,
        "topic_id": directory.topic_id,
        "unrecognized_name": shown.name,
        "unrecognized_bytes": shown.size_bytes,
        "unrecognized_why": shown.why,
    }


def listed_row(segment: ListedSegment) -> Row:
    """Make the row of a listed segment, without directory and digest."""
    log = segment.find_object(SegmentFileKind.LOG)
    return {
        "topic": segment.topic,
        "partition": segment.partition,
        "topic_id": segment.topic_id,
        "start_offset": segment.start_offset,
        "segment_id": segment.segment_id,
        "size_bytes": segment.listed_log_size_bytes,
        "objects": [
            {"kind": listed.kind.value, "name": listed.name, "size_bytes": listed.size_bytes}
            for listed in segment.objects
        ],
        "missing_kinds": [kind.value for kind in segment.missing_kinds],
        "log_modified_ms": log.modified_ms if log else None,
        **_listed_state(segment.missing_kinds),
    }


def stored_as_listed(stored: Row) -> Row:
    """Make the `listed_row` from which this row of `segments` has its objects."""
    names = ("topic", "partition", "topic_id", "start_offset", "segment_id", "objects", "missing_kinds")
    sizes = {each["kind"]: each["size_bytes"] for each in stored["objects"]}
    # A build stores the size of a log that only a manifest has.
    has_manifest = BundleKind.MANIFEST.value in {*sizes, *stored["missing_kinds"]}
    return {
        **{name: stored[name] for name in names},
        "size_bytes": None if has_manifest else sizes.get(SegmentFileKind.LOG.value),
        "log_modified_ms": stored["log_modified_ms"],
        **_listed_state(stored["missing_kinds"]),
    }


def _listed_state(missing_kinds: Sequence[object]) -> Row:
    is_whole = not missing_kinds
    state = RemoteLogSegmentState.COPY_SEGMENT_FINISHED if is_whole else RemoteLogSegmentState.COPY_SEGMENT_STARTED
    status = IndexStatus.PENDING if is_whole else IndexStatus.INCOMPLETE
    return {"state": state.name, "index_status": status.value}
