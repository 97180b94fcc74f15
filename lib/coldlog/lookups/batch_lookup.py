"""batch_lookup: which record of a batch is the first at or after a timestamp?

For segments indexed at batch depth: the tables name the one batch that holds the answer, and exactly that batch is
read from the archive, by a ranged read, once for all requests that need it, and decoded. A batch that cannot be read
gives its requests an error and harms no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from coldlog.archive.layout import ArchiveLayout, ListedSegment, SegmentFileKind, SegmentObject
from coldlog.errors import ArchiveError, RetriableError
from coldlog.formats.limits import DecodeLimits
from coldlog.formats.record_batch import Int64Column, read_batch_headers
from coldlog.formats.sections import SectionReader
from coldlog.index.stairs import RunningMaximum, find_stairs

CORRUPT_MESSAGE = "CORRUPT_MESSAGE"
KAFKA_STORAGE_ERROR = "KAFKA_STORAGE_ERROR"
FOUND_DDL = "request_index BIGINT, offset BIGINT, offset_timestamp_ms BIGINT, leader_epoch INT, error STRING"
_FOUND_SCHEMA = pa.schema(
    [
        ("request_index", pa.int64()),
        ("offset", pa.int64()),
        ("offset_timestamp_ms", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """Runs in tasks over the rows of batches_for_timestamps."""

    layout: ArchiveLayout
    limits: DecodeLimits

    def search(self, placed: DataFrame) -> DataFrame:
        """A row a request, in the columns of `FOUND_DDL`."""
        return (
            placed.repartition("segment_id", "position")
            .sortWithinPartitions("segment_id", "position")
            .mapInArrow(self, schema=FOUND_DDL)
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            by_place: dict[tuple[str, int], list[dict[str, object]]] = {}
            for row in batch.to_pylist():
                by_place.setdefault((row["segment_id"], row["position"]), []).append(row)
            found = [answer for rows in by_place.values() for answer in self._search_one(rows)]
            yield pa.RecordBatch.from_pylist(found, schema=_FOUND_SCHEMA)

    def _search_one(self, rows: list[dict[str, object]]) -> list[dict[str, object]]:
        try:
            timestamps, offsets, leader_epoch = self._read_stairs(rows[0])
        except (ArchiveError, RetriableError) as failed:
            error = CORRUPT_MESSAGE if isinstance(failed, ArchiveError) else KAFKA_STORAGE_ERROR
            return [{"request_index": row["request_index"], "error": error} for row in rows]
        answers = []
        for row in rows:
            at = int(np.searchsorted(timestamps, int(str(row["timestamp_ms"]))))
            is_found = at < len(timestamps)
            answers.append(
                {
                    "request_index": row["request_index"],
                    "offset": int(offsets[at]) if is_found else None,
                    "offset_timestamp_ms": int(timestamps[at]) if is_found else None,
                    "leader_epoch": leader_epoch if is_found else None,
                }
            )
        return answers

    def _read_stairs(self, row: dict[str, object]) -> tuple[Int64Column, Int64Column, int]:
        """Timestamps and offsets of the batch's stairs, counted from where its segment is, and its leader epoch."""
        position, size_bytes = int(str(row["position"])), int(str(row["size_bytes"]))
        window = self.layout.read_log_range(listed_segment(row), position, size_bytes)
        read = read_batch_headers(
            window, position=position, next_offset=0, is_last=True, max_batch_bytes=self.limits.max_batch_bytes
        )
        running = RunningMaximum(counted_from_offset=int(str(row["counted_from_offset"])))
        reader = SectionReader(limits=self.limits)
        for sections in reader.iter_sections(window, read.headers, position):
            stairs, _ = find_stairs(sections, read.headers, running)
            return stairs.timestamp_ms, stairs.offset, int(read.headers.leader_epoch[0])
        return np.empty(0, np.int64), np.empty(0, np.int64), -1


def listed_segment(row: dict[str, object]) -> ListedSegment:
    """The segment of a row with the columns of `segments` that name it and its objects."""
    objects = tuple(
        SegmentObject(
            kind=SegmentFileKind(each["kind"]), name=each["name"], size_bytes=each["size_bytes"], modified_ms=0
        )
        for each in row["objects"]  # type: ignore[attr-defined]  # an Arrow list column
    )
    return ListedSegment(
        topic=str(row["topic"]),
        topic_id=str(row["topic_id"]),
        partition=int(str(row["partition"])),
        start_offset=int(str(row["start_offset"])),
        segment_id=str(row["segment_id"]),
        objects=objects,
        missing_kinds=(),
    )
