"""Make batches of a log that goes on after an archive, and what the archive planned for an offset there."""

from __future__ import annotations

from builders.segment_builder import Batch, Record
from coldlog.formats.limits import DecodeLimits
from coldlog.model.fetch import FetchedRecords, PartitionEnds

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
OF_ARCHIVE = FetchedRecords(
    records=(), next_offset=-1, ends=PartitionEnds(log_start_offset=0, end_offset=0, last_stable_offset=0), read_bytes=0
)
"""What an archive planned."""


def batch_at(base_offset: int, count: int, producer_id: int = -1) -> Batch:
    """A batch whose values are its offsets; with a producer, part of a transaction."""
    is_transactional = producer_id >= 0
    return Batch(
        base_offset=base_offset,
        records=tuple(Record(timestamp_ms=base_offset, value=b"%d" % (base_offset + at)) for at in range(count)),
        is_transactional=is_transactional,
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1,
    )
