"""Read and write a segment's time index: the offset at which to start searching for a timestamp.

Entry, 12 bytes, big endian (org.apache.kafka.storage.internals.log.TimeIndex):

    int64 timestamp_ms      the largest timestamp of the segment so far
    int32 relative_offset   last offset of the batch that reached it first, minus the segment's base offset

coldlog's table `time_index` is different: it has every stair, this file has a few of them. Timestamps ascend strictly
and are never negative (the first must exceed -1), offsets do not descend: Kafka's code for appending requires this, and
every entry is checked here. A segment in which all timestamps are -1 has an empty file.

Zero entries at the end are the preallocated tail of a segment that was not closed. They are removed and counted as
`padding_bytes`. The entry (0, 0) is valid for a first record of 1970. It is kept if another entry follows, or if it is
the whole file. In a longer file of zeros it cannot be distinguished from the tail and is removed; this changes no
result, because a lookup without entries also begins at the base offset.

Refused (TIME_INDEX_INVALID): a size that is not a multiple of 12, negative fields, timestamps that do not ascend,
offsets that descend, an offset beyond int64.
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
        """The number of entries without the padding."""
        return len(self.offsets)

    def offset_at_or_before(self, timestamp_ms: int) -> int:
        """Kafka's lookup: the offset of the last entry of at most `timestamp_ms`; the base offset if there is none."""
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
    """The bytes of a closed segment's `.timeindex` file: the entries without padding."""
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
