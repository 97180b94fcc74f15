"""Read and write a segment's offset index: the position at which to start reading the log for an offset.

Entry, 8 bytes, big endian (org.apache.kafka.storage.internals.log.OffsetIndex):

    int32 relative_offset   last offset of what was appended at once, minus the segment's base offset
    int32 position          where that begins in the .log file

A leader appends one batch at once. A follower appends a fetched set of batches; before Kafka 3.9.1, and in 4.0.0, its
entry names the last offset of the set and the position of the set's first batch (KAFKA-806). Later followers write
entries as a leader does. A lookup is right for both: it takes the last entry at or below an offset and reads on.

Sparse: one entry after every `index.interval.bytes` of log. An empty file is an index without entries. Offsets and
positions ascend strictly (Kafka refuses to append anything else).

Zero entries at the end are the preallocated tail of a segment that was not closed. They are removed and counted as
`padding_bytes`. Kafka never writes the entry (0, 0): the batch at position 0 has no entry.

Refused (OFFSET_INDEX_INVALID): a size that is not a multiple of 8, negative fields, offsets or positions that do not
ascend, an offset beyond int64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coldlog.errors import Reason, UsageError
from coldlog.formats.kafka.index_entries import (
    INT32_MAX,
    INT64_MAX,
    IndexFileFormat,
    Int64Column,
    count_used_entries,
    find_not_ascending,
    find_out_of_range,
    read_column,
)

OFFSET_INDEX_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_FORMAT = IndexFileFormat(name="offset index", entry_type=OFFSET_INDEX_ENTRY, reason=Reason.OFFSET_INDEX_INVALID)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OffsetIndex:
    """A segment's offset index by columns (compared by identity: arrays have no single truth value)."""

    base_offset: int
    offsets: Int64Column
    positions: Int64Column
    padding_bytes: int = 0

    @property
    def entry_count(self) -> int:
        """The number of entries without the padding."""
        return len(self.offsets)


def read_offset_index(buffer: memoryview, *, base_offset: int) -> OffsetIndex:
    """All entries of an `.index` file; `base_offset` is the start offset of its segment."""
    entries = _FORMAT.view_entries(buffer)
    used_count = count_used_entries(entries)
    relative_offsets = read_column(entries[:used_count], "relative_offset")
    positions = read_column(entries[:used_count], "position")
    _FORMAT.require_range("offset", relative_offsets, 0, min(INT32_MAX, INT64_MAX - base_offset))
    _FORMAT.require_range("position", positions, 0, INT32_MAX)
    _FORMAT.require_ascending("offset", relative_offsets)
    _FORMAT.require_ascending("position", positions)
    offsets = read_column(entries[:used_count], "relative_offset", added=base_offset)
    padding_bytes = (len(entries) - used_count) * OFFSET_INDEX_ENTRY.itemsize
    return OffsetIndex(base_offset=base_offset, offsets=offsets, positions=positions, padding_bytes=padding_bytes)


def write_offset_index(index: OffsetIndex) -> bytes:
    """The bytes of a closed segment's `.index` file: the entries without padding."""
    relative_offsets = index.offsets - index.base_offset
    for column in (relative_offsets, index.positions):
        slot = find_out_of_range(column, 0, INT32_MAX)
        slot = find_not_ascending(column) if slot is None else slot
        if slot is not None:
            raise UsageError(f"offset index entry {slot} cannot be written: {int(column[slot])} overflows or descends")
    entries = np.empty(index.entry_count, dtype=OFFSET_INDEX_ENTRY)
    entries["relative_offset"] = relative_offsets
    entries["position"] = index.positions
    return entries.tobytes()
