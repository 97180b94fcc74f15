"""segment_build: what comes of reading one segment?

Runs in a task. Reads the segment's small files and walks its log in windows, hands over the index rows as pieces while
it goes, and ends with one outcome piece: indexed, quarantined (the bytes are wrong, with the facts) or unreadable (the
store did not answer; to be tried again). Whatever is wrong with a segment becomes its outcome; the next one follows.

A segment is held to its own side files: the offset index may not point behind the log or beside its batches, the time
index may not promise what the records do not hold, the transaction index may not list more aborts than there are
markers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from coldlog.archive.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.errors import ArchiveError, RetriableError
from coldlog.index.limits import DecodeLimits
from coldlog.model.states import IndexDepth
from coldlog.operations.build_plan import SegmentWork
from coldlog.operations.encoded_rows import OUTCOME, encode_rows
from coldlog.tables.segments import SEGMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How deep to index, how much of a log to hold at once, and what a batch may grow to."""

    depth: IndexDepth
    limits: DecodeLimits
    window_bytes: int


class OutcomeKind(StrEnum):
    """What came of a segment."""

    INDEXED = "indexed"
    QUARANTINED = "quarantined"
    UNREADABLE = "unreadable"


_FROM_SEGMENTS = (
    "topic",
    "partition",
    "topic_id",
    "start_offset",
    "segment_id",
    "end_offset",
    "max_timestamp_ms",
    "max_timestamp_offset",
    "min_timestamp_ms",
    "metadata_max_timestamp_ms",
    "segment_leader_epochs",
    "txn_index_empty",
    "index_depth",
    "counted_from_offset",
    "counted_max_timestamp_ms",
    "counted_max_timestamp_offset",
    "batch_count",
    "record_count",
    "control_batch_count",
    "commit_marker_count",
    "abort_marker_count",
    "codecs",
)
OUTCOME_SCHEMA = pa.schema(
    [
        *(SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in _FROM_SEGMENTS),
        ("outcome", pa.string()),
        ("replaces_build_number", pa.int64()),
        ("log_bytes", pa.int64()),
        ("stair_count", pa.int64()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("object_name", pa.string()),
        ("position", pa.int64()),
        ("expected", pa.string()),
        ("found", pa.string()),
    ]
)


def build_segments(layout: ArchiveLayout, works: list[SegmentWork], options: BuildOptions) -> Iterator[pa.RecordBatch]:
    """The pieces of every segment of `works`, each segment's outcome last."""
    for work in works:
        try:
            facts = yield from _index_one(layout, work, options)
            outcome: dict[str, object] = {"outcome": OutcomeKind.INDEXED.value, **facts}
        except ArchiveError as wrong:
            outcome = {"outcome": OutcomeKind.QUARANTINED.value, **_facts_of(wrong, work.segment)}
        except RetriableError as unanswered:
            outcome = {"outcome": OutcomeKind.UNREADABLE.value, "message": str(unanswered)}
        row = {**_key_of(work.segment), "log_bytes": work.log_bytes, **outcome}
        yield encode_rows(OUTCOME, work.segment, pa.RecordBatch.from_pylist([row], schema=OUTCOME_SCHEMA))


def _key_of(segment: ListedSegment) -> dict[str, object]:
    return {
        "topic": segment.topic,
        "partition": segment.partition,
        "topic_id": segment.topic_id,
        "start_offset": segment.start_offset,
        "segment_id": segment.segment_id,
    }


def _facts_of(wrong: ArchiveError, segment: ListedSegment) -> dict[str, object]:
    log = segment.find_object(SegmentFileKind.LOG)
    return {
        "reason": wrong.reason.value,
        "message": wrong.message,
        "object_name": wrong.object_name or (log.name if log else ""),
        "position": wrong.position,
        "expected": wrong.expected,
        "found": wrong.found,
    }
