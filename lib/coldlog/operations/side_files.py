"""side_files: do a segment's small files agree with its log?

They are read before the log and held against it while it is walked: an offset index must point to the beginning of a
batch and name its last offset; no entry of it or of the time index may lie behind the log's end; a transaction index
may not list more aborts than the log has abort markers; the producer snapshot may know no record behind the log's end,
and the leader epoch checkpoint must know the log's epochs. Such a disagreement means that one of the files is of
another segment or was cut. A log that was cut between two batches shows by nothing else in the archive, and where none
of these files reaches into its last batch (an index has an entry every few kilobytes) not at all; the time index nearly
always does, for its last entry names the last batch that raised the largest timestamp. A time index or checkpoint that
was emptied is refused; an empty offset index is what a short segment has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from coldlog.archive.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.leader_epoch_checkpoint import LeaderEpochCheckpoint, read_leader_epoch_checkpoint
from coldlog.formats.offset_index import OffsetIndex, read_offset_index
from coldlog.formats.producer_snapshot import ProducerSnapshot, read_producer_snapshot
from coldlog.formats.time_index import TimeIndex, read_time_index
from coldlog.formats.txn_index import TxnIndex, read_txn_index
from coldlog.index.segment_index import IndexChunk, SegmentSummary


@dataclass(slots=True, kw_only=True)
class OffsetIndexCheck:
    """Holds the entries of an offset index against the batches as they come."""

    index: OffsetIndex
    object_name: str
    _next_entry: int = field(default=0, init=False)

    def add(self, chunk: IndexChunk) -> None:
        """Every entry up to the end of the chunk names a batch of it."""
        headers = chunk.headers
        if not len(headers):
            return
        end = int(headers.position[-1]) + int(headers.size_bytes[-1])
        stop = int(np.searchsorted(self.index.positions, end))
        positions = self.index.positions[self._next_entry : stop]
        offsets = self.index.offsets[self._next_entry : stop]
        batch = np.minimum(np.searchsorted(headers.position, positions), len(headers) - 1)
        is_wrong = (headers.position[batch] != positions) | (headers.last_offset[batch] != offsets)
        if is_wrong.any():
            entry = int(np.argmax(is_wrong))
            raise self._refusal(
                self._next_entry + entry,
                f"last offset {int(headers.last_offset[batch[entry]])} at byte {int(headers.position[batch[entry]])}",
            )
        self._next_entry = stop

    def finish(self, summary: SegmentSummary) -> None:
        """No entry is left."""
        if self._next_entry < self.index.entry_count:
            raise self._refusal(self._next_entry, f"nothing behind offset {summary.last_offset}, where the log ends")

    def _refusal(self, entry: int, expected: str) -> ArchiveError:
        return ArchiveError(
            Reason.OFFSET_INDEX_INVALID,
            f"offset index does not agree with the log in entry {entry}",
            object_name=self.object_name,
            position=entry * 8,
            expected=expected,
            found=f"last offset {int(self.index.offsets[entry])} at byte {int(self.index.positions[entry])}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFiles:
    """The small files of a segment, read."""

    offset_index_check: OffsetIndexCheck
    time_index: TimeIndex
    txn_index: TxnIndex
    producer_snapshot: ProducerSnapshot
    leader_epoch_checkpoint: LeaderEpochCheckpoint
    names: dict[SegmentFileKind, str]

    def facts(self, summary: SegmentSummary) -> dict[str, object]:
        """What they say, in columns of `segments`. A transaction that the log alone shows to be open counts as open."""
        known = {e.producer_id: e.current_txn_first_offset for e in self.producer_snapshot.entries}
        open_from = {**summary.open_transactions, **{who: offset for who, offset in known.items() if offset >= 0}}
        return {
            "txn_index_empty": self.find_txn_index_empty(summary),
            "leader_epoch_checkpoint": [
                {"leader_epoch": entry.leader_epoch, "start_offset": entry.start_offset}
                for entry in self.leader_epoch_checkpoint.entries
            ],
            "open_transaction_count": len(open_from),
            "open_from_offset": min(open_from.values(), default=None),
        }

    def find_txn_index_empty(self, summary: SegmentSummary) -> bool | None:
        """None (unknown) where the log has abort markers and the index lists none: a marker of a transaction that wrote
        nothing here leaves no entry, and neither does an index that was lost."""
        if self.txn_index.is_empty and summary.abort_marker_count:
            return None
        return self.txn_index.is_empty

    def require_agreement(self, summary: SegmentSummary) -> None:
        """Raises `ArchiveError` where a file promises what the log does not hold, or was emptied."""
        self._require_contents(summary)
        self.offset_index_check.finish(summary)
        if self.time_index.entry_count and int(self.time_index.offsets[-1]) > summary.last_offset:
            raise ArchiveError(
                Reason.TIME_INDEX_INVALID,
                "time index goes on behind the log's end",
                object_name=self.names[SegmentFileKind.TIME_INDEX],
                position=(self.time_index.entry_count - 1) * 12,
                expected=f"offset {summary.last_offset} at most",
                found=f"offset {int(self.time_index.offsets[-1])}",
            )
        self._require_producers(summary)
        self._require_leader_epochs(summary)
        if self.txn_index.entry_count > summary.abort_marker_count:
            raise ArchiveError(
                Reason.TXN_INDEX_INVALID,
                "transaction index lists more aborts than the log has abort markers",
                object_name=self.names[SegmentFileKind.TXN_INDEX],
                expected=f"{summary.abort_marker_count} at most",
                found=str(self.txn_index.entry_count),
            )

    def _require_contents(self, summary: SegmentSummary) -> None:
        """Kafka adds the largest timestamp to the time index when it closes a segment (unless all are -1), and the
        checkpoint that it uploads has a line for the epoch of the segment."""
        if not self.time_index.entry_count and summary.largest_batch_timestamp_ms >= 0:
            raise ArchiveError(
                Reason.TIME_INDEX_INVALID,
                "time index has no entry",
                object_name=self.names[SegmentFileKind.TIME_INDEX],
                expected=f"an entry for timestamp {summary.largest_batch_timestamp_ms}",
                found="0 bytes",
            )
        if not self.leader_epoch_checkpoint.entries and summary.leader_epochs[-1][0] >= 0:
            raise ArchiveError(
                Reason.LEADER_EPOCH_CHECKPOINT_INVALID,
                "leader epoch checkpoint has no entry",
                object_name=self.names[SegmentFileKind.LEADER_EPOCH_CHECKPOINT],
                expected=f"an entry for epoch {summary.leader_epochs[-1][0]}",
                found="none",
            )

    def _require_producers(self, summary: SegmentSummary) -> None:
        last_offset = max((entry.last_offset for entry in self.producer_snapshot.entries), default=-1)
        if last_offset > summary.last_offset:
            raise ArchiveError(
                Reason.LOG_TRUNCATED,
                "producer snapshot of the segment's end knows later records than the log holds",
                object_name=self.names[SegmentFileKind.LOG],
                expected=f"offset {last_offset} at least",
                found=f"offset {summary.last_offset}",
            )

    def _require_leader_epochs(self, summary: SegmentSummary) -> None:
        """No batch is of an epoch that the lineage, which goes up to the segment's end, has passed over."""
        lineage = [entry.leader_epoch for entry in self.leader_epoch_checkpoint.entries]
        for epoch, offset in summary.leader_epochs:
            if lineage and epoch > lineage[0] and epoch not in lineage:
                raise ArchiveError(
                    Reason.LEADER_EPOCH_CHECKPOINT_INVALID,
                    "log holds a leader epoch that the checkpoint does not know",
                    object_name=self.names[SegmentFileKind.LEADER_EPOCH_CHECKPOINT],
                    expected=f"one of {lineage[:20]}",
                    found=f"epoch {epoch} at offset {offset}",
                )


