"""Write a segment's offset and time index as a broker does while it appends, restarts, truncates and recovers.

A model of Kafka's LogSegment that knows batches by their numbers only. It shares no code with coldlog. `AppendedBatch`
has what LogSegment sees of a batch; `max_timestamp_at` is the offset that a leader up to Kafka 3.7 adds to the time
index: that of the record itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NO_TIMESTAMP_MS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedBatch:
    """A batch as the log sees it."""

    base_offset: int
    last_offset: int
    size_bytes: int
    max_timestamp_ms: int
    max_timestamp_at: int


@dataclass(slots=True, kw_only=True)
class SegmentLogModel:
    """A segment that is written. `names_records`: the time index has offsets of records, as leaders up to 3.7 write."""

    base_offset: int
    index_interval_bytes: int
    names_records: bool = False
    batches: list[AppendedBatch] = field(default_factory=list)
    offset_entries: list[tuple[int, int]] = field(default_factory=list)
    time_entries: list[tuple[int, int]] = field(default_factory=list)
    _largest: tuple[int, int] = (NO_TIMESTAMP_MS, 0)
    _since_entry: int = 0

    @property
    def size_bytes(self) -> int:
        """The bytes of the log."""
        return sum(batch.size_bytes for batch in self.batches)

    def append(self, batches: Sequence[AppendedBatch]) -> None:
        """Append batches at once: one for a leader, a fetched set for a follower."""
        position = self.size_bytes
        for batch in batches:
            if batch.max_timestamp_ms > self._largest[0]:
                at = batch.max_timestamp_at if self.names_records else batch.last_offset
                self._largest = (batch.max_timestamp_ms, at)
        self.batches += batches
        if self._since_entry > self.index_interval_bytes:
            self.offset_entries.append((batches[-1].last_offset, position))
            self._add_time()
            self._since_entry = 0
        self._since_entry += sum(batch.size_bytes for batch in batches)

    def close(self) -> None:
        """Close the segment, or stop the broker: the largest timestamp is added, and a restart counts from 0 bytes."""
        self._add_time()
        self._since_entry = 0

    def truncate(self, offset: int) -> None:
        """Remove the batches from the one that holds `offset` on, as a follower of a new leader does."""
        self.offset_entries = [entry for entry in self.offset_entries if entry[0] < offset]
        self.time_entries = [entry for entry in self.time_entries if entry[1] < offset]
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self._since_entry = 0
        self._largest = self.time_entries[-1] if self.time_entries else (NO_TIMESTAMP_MS, self.base_offset)
        for batch in self.batches:
            if batch.max_timestamp_ms > self._largest[0]:
                self._largest = (batch.max_timestamp_ms, batch.last_offset)

    def recover(self) -> None:
        """Write both indexes anew from the log, as after a crash."""
        batches, self.batches = self.batches, []
        self.offset_entries, self.time_entries = [], []
        self._largest, self.names_records = (NO_TIMESTAMP_MS, self.base_offset), False
        last_entry = 0
        for batch in batches:
            position = self.size_bytes
            if batch.max_timestamp_ms > self._largest[0]:
                self._largest = (batch.max_timestamp_ms, batch.last_offset)
            if position - last_entry > self.index_interval_bytes:
                self.offset_entries.append((batch.last_offset, position))
                self._add_time()
                last_entry = position
            self.batches.append(batch)
        self.close()

    def _add_time(self) -> None:
        if self._largest[0] > (self.time_entries[-1][0] if self.time_entries else NO_TIMESTAMP_MS):
            self.time_entries.append(self._largest)
