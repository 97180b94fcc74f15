"""Find the first record at or after a timestamp in an interval of a log.

For segments that are indexed at sidecar depth: the tables name the interval that has the answer. It is read with one
ranged read and decoded. The bytes must be those that the index describes: every batch has its checksum, and batches end
at the two offsets between which the interval lies. The bytes may begin with batches before the interval: if one of
these has a match, the time index has a wrong entry, and the first match may be before it. If no record matches, because
no record has the maximum of a header, the rest of the log is searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.limits import DecodeLimits
from coldlog.index.changed_logs import ExpectedEnds, require_leader_epoch, shorter_log
from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.lookups.local.local_tier import FoundOffset
from coldlog.lookups.served_index import FoundInterval

if TYPE_CHECKING:
    from coldlog.formats.kafka.record_batch import BatchHeaders

_WINDOW_BYTES = 4 << 20
"""An interval is as large as what a follower appended at once: a larger one is read by several requests."""


@dataclass(slots=True, kw_only=True)
class IntervalSearch:
    """A search in one log of `log_bytes`, for timestamps in ascending order. `leader_epochs` are the segment's."""

    layout: ArchiveLayout
    segment: ListedSegment
    log_bytes: int
    limits: DecodeLimits
    leader_epochs: Sequence[EpochStart]
    interval: FoundInterval
    timestamps_ms: Sequence[int]
    _found_count: int = field(default=0, init=False)

    def run(self) -> Iterator[FoundOffset]:
        """Yield the first record at or after each timestamp; nothing for a timestamp after all that the segment serves.

        A later timestamp has no record if an earlier one has none. Raise `ArchiveError` for damage and for another log
        than the indexed one. What was found before still counts: asked alone, these timestamps need no further bytes.
        """
        interval, position, needed = self.interval, self.interval.position, 0
        next_offset, interval_end = self.segment.start_offset, interval.position + interval.size_bytes
        expected = self._expected()
        while self._is_open and position < self.log_bytes and next_offset <= interval.to_offset:
            border = interval_end if position < interval_end else self.log_bytes
            until = min(position + max(_WINDOW_BYTES, needed), border)
            window, headers, needed = self._read(position, until, next_offset=next_offset, is_last=until == border)
            if until < border and len(headers):
                # The offsets of a batch are certain only if the next one follows: the last one is read again with it.
                needed = until - position + _WINDOW_BYTES if len(headers) == 1 else 0
                headers = headers.slice(0, len(headers) - 1)
            if not len(headers):
                continue
            next_offset = int(headers.last_offset[-1]) + 1
            expected.check(headers)
            if until == interval_end:
                expected.finish(interval.position)
            yield from self._search(window, headers, position)
            position = int(headers.position[-1]) + int(headers.size_bytes[-1])

    @property
    def _is_open(self) -> bool:
        return self._found_count < len(self.timestamps_ms)

    def _expected(self) -> ExpectedEnds:
        """Return what the index tells of the interval. Other batches say nothing about the answer."""
        interval = self.interval
        ends = {interval.last_offset} - {interval.end_offset}
        if interval.position:
            ends.add(interval.after_offset)
        return ExpectedEnds(offsets=ends, end_offset=interval.end_offset)

    def _read(
        self, position: int, until: int, *, next_offset: int, is_last: bool
    ) -> tuple[memoryview, BatchHeaders, int]:
        # Imported here, because compiled functions take longer to import than most answers.
        from coldlog.formats.kafka.record_batch import read_batch_headers

        window = self.layout.read_log_range(self.segment, position, until - position)
        if len(window) < until - position:
            raise shorter_log(position + len(window), f"{until} bytes", f"{position + len(window)} bytes")
        read = read_batch_headers(
            window,
            position=position,
            next_offset=next_offset,
            is_last=is_last,
            max_batch_bytes=self.limits.max_batch_bytes,
        )
        return window, read.headers, read.needed_bytes

    def _search(self, window: memoryview, headers: BatchHeaders, position: int) -> Iterator[FoundOffset]:
        """Search the batches in order; only those are decoded whose header has a timestamp that is still sought."""
        from coldlog.formats.kafka.sections import SectionReader
        from coldlog.index.stairs import RunningMaximum
        from coldlog.lookups.search.window_search import iter_stairs

        first, last = self.interval.from_offset, self.interval.to_offset
        sections, running = SectionReader(limits=self.limits), RunningMaximum(counted_from_offset=first)
        is_served = (headers.last_offset >= first) & (headers.base_offset <= last) & (headers.record_count > 0)
        maxima = headers.max_timestamp_ms.tolist()
        for batch in is_served.nonzero()[0].tolist():
            if not self._is_open:
                return
            if maxima[batch] >= self.timestamps_ms[self._found_count]:
                one = headers.slice(batch, batch + 1)
                where = int(one.position[0]), int(one.base_offset[0]), int(one.leader_epoch[0])
                require_leader_epoch(self.leader_epochs, *where)
                for stair in iter_stairs(window, one, position, sections, running):
                    if stair.offset <= last:
                        yield from self._take(stair)

    def _take(self, stair: FoundOffset) -> Iterator[FoundOffset]:
        sought = self.timestamps_ms
        while self._is_open and sought[self._found_count] <= stair.timestamp_ms:
            if stair.offset <= self.interval.after_offset:
                raise self._wrong_time_index(stair, sought[self._found_count])
            self._found_count += 1
            yield stair

    def _wrong_time_index(self, earlier: FoundOffset, sought_ms: int) -> ArchiveError:
        return ArchiveError(
            Reason.TIME_INDEX_INVALID,
            "time index does not agree with the log",
            object_name=self.segment.object_name_of(SegmentFileKind.TIME_INDEX),
            expected=f"no timestamp of {sought_ms} or later up to offset {self.interval.after_offset}",
            found=f"timestamp {earlier.timestamp_ms} at offset {earlier.offset}",
        )
