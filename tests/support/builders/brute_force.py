"""Find the first offset at or after a timestamp by checking every record.

Uses the builder's model, never bytes. There are two rules:

- exact: the lowest offset at or after the log start offset with a timestamp >= T, over all segments;
- broker compatible, as Kafka 4.2.1 answers: in the order of start offsets, only the first segment is searched whose
  maximum in the metadata is >= T and whose end offset is not below the log start offset, even if it has no match.
  Batches with a lower maximum in their header are skipped.

Both rules count records of control batches and of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from builders.segment_builder import PlacedRecord, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOffset:
    """An answer to ListOffsets."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def find_first_offset(
    segments: Sequence[Segment], timestamp_ms: int, *, log_start_offset: int = 0
) -> FoundOffset | None:
    """The exact rule."""
    records = [record for segment in _by_start_offset(segments) for record in segment.placed_records]
    return _first(records, timestamp_ms, log_start_offset)


def find_first_offset_as_broker(
    segments: Sequence[Segment], timestamp_ms: int, *, log_start_offset: int = 0
) -> FoundOffset | None:
    """The broker compatible rule."""
    for segment in _by_start_offset(segments):
        if segment.metadata_max_timestamp_ms >= timestamp_ms and segment.end_offset >= log_start_offset:
            batches = [batch for batch in segment.batches if batch.max_timestamp_ms >= timestamp_ms]
            records = [record for batch in batches for record in batch.placed_records]
            return _first(records, timestamp_ms, log_start_offset)
    return None


def list_stairs(records: Iterable[PlacedRecord], *, from_offset: int = 0) -> list[PlacedRecord]:
    """The records from an offset on with a higher timestamp than every earlier record: strict prefix maxima."""
    stairs: list[PlacedRecord] = []
    for record in records:
        if record.offset >= from_offset and (not stairs or record.timestamp_ms > stairs[-1].timestamp_ms):
            stairs.append(record)
    return stairs


def _by_start_offset(segments: Sequence[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda segment: segment.start_offset)


def _first(records: Iterable[PlacedRecord], timestamp_ms: int, log_start_offset: int) -> FoundOffset | None:
    for record in records:
        if record.offset >= log_start_offset and record.timestamp_ms >= timestamp_ms:
            return FoundOffset(offset=record.offset, timestamp_ms=record.timestamp_ms, leader_epoch=record.leader_epoch)
    return None
