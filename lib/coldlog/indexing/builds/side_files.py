"""Read a segment's small files and check that they agree with its log.

A transaction index, producer snapshot or leader epoch checkpoint that is damaged counts as missing (`lost`): the build
tries the segment again without it. Aborted and open transactions are then read from the logs, as in a mirror. Where the
log starts is then not known, unless another segment has a newer checkpoint.

The small files are read before the log and compared with it while it is read:

- Entries of the indexes must name what the log holds (`index_checks` has the rules), and none may be after its end.
- The producer snapshot must have no record after the log's end. If it has the producer of the last batch, it must have
  that batch's last offset.
- The leader epoch checkpoint must have the epochs of the log, at the same offsets.

A disagreement means that a file belongs to another segment or was cut, or that an offset in the log is wrong. If the
events prove the log whole, an offset or time index that is missing, damaged or disagrees is left out. This loses
nothing, because the log says all that an index does. The log is proven whole if it has the announced size, ends with
the announced last offset, and has a record at each offset. Without events, nothing else in the archive shows a log that
was cut between two batches, and the segment is refused. If none of these files reaches into the last batch, the cut
stays unnoticed: an index has an entry every few kilobytes, or, written by a follower, one for each set that it fetched.
The time index nearly always reaches it, because its last entry names the last batch that raised the largest timestamp.
An empty time index or checkpoint is refused. A short segment may have an empty offset index.

A mirror's files are copied one by one, and any file except the log may be missing. A missing file is not compared.
Indexes of the last segment of a mirror are not read, because the log may have been copied before or after them. The
checkpoint is the present one of the partition: its entries after the segment's end are left out. If entries remain,
newer epochs of the log are read from the batches. If neither a transaction index nor a producer snapshot was copied,
aborted transactions are read from the log, and their starts in earlier segments as in `preceding_segments`. With a
snapshot, a missing index means that the broker never wrote one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.leader_epoch_checkpoint import LeaderEpochCheckpoint, read_leader_epoch_checkpoint
from coldlog.formats.kafka.offset_index import read_offset_index
from coldlog.formats.kafka.producer_snapshot import ProducerSnapshot, read_producer_snapshot
from coldlog.formats.kafka.time_index import TimeIndex, read_time_index
from coldlog.formats.kafka.txn_index import TxnIndex, read_txn_index
from coldlog.index.index_checks import OffsetIndexCheck, TimeIndexCheck, TxnIndexCheck
from coldlog.index.leader_epoch_lineage import filter_epochs
from coldlog.index.segment_index import IndexChunk
from coldlog.index.segment_summary import SegmentSummary

_OFFSET_AND_TIME_INDEX = frozenset({SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX})
_DAMAGED_INDEX = (Reason.OFFSET_INDEX_INVALID, Reason.TIME_INDEX_INVALID, Reason.OBJECT_MISSING)
_NOTHING = memoryview(b"")
_Parsed = TypeVar("_Parsed")
_NO_TRANSACTIONS: Mapping[int, int] = MappingProxyType({})
_NOTHING_LOST: Mapping[SegmentFileKind, ArchiveError] = MappingProxyType({})


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
    start_offset: int = 0
    damages: dict[SegmentFileKind, ArchiveError] = field(default_factory=dict)
    """What is wrong with the offset and the time index, or, until the log is proven whole, perhaps with the log."""
    lost: Mapping[SegmentFileKind, ArchiveError] = field(default_factory=dict)
    """What is wrong with the other files; these were not read."""

    def add(self, chunk: IndexChunk) -> None:
        """Compare the next batches of the log with the indexes. In a mirror these can be older, newer or compacted."""
        self._compare(SegmentFileKind.OFFSET_INDEX, lambda: self.offset_index_check.add(chunk))
        if not self.is_mirror:
            self._compare(SegmentFileKind.TIME_INDEX, lambda: self.time_index_check.add(chunk))
            self.txn_index_check.add(chunk)

    def _compare(self, kind: SegmentFileKind, compare: Callable[[], None]) -> None:
        """Note the first disagreement of an index; after that it is not compared any more."""
        if kind in self.damages:
            return
        try:
            compare()
        except ArchiveError as wrong:
            self.damages[kind] = wrong

    def up_to(self, last_offset: int) -> SideFiles:
        """Leave out aborts after that offset, for a log that was copied before its transaction index."""
        count = int(np.searchsorted(self.txn_index.last_offsets, last_offset, side="right"))
        columns = {each.name: getattr(self.txn_index, each.name)[:count] for each in fields(TxnIndex)}
        return replace(self, txn_index=TxnIndex(**columns))

    @property
    def is_without_snapshot(self) -> bool:
        """Whether only the logs show which transactions are open at the segment's end."""
        kind = SegmentFileKind.PRODUCER_SNAPSHOT
        return kind in self.lost or (self.is_mirror and kind not in self.names)

    @property
    def is_without_txn_index(self) -> bool:
        """Whether only the log shows which transactions were aborted."""
        kind = SegmentFileKind.TXN_INDEX
        return kind in self.lost or (self.is_mirror and self.is_without_snapshot and kind not in self.names)

    def facts(
        self,
        summary: SegmentSummary,
        open_before: Mapping[int, int] = _NO_TRANSACTIONS,
        *,
        log_damage: ArchiveError | None = None,
    ) -> dict[str, object]:
        """Return the facts of the small files, in columns of `segments`.

        A transaction that only the log shows as open counts as open, unless its end may be in a hole. `open_before` has
        the first offsets of transactions that earlier segments leave open, if there is no snapshot.
        """
        open_from = self.open_at_end(summary, open_before, has_holes=log_damage is not None)
        found = [*self.damages.values(), *self.lost.values(), *([log_damage] if log_damage else [])]
        return {
            "txn_index_empty": self.find_txn_index_empty(summary, has_holes=log_damage is not None),
            "leader_epoch_checkpoint": None
            if SegmentFileKind.LEADER_EPOCH_CHECKPOINT in self.lost
            else [{"leader_epoch": epoch, "start_offset": offset} for epoch, offset in self._iter_lineage(summary)],
            "open_transaction_count": len(open_from),
            "open_from_offset": min(open_from.values(), default=None),
            "damaged_files": [str(wrong) for wrong in found] or None,
        }

    def open_at_end(
        self, summary: SegmentSummary, open_before: Mapping[int, int], *, has_holes: bool
    ) -> dict[int, int]:
        """Return the first offsets of the transactions that are open at the end, by producer id, as `facts` says."""
        known = {e.producer_id: e.current_txn_first_offset for e in self.producer_snapshot.entries}
        return {
            **({} if has_holes else summary.open_transactions),
            **{producer: offset for producer, offset in known.items() if offset >= 0},
            **{producer: offset for producer, offset in open_before.items() if producer not in summary.ended_producers},
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

    def find_txn_index_empty(self, summary: SegmentSummary, *, has_holes: bool) -> bool | None:
        """Return None (unknown) if the index has no entry, and the log has abort markers, or may have lost some.

        There is no entry if the transaction wrote nothing to this partition, or if the index was lost. Without aborts
        there is usually no file.
        """
        is_file_empty = has_holes and SegmentFileKind.TXN_INDEX in self.names
        if self.txn_index.is_empty and (summary.abort_marker_count or is_file_empty):
            return None
        return self.txn_index.is_empty

    def require_agreement(self, summary: SegmentSummary, announced_end_offset: int | None = None) -> None:
        """Raise `ArchiveError` if a file names something that the log does not hold, or if it was emptied.

        The offset and the time index stay in `damages` instead if the log is proven whole.
        """
        self._compare(SegmentFileKind.OFFSET_INDEX, lambda: self.offset_index_check.finish(summary))
        self._compare(SegmentFileKind.TIME_INDEX, lambda: self._require_time_index(summary))
        has_every_offset = summary.record_count == summary.last_offset - self.start_offset + 1
        if self.damages and not (has_every_offset and announced_end_offset == summary.last_offset):
            raise next(iter(self.damages.values()))
        self._require_checkpoint(summary)
        self._require_producers(summary)
        self._require_leader_epochs(summary)
        if self.txn_index.entry_count > summary.abort_marker_count:
            raise ArchiveError(
                Reason.TXN_INDEX_INVALID,
                "transaction index lists more aborts than the log has abort markers",
                object_name=self.names[SegmentFileKind.TXN_INDEX],
                expected=f"at most {summary.abort_marker_count}",
                found=str(self.txn_index.entry_count),
            )
        if not self.is_mirror:
            self.txn_index_check.finish()

    def _require_time_index(self, summary: SegmentSummary) -> None:
        """Refuse an emptied time index, and entries after the log's end.

        Kafka adds the largest timestamp to the time index when it closes a segment, unless all timestamps are -1.
        """
        has_time_index = SegmentFileKind.TIME_INDEX in self.names
        if has_time_index and not self.time_index.entry_count and summary.largest_batch_timestamp_ms >= 0:
            raise ArchiveError(
                Reason.TIME_INDEX_INVALID,
                "time index has no entry",
                object_name=self.names[SegmentFileKind.TIME_INDEX],
                expected=f"an entry for timestamp {summary.largest_batch_timestamp_ms}",
                found="0 bytes",
            )
        if self.time_index.entry_count and int(self.time_index.offsets[-1]) > summary.last_offset:
            raise ArchiveError(
                Reason.TIME_INDEX_INVALID,
                "time index has entries after the log's end",
                object_name=self.names[SegmentFileKind.TIME_INDEX],
                position=(self.time_index.entry_count - 1) * 12,
                expected=f"at most offset {summary.last_offset}",
                found=f"offset {int(self.time_index.offsets[-1])}",
            )

    def _require_checkpoint(self, summary: SegmentSummary) -> None:
        """Refuse an emptied checkpoint: the one that Kafka uploads has a line for the epoch of the segment."""
        may_be_empty = self.is_mirror or SegmentFileKind.LEADER_EPOCH_CHECKPOINT in self.lost
        if not may_be_empty and not self.leader_epoch_checkpoint.entries and summary.leader_epochs[-1][0] >= 0:
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
                "producer snapshot of the segment's end has later records than the log",
                object_name=self.names[SegmentFileKind.LOG],
                expected=f"at least offset {last_offset}",
                found=f"offset {summary.last_offset}",
            )
        known = last_offsets.get(summary.last_producer_id, summary.last_offset)
        if known != summary.last_offset and not self.is_mirror:
            raise ArchiveError(
                Reason.HEADER_INVALID,
                "producer snapshot of the segment's end has another offset for the last batch",
                object_name=self.names[SegmentFileKind.LOG],
                position=summary.last_position,
                expected=f"last offset {known}",
                found=f"last offset {summary.last_offset}",
            )

    def _require_leader_epochs(self, summary: SegmentSummary) -> None:
        """Refuse a batch of an epoch that the lineage does not have at its offset. It covers the segment up to its end.

        It may begin inside the segment, where the log starts. The lineage of a mirror was copied at another time and is
        not compared.
        """
        entries = filter_epochs((e.leader_epoch, e.start_offset) for e in self.leader_epoch_checkpoint.entries)
        if self.is_mirror or not entries:
            return
        for epoch, offset in summary.leader_epochs:
            at = bisect_right(entries, offset, key=lambda entry: entry[1]) - 1
            is_right = epoch == entries[at][0] if at >= 0 else epoch <= entries[0][0]
            if not is_right and epoch >= 0:
                raise ArchiveError(
                    Reason.LEADER_EPOCH_UNKNOWN,
                    "log holds a leader epoch that the checkpoint does not have at its offset",
                    object_name=self.names[SegmentFileKind.LEADER_EPOCH_CHECKPOINT],
                    expected=f"epoch {entries[max(at, 0)][0]}",
                    found=f"epoch {epoch} at offset {offset}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SmallFiles:
    """The small files of a segment, not parsed yet, and what was found damaged."""

    layout: ArchiveLayout
    segment: ListedSegment
    is_open_ended: bool
    names: dict[SegmentFileKind, str]
    lost: Mapping[SegmentFileKind, ArchiveError]
    damages: dict[SegmentFileKind, ArchiveError] = field(default_factory=dict)

    @staticmethod
    def of(
        layout: ArchiveLayout,
        segment: ListedSegment,
        lost: Mapping[SegmentFileKind, ArchiveError],
        *,
        is_open_ended: bool,
    ) -> _SmallFiles:
        names = {kind: name for kind in SegmentFileKind if (name := segment.object_name_of(kind))}
        if is_open_ended:
            names = {kind: name for kind, name in names.items() if kind not in _OFFSET_AND_TIME_INDEX}
        return _SmallFiles(layout=layout, segment=segment, is_open_ended=is_open_ended, names=names, lost=lost)

    def content(self, kind: SegmentFileKind) -> memoryview:
        """Return the bytes of a file, none if it may be missing and is."""
        if kind in self.lost or (self.is_open_ended and kind in _OFFSET_AND_TIME_INDEX):
            return _NOTHING
        may_be_missing = self.layout.is_mirror or kind is SegmentFileKind.TXN_INDEX
        if may_be_missing and not self.layout.has_file(self.segment, kind):
            return _NOTHING
        self.names.setdefault(kind, f"{kind.value} of the partition")
        return self.layout.read_small_file(self.segment, kind)

    def checkpoint(self, content: memoryview) -> LeaderEpochCheckpoint:
        """Parse the checkpoint, which may be lost."""
        if SegmentFileKind.LEADER_EPOCH_CHECKPOINT in self.lost:
            return LeaderEpochCheckpoint(entries=())
        return read_leader_epoch_checkpoint(content)

    def parsed(self, kind: SegmentFileKind, parse: Callable[[memoryview], _Parsed]) -> _Parsed:
        """Parse a file; `ArchiveError` names it. A damaged offset or time index is noted and counts as empty."""
        try:
            return parse(self.content(kind))
        except ArchiveError as wrong:
            named = wrong if wrong.object_name else wrong.with_object_name(self.names.get(kind, ""))
            if kind not in _OFFSET_AND_TIME_INDEX or wrong.reason not in _DAMAGED_INDEX:
                raise named from wrong
            self.damages[kind] = named
            return parse(_NOTHING)

    def producer_snapshot(self, content: memoryview) -> ProducerSnapshot:
        """Parse the snapshot, which a mirror may lack."""
        kind = SegmentFileKind.PRODUCER_SNAPSHOT
        if kind in self.lost or (self.layout.is_mirror and kind not in self.names):
            return ProducerSnapshot(entries=())
        return read_producer_snapshot(content)


def read_side_files(
    layout: ArchiveLayout,
    segment: ListedSegment,
    lost: Mapping[SegmentFileKind, ArchiveError] = _NOTHING_LOST,
    *,
    is_open_ended: bool = False,
) -> SideFiles:
    """Read and check every small file except the lost ones; `ArchiveError` names the object.

    `is_open_ended`: the log may be cut or still grow, so its indexes may be older or newer than it.
    """
    files, base_offset = _SmallFiles.of(layout, segment, lost, is_open_ended=is_open_ended), segment.start_offset
    offset_index = files.parsed(
        SegmentFileKind.OFFSET_INDEX, lambda content: read_offset_index(content, base_offset=base_offset)
    )
    time_index = files.parsed(
        SegmentFileKind.TIME_INDEX, lambda content: read_time_index(content, base_offset=base_offset)
    )
    txn_index = files.parsed(
        SegmentFileKind.TXN_INDEX, lambda content: read_txn_index(content, base_offset=base_offset)
    )
    names = files.names
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
        producer_snapshot=files.parsed(SegmentFileKind.PRODUCER_SNAPSHOT, files.producer_snapshot),
        leader_epoch_checkpoint=files.parsed(SegmentFileKind.LEADER_EPOCH_CHECKPOINT, files.checkpoint),
        names=names,
        is_mirror=layout.is_mirror,
        start_offset=base_offset,
        damages=files.damages,
        lost=lost,
    )


def read_checkpoint_of_damaged(
    layout: ArchiveLayout, segment: ListedSegment, announced_end_offset: int | None
) -> LeaderEpochCheckpoint | None:
    """Read the leader epoch checkpoint of a damaged segment; None if it is missing or damaged itself."""
    kind = SegmentFileKind.LEADER_EPOCH_CHECKPOINT
    try:
        if not layout.has_file(segment, kind):
            return None
        checkpoint = read_leader_epoch_checkpoint(layout.read_small_file(segment, kind))
    except ArchiveError:
        return None
    end = announced_end_offset
    is_later = end is not None and any(entry.start_offset > end for entry in checkpoint.entries)
    return checkpoint if checkpoint.entries and not is_later else None
