"""Read the records of a whole partition as a consumer would get them.

The served segments are read in order, directly from the archive. With READ_COMMITTED, records of aborted transactions
are skipped, and reading stops at the first offset of a transaction whose end is not archived: that is the partition's
stable offset, or before a gap. It is unknown whether it was aborted. `stop` says where and why a reading ends. Control
records are never returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.layouts.log_windows import LogWindow
from coldlog.errors import UsageError
from coldlog.formats.kafka.records import Record, iter_records
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.served_index import ServedIndex
from coldlog.model.states import IsolationLevel
from coldlog.records.aborted_transactions import NOTHING_ABORTED, AbortedTransactions
from coldlog.records.segment_windows import iter_segment_windows
from coldlog.records.source.archived_log import (
    ArchivedLogs,
    ServedSegment,
    list_source_files,
    undecided_offsets,
)
from coldlog.tables.delta.warehouse import Warehouse


class StopReason(StrEnum):
    """Why a reading ends."""

    ARCHIVE_END = "archive_end"
    OPEN_TRANSACTION = "open_transaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The offset before which a reading ends, and the reason."""

    offset: int
    reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReader:
    """A partition as it was served when the reader was made. It can be read several times."""

    layout: ArchiveLayout
    limits: DecodeLimits
    window_bytes: int
    segments: Sequence[ServedSegment]
    aborted: AbortedTransactions
    stop: Stop

    def iter_records(self) -> Iterator[Record]:
        """Yield every record up to `stop`, by offset. Raise `ArchiveError` if the archive has changed since."""
        sections = SectionReader(limits=self.limits)
        for served in self.segments:
            if served.from_offset >= self.stop.offset:
                return
            end, limits = served.end_position, self.limits
            end = self.layout.log_size_bytes(served.segment) if end is None else end
            for window in iter_segment_windows(
                self.layout, served.segment, served.position, end, limits=limits, window_bytes=self.window_bytes
            ):
                yield from self._read_batches(window, served, sections)

    def _read_batches(self, window: LogWindow, served: ServedSegment, sections: SectionReader) -> Iterator[Record]:
        headers, last = window.headers, min(served.to_offset, self.stop.offset - 1)
        is_wanted = (headers.last_offset >= served.from_offset) & (headers.base_offset <= last) & ~headers.is_control
        is_aborted = headers.is_transactional & self.aborted.hold(headers.producer_id, headers.base_offset)
        for record in iter_records(window.content, headers.where(is_wanted & ~is_aborted), window.position, sections):
            if served.from_offset <= record.offset <= last:
                yield record


def open_partition(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    topic: str,
    partition: int,
    isolation_level: IsolationLevel,
    *,
    limits: DecodeLimits,
    window_bytes: int,
) -> PartitionReader:
    """Open the current incarnation of a partition. Raise `UsageError` if the archive does not have the partition."""
    files = list_source_files(warehouse.uri, warehouse.as_of_ms)
    with closing(ServedIndex(files.lookups)) as index, closing(ArchivedLogs(files)) as logs:
        facts = index.find_facts(topic, partition)
        if facts is None:
            raise UsageError(f"the archive has no partition {topic}-{partition}")
        segments = logs.served_segments(topic, partition, facts.topic_id)
        is_committed = isolation_level is IsolationLevel.READ_COMMITTED
        aborted = logs.aborted(topic, partition, facts.topic_id, segments) if is_committed else NOTHING_ABORTED
    end = -1 if facts.latest_tiered_offset is None else facts.latest_tiered_offset
    stable = end + 1 if facts.stable_offset is None else facts.stable_offset
    stable = min([stable, *(begin for begin, _ in undecided_offsets(segments))])
    stops_early = is_committed and stable <= end
    return PartitionReader(
        layout=layout,
        limits=limits,
        window_bytes=window_bytes,
        segments=segments,
        aborted=aborted,
        stop=Stop(
            offset=stable if stops_early else end + 1,
            reason=StopReason.OPEN_TRANSACTION if stops_early else StopReason.ARCHIVE_END,
        ),
    )
