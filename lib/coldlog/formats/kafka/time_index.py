"""time_index: from which offset on may a timestamp be found, as Kafka's own index says?

Entry, 12 bytes, big endian (org.apache.kafka.storage.internals.log.TimeIndex):

    int64 timestamp_ms      the largest timestamp of the segment so far
    int32 relative_offset   last offset of the batch that reached it first, minus the segment's base offset

Not to be confused with coldlog's table `time_index`, which holds every stair; this file holds a few of them. Timestamps
ascend strictly and are never negative (the first must exceed -1), offsets do not descend: so Kafka's appending code
demands, and so it is checked here, entry by entry. Segments whose timestamps are all -1 have an empty file.

Zero entries at the end are the preallocated tail of a segment that was not closed: they are left out and counted as
`padding_bytes`. The entry (0, 0) is genuine for a first record of 1970: it is kept when another entry follows and when
it is the whole file. In a longer file of zeros it cannot be told from the tail and is dropped, which loses nothing: a
lookup without entries begins at the base offset too.

Refused (TIME_INDEX_INVALID): a size that is no multiple of 12, negative fields, timestamps that do not ascend, offsets
that descend, an offset beyond int64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coldlog.errors import Reason, UsageError
from coldlog.formats.kafka.index_entries import (
    INT32_MAX,
    INT64_MAX,
    Entries,
    IndexFileFormat,
    Int64Column,
    count_used_entries,
    find_not_ascending,
    find_out_of_range,
    read_column,
)

TIME_INDEX_ENTRY = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])
_FORMAT = IndexFileFormat(name="time index", entry_type=TIME_INDEX_ENTRY, reason=Reason.TIME_INDEX_INVALID)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimeIndex:
    """A segment's time index by columns (compared by identity: arrays have no single truth value)."""

    base_offset: int
    timestamps_ms: Int64Column
    offsets: Int64Column
    padding_bytes: int = 0

    @property
    def entry_count(self) -> int:
        """Entries without the padding."""
        return len(self.offsets)

    def offset_at_or_before(self, timestamp_ms: int) -> int:
        """Kafka's lookup: offset of the last entry not above `timestamp_ms`; the base offset if there is none."""
        slot = int(np.searchsorted(self.timestamps_ms, timestamp_ms, side="right")) - 1
        return int(self.offsets[slot]) if slot >= 0 else self.base_offset


def read_time_index(buffer: memoryview, *, base_offset: int) -> TimeIndex:
    """All entries of a `.timeindex` file; `base_offset` is the start offset of its segment."""
    entries = _FORMAT.view_entries(buffer)
    used_count = _count_used(entries)
    timestamps_ms = read_column(entries[:used_count], "timestamp_ms")
    relative_offsets = read_column(entries[:used_count], "relative_offset")
    _FORMAT.require_range("timestamp", timestamps_ms, 0, INT64_MAX)
    _FORMAT.require_range("offset", relative_offsets, 0, min(INT32_MAX, INT64_MAX - base_offset))
    _FORMAT.require_ascending("timestamp", timestamps_ms)
    _FORMAT.require_ascending("offset", relative_offsets, equal_allowed=True)
    return TimeIndex(
        base_offset=base_offset,
        timestamps_ms=timestamps_ms,
        offsets=read_column(entries[:used_count], "relative_offset", added=base_offset),
        padding_bytes=(len(entries) - used_count) * TIME_INDEX_ENTRY.itemsize,
    )


def write_time_index(index: TimeIndex) -> bytes:
    """The bytes of a closed segment's `.timeindex` file: the entries, no padding."""
    relative_offsets = index.offsets - index.base_offset
    wrong = (
        find_out_of_range(relative_offsets, 0, INT32_MAX),
        find_not_ascending(relative_offsets, equal_allowed=True),
        find_out_of_range(index.timestamps_ms, 0, INT64_MAX),
        find_not_ascending(index.timestamps_ms),
    )
    for slot in wrong:
        if slot is not None:
            raise UsageError(f"time index entry {slot} cannot be written: it overflows or descends")
    entries = np.empty(index.entry_count, dtype=TIME_INDEX_ENTRY)
    entries["timestamp_ms"] = index.timestamps_ms
    entries["relative_offset"] = relative_offsets
    return entries.tobytes()


def _count_used(entries: Entries) -> int:
    used_count = count_used_entries(entries)
    return 1 if used_count == 0 and len(entries) == 1 else used_count
