"""side_files: do a segment's small files agree with its log?

They are read before the log and held against it while it is walked: the entries of the indexes must name what the log
holds (`index_checks` has the rules), and none may lie behind the log's end; the producer snapshot may know no record
behind the log's end, and must know the log's last batch, if it knows its producer, by its last offset; the leader epoch
checkpoint must know the log's epochs. Such a disagreement means that one of the files is of another segment or was cut,
or that an offset in the log is wrong. A log that was cut between two batches shows by nothing else in the archive, and
where none of these files reaches into its last batch (an index has an entry every few kilobytes; that of a follower,
for each set that it fetched) not at all; the time index nearly always does, for its last entry names the last batch
that raised the largest timestamp. A time index or checkpoint that was emptied is refused; an empty offset index is
what a short segment has.

A mirror's files are copied one by one, and any but the log may be missing; what is missing is not held against the log.
Indexes of the last segment of a mirror are not read: the log may have been copied before or after them. The checkpoint
is the partition's as it is now: its entries behind the segment's end are left out; if some are left, epochs of the log
that are newer come from the batches. Aborted transactions come from the log where neither a
transaction index nor a producer snapshot was copied (with a snapshot, a missing index is one that the broker never
wrote), and what they begin in earlier segments as `preceding_segments` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import numpy as np

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.leader_epoch_checkpoint import LeaderEpochCheckpoint, read_leader_epoch_checkpoint
from coldlog.formats.kafka.offset_index import read_offset_index
from coldlog.formats.kafka.producer_snapshot import ProducerSnapshot, read_producer_snapshot
from coldlog.formats.kafka.time_index import TimeIndex, read_time_index
from coldlog.formats.kafka.txn_index import TxnIndex, read_txn_index
from coldlog.index.index_checks import OffsetIndexCheck, TimeIndexCheck, TxnIndexCheck
from coldlog.index.segment_index import IndexChunk
from coldlog.index.segment_summary import SegmentSummary

_OFFSET_AND_TIME_INDEX = frozenset({SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX})
_NOBODY: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFiles:
    """The small files of a segment, read."""

    offset_index_check: OffsetIndexCheck
    time_index_check: TimeIndexCheck
    txn_index_check: TxnIndexCheck
    time_index: TimeIndex
    txn_index: TxnIndex
    producer_snapshot: ProducerSnapshot
    leader_epoch_checkpoint: LeaderEpochCheckpoint
    names: dict[SegmentFileKind, str]
    is_mirror: bool = False

    def add(self, chunk: IndexChunk) -> None:
        """Holds the next batches of the log against the indexes. A mirror's may be of another moment, or compacted."""
        self.offset_index_check.add(chunk)
        if not self.is_mirror:
            self.time_index_check.add(chunk)
            self.txn_index_check.add(chunk)

    def up_to(self, last_offset: int) -> SideFiles:
        """Without aborts behind that offset, for a log that was copied before its transaction index."""
        count = int(np.searchsorted(self.txn_index.last_offsets, last_offset, side="right"))
        columns = {each.name: getattr(self.txn_index, each.name)[:count] for each in fields(TxnIndex)}
        return replace(self, txn_index=TxnIndex(**columns))

    @property
    def is_without_snapshot(self) -> bool:
        """Only the logs can tell which transactions are open at the segment's end."""
        return self.is_mirror and SegmentFileKind.PRODUCER_SNAPSHOT not in self.names

    @property
    def is_without_txn_index(self) -> bool:
        """Only the log can tell which transactions were aborted."""
        return self.is_without_snapshot and SegmentFileKind.TXN_INDEX not in self.names

    def facts(self, summary: SegmentSummary, open_before: Mapping[int, int] = _NOBODY) -> dict[str, object]:
        """What they say, in columns of `segments`. A transaction that the log alone shows to be open counts as open;
        `open_before`: first offsets of those that earlier segments leave open, where there is no snapshot."""
        known = {e.producer_id: e.current_txn_first_offset for e in self.producer_snapshot.entries}
        open_from = {
            **summary.open_transactions,
            **{who: offset for who, offset in known.items() if offset >= 0},
            **{who: offset for who, offset in open_before.items() if who not in summary.ended_producers},
        }
        return {
            "txn_index_empty": self.find_txn_index_empty(summary),
            "leader_epoch_checkpoint": [
                {"leader_epoch": epoch, "start_offset": offset} for epoch, offset in self._iter_lineage(summary)
            ],
            "open_transaction_count": len(open_from),
            "open_from_offset": min(open_from.values(), default=None),
        }

    def _iter_lineage(self, summary: SegmentSummary) -> Iterator[tuple[int, int]]:
        entries = self.leader_epoch_checkpoint.entries
        newest = -1
        for entry in entries:
            if not self.is_mirror or entry.start_offset <= summary.last_offset:
                newest = entry.leader_epoch
                yield entry.leader_epoch, entry.start_offset
        if self.is_mirror and newest >= 0:
            yield from ((epoch, offset) for epoch, offset in summary.leader_epochs if epoch > newest)

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
        if not self.is_mirror:
            self.txn_index_check.finish()

    def _require_contents(self, summary: SegmentSummary) -> None:
        """Kafka adds the largest timestamp to the time index when it closes a segment (unless all are -1), and the
        checkpoint that it uploads has a line for the epoch of the segment."""
        has_time_index = SegmentFileKind.TIME_INDEX in self.names
        if has_time_index and not self.time_index.entry_count and summary.largest_batch_timestamp_ms >= 0:
            raise ArchiveError(
                Reason.TIME_INDEX_INVALID,
                "time index has no entry",
                object_name=self.names[SegmentFileKind.TIME_INDEX],
                expected=f"an entry for timestamp {summary.largest_batch_timestamp_ms}",
                found="0 bytes",
            )
        if not self.is_mirror and not self.leader_epoch_checkpoint.entries and summary.leader_epochs[-1][0] >= 0:
            raise ArchiveError(
                Reason.LEADER_EPOCH_CHECKPOINT_INVALID,
                "leader epoch checkpoint has no entry",
                object_name=self.names[SegmentFileKind.LEADER_EPOCH_CHECKPOINT],
                expected=f"an entry for epoch {summary.leader_epochs[-1][0]}",
                found="none",
            )

    def _require_producers(self, summary: SegmentSummary) -> None:
        last_offsets = {entry.producer_id: entry.last_offset for entry in self.producer_snapshot.entries}
        last_offset = max(last_offsets.values(), default=-1)
        if last_offset > summary.last_offset:
            raise ArchiveError(
                Reason.LOG_TRUNCATED,
                "producer snapshot of the segment's end knows later records than the log holds",
                object_name=self.names[SegmentFileKind.LOG],
                expected=f"offset {last_offset} at least",
                found=f"offset {summary.last_offset}",
            )
        known = last_offsets.get(summary.last_producer_id, summary.last_offset)
        if known != summary.last_offset and not self.is_mirror:
            raise ArchiveError(
                Reason.HEADER_INVALID,
                "producer snapshot of the segment's end knows the last batch by another offset",
                object_name=self.names[SegmentFileKind.LOG],
                position=summary.last_position,
                expected=f"last offset {known}",
                found=f"last offset {summary.last_offset}",
            )

    def _require_leader_epochs(self, summary: SegmentSummary) -> None:
        """No batch is of an epoch that the lineage, which goes up to the segment's end, has passed over. That of a
        mirror was copied at another time."""
        if self.is_mirror:
            return
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


