"""Index a segment from the small files beside its log, and its announcement, without a byte of the log.

What only the log knows (batches, records, markers, codecs, the smallest timestamp) is NULL. The rest is taken as Kafka
writes it: offsets, leader epochs and the largest timestamp from the announcement, intervals from the offset and time
index (`index.log_intervals`), aborted transactions from the transaction index, open ones from the producer snapshot.

Not fit for this, so that the segment is indexed at batch depth:

- a segment of a mirror: it has no announcement, and its files may be of different times;
- one that was not announced, or announced without leader epochs or with another size;
- one in which the log starts: the largest timestamp after the start is in no file;
- a damaged file, an empty time index, or one whose last entry is not the announced largest timestamp;
- files that name offsets after the segment's announced end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.formats.kafka.txn_index import TxnIndex
from coldlog.index.log_intervals import LogIntervals, find_intervals
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.preceding_segments import EarlierSegments
from coldlog.indexing.builds.settled_transactions import require_known_starts
from coldlog.indexing.builds.side_files import SideFiles, read_side_files
from coldlog.model.states import IndexDepth


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarIndex:
    """The index of one segment, and the values to publish."""

    intervals: LogIntervals
    txn_index: TxnIndex
    facts: dict[str, object]


def find_sidecar_index(earlier: EarlierSegments, work: SegmentWork, stride_bytes: int) -> SidecarIndex | None:
    """Return the index; None if the segment must be indexed at batch depth. A damaged file raises `ArchiveError`."""
    layout, segment = earlier.layout, work.segment
    end_offset, max_timestamp_ms = work.announced_end_offset, work.announced_max_timestamp_ms
    is_announced = end_offset is not None and max_timestamp_ms is not None and bool(work.announced_leader_epochs)
    if layout.is_mirror or not is_announced or work.count_from_offset != segment.start_offset:
        return None
    assert end_offset is not None
    assert max_timestamp_ms is not None
    side_files = read_side_files(layout, segment)
    size_bytes = layout.log_size_bytes(segment)
    if work.announced_size_bytes not in (None, size_bytes):
        return None
    intervals = find_intervals(
        side_files.offset_index_check.index,
        side_files.time_index,
        end_offset=end_offset,
        max_timestamp_ms=max_timestamp_ms,
        log_bytes=size_bytes,
        stride_bytes=stride_bytes,
    )
    if intervals is None or not _is_fit(side_files, end_offset):
        return None
    require_known_starts(earlier, segment, side_files)
    facts = _facts(layout, work, side_files, size_bytes, end_offset, max_timestamp_ms)
    return SidecarIndex(intervals=intervals, txn_index=side_files.txn_index, facts=facts)


def _is_fit(side_files: SideFiles, end_offset: int) -> bool:
    """Whether the files are sound and name no offset after the segment's end."""
    aborted = side_files.txn_index.last_offsets.tolist()
    produced = [entry.last_offset for entry in side_files.producer_snapshot.entries]
    is_within = max([*aborted, *produced], default=-1) <= end_offset
    is_within &= min(aborted, default=side_files.start_offset) >= side_files.start_offset
    return is_within and not side_files.damages and bool(side_files.leader_epoch_checkpoint.entries)


def _facts(
    layout: ArchiveLayout,
    work: SegmentWork,
    side_files: SideFiles,
    size_bytes: int,
    end_offset: int,
    max_timestamp_ms: int,
) -> dict[str, object]:
    listed_bytes = work.segment.listed_log_size_bytes
    entries = side_files.producer_snapshot.entries
    open_from = [entry.current_txn_first_offset for entry in entries if entry.has_open_transaction]
    return {
        "end_offset": end_offset,
        "size_bytes": size_bytes if listed_bytes is None else listed_bytes,
        "max_timestamp_ms": max_timestamp_ms,
        "metadata_max_timestamp_ms": max_timestamp_ms,
        "segment_leader_epochs": [
            {"leader_epoch": epoch, "start_offset": offset} for epoch, offset in work.announced_leader_epochs
        ],
        "txn_index_empty": side_files.txn_index.is_empty,
        "index_depth": IndexDepth.SIDECAR.value,
        "counted_from_offset": work.count_from_offset,
        "counted_max_timestamp_ms": max_timestamp_ms,
        "leader_epoch_checkpoint": [asdict(entry) for entry in side_files.leader_epoch_checkpoint.entries],
        "open_transaction_count": len(open_from),
        "open_from_offset": min(open_from, default=None),
        "log_bytes": 0,
        "stair_count": 0,
        "replaces_build_numbers": list(work.replaces_build_numbers),
        "holes": None,
    }
