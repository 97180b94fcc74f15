"""Make the rows that say which segments a build reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.indexing.builds.build_plan import ADDED_COLUMNS, WORK_COLUMNS, SegmentWork, WorkTable
from coldlog.tables.definitions.segments import SEGMENTS

_TYPES = dict(zip(ADDED_COLUMNS, (pa.int64(), pa.bool_(), pa.bool_()), strict=True))
_SCHEMA = pa.schema(
    [
        *(SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in WORK_COLUMNS),
        *_TYPES.items(),
    ]
)


def work_rows(rows: Iterable[Mapping[str, object]]) -> pa.Table:
    """As `WorkTable.of` takes them; what a row does not have is NULL."""
    return pa.Table.from_pylist([{name: row.get(name) for name in _SCHEMA.names} for row in rows], schema=_SCHEMA)


def works_of(segments: Iterable[ListedSegment]) -> WorkTable:
    """Listed segments, counted from their starts."""
    return WorkTable.of(
        work_rows(
            {
                "topic": each.topic,
                "topic_id": each.topic_id,
                "partition": each.partition,
                "start_offset": each.start_offset,
                "segment_id": each.segment_id,
                "objects": [
                    {"kind": found.kind.value, "name": found.name, "size_bytes": found.size_bytes, "modified_ms": 0}
                    for found in each.objects
                ],
                "log_modified_ms": 0,
                "count_from_offset": each.start_offset,
            }
            for each in segments
        )
    )


def mirrored_works(segments: Sequence[ListedSegment]) -> list[SegmentWork]:
    """The segments of a directory of a mirror, in order, counted from their starts; the last of them is the last."""
    return [
        SegmentWork(
            segment=each,
            log_modified_ms=0,
            count_from_offset=each.start_offset,
            replaces_build_numbers=(),
            is_last=each is segments[-1],
        )
        for each in segments
    ]