def read_side_files(layout: ArchiveLayout, segment: ListedSegment, *, is_open_ended: bool = False) -> SideFiles:
    """Reads and checks every small file; `ArchiveError` names the object. `is_open_ended`: its log may be cut or grow,
    so that its indexes are of another moment."""
    names = {kind: name for kind in SegmentFileKind if (name := segment.object_name_of(kind))}
    if is_open_ended:
        names = {kind: name for kind, name in names.items() if kind not in _OFFSET_AND_TIME_INDEX}
    base_offset = segment.start_offset

    def content(kind: SegmentFileKind) -> memoryview:
        if is_open_ended and kind in _OFFSET_AND_TIME_INDEX:
            return memoryview(b"")
        may_be_missing = layout.is_mirror or kind is SegmentFileKind.TXN_INDEX
        if may_be_missing and not layout.has_file(segment, kind):
            return memoryview(b"")
        if kind not in names:
            names[kind] = f"{kind.value} of the partition"
        return layout.read_small_file(segment, kind)

    kind = SegmentFileKind.OFFSET_INDEX
    try:
        offset_index = read_offset_index(content(kind), base_offset=base_offset)
        kind = SegmentFileKind.TIME_INDEX
        time_index = read_time_index(content(kind), base_offset=base_offset)
        kind = SegmentFileKind.TXN_INDEX
        txn_index = read_txn_index(content(kind), base_offset=base_offset)
        kind = SegmentFileKind.PRODUCER_SNAPSHOT
        snapshot = content(kind)
        is_missing = layout.is_mirror and kind not in names
        producer_snapshot = ProducerSnapshot(entries=()) if is_missing else read_producer_snapshot(snapshot)
        kind = SegmentFileKind.LEADER_EPOCH_CHECKPOINT
        leader_epoch_checkpoint = read_leader_epoch_checkpoint(content(kind))
    except ArchiveError as wrong:
        raise wrong if wrong.object_name else wrong.with_object_name(names.get(kind, "")) from wrong
    return SideFiles(
        offset_index_check=OffsetIndexCheck(
            index=offset_index, object_name=names.get(SegmentFileKind.OFFSET_INDEX, "")
        ),
        time_index_check=TimeIndexCheck(index=time_index, object_name=names.get(SegmentFileKind.TIME_INDEX, "")),
        txn_index_check=TxnIndexCheck(
            index=txn_index, object_name=names.get(SegmentFileKind.TXN_INDEX, ""), start_offset=base_offset
        ),
        time_index=time_index,
        txn_index=txn_index,
        producer_snapshot=producer_snapshot,
        leader_epoch_checkpoint=leader_epoch_checkpoint,
        names=names,
        is_mirror=layout.is_mirror,
    )