def read_side_files(layout: ArchiveLayout, segment: ListedSegment) -> SideFiles:
    """Reads and checks every small file; `ArchiveError` names the object."""
    names = {listed.kind: listed.name for listed in segment.objects}
    base_offset = segment.start_offset

    def content(kind: SegmentFileKind) -> memoryview:
        if kind is SegmentFileKind.TXN_INDEX and not layout.has_file(segment, kind):
            return memoryview(b"")
        return layout.read_small_file(segment, kind)

    kind = SegmentFileKind.OFFSET_INDEX
    try:
        offset_index = read_offset_index(content(kind), base_offset=base_offset)
        kind = SegmentFileKind.TIME_INDEX
        time_index = read_time_index(content(kind), base_offset=base_offset)
        kind = SegmentFileKind.TXN_INDEX
        txn_index = read_txn_index(content(kind), base_offset=base_offset)
        kind = SegmentFileKind.PRODUCER_SNAPSHOT
        producer_snapshot = read_producer_snapshot(content(kind))
        kind = SegmentFileKind.LEADER_EPOCH_CHECKPOINT
        leader_epoch_checkpoint = read_leader_epoch_checkpoint(content(kind))
    except ArchiveError as wrong:
        raise wrong if wrong.object_name else wrong.with_object_name(names.get(kind, "")) from wrong
    return SideFiles(
        offset_index_check=OffsetIndexCheck(index=offset_index, object_name=names[SegmentFileKind.OFFSET_INDEX]),
        time_index=time_index,
        txn_index=txn_index,
        producer_snapshot=producer_snapshot,
        leader_epoch_checkpoint=leader_epoch_checkpoint,
        names=names,
    )
