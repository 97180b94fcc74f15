"""Index what is sound of a segment with damaged files.

If a file of a segment is damaged, the segment is read again without that file. If the file is the log, it is read again
without the bad batches. `Losses` has what was left out so far. The segment goes into quarantine if more cannot be left
out:

- An offset or time index is left out (`side_files`) only if events prove the log whole.
- If the log is damaged, the producer snapshot and the transaction index must be sound: only they show the transactions
  that ended in a hole.
- The entries of the sound indexes must name offsets of sound batches or of holes. Otherwise the damage was not found.
- A mirror's last log may be cut without damage, and its side files may be of another time. A damaged log of a mirror
  stays in quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from coldlog.archive.layouts.layout import ArchiveLayout, SegmentFileKind
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.index_entries import INT32_MAX
from coldlog.formats.limits import DecodeLimits
from coldlog.index.aborted_transactions import AbortedTransactions
from coldlog.index.sound_batches import DamagedLog, SoundBatches, find_sound_batches
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.side_files import SideFiles

_FILE_OF = {
    Reason.TXN_INDEX_INVALID: SegmentFileKind.TXN_INDEX,
    Reason.PRODUCER_SNAPSHOT_INVALID: SegmentFileKind.PRODUCER_SNAPSHOT,
    Reason.LEADER_EPOCH_CHECKPOINT_INVALID: SegmentFileKind.LEADER_EPOCH_CHECKPOINT,
}
_OF_LOG = frozenset(
    {
        Reason.BATCH_LENGTH_INVALID,
        Reason.CRC_MISMATCH,
        Reason.UNSUPPORTED_MAGIC,
        Reason.UNSUPPORTED_CODEC,
        Reason.OFFSETS_NOT_ASCENDING,
        Reason.HEADER_INVALID,
        Reason.LOG_TRUNCATED,
        Reason.LOG_SIZE_DIFFERS,
        # The index may be right, and an offset in the log wrong.
        Reason.OFFSET_INDEX_INVALID,
        Reason.TIME_INDEX_INVALID,
        Reason.LEADER_EPOCH_UNKNOWN,
    }
)


_ENDS_OF_TRANSACTIONS = frozenset({SegmentFileKind.TXN_INDEX, SegmentFileKind.PRODUCER_SNAPSHOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What is damaged in a segment, as far as it was read: `files` without the log, and the log."""

    files: Mapping[SegmentFileKind, ArchiveError] = field(default_factory=dict)
    log: ArchiveError | None = None

    def and_also(self, wrong: ArchiveError, *, is_mirror: bool) -> Losses | None:
        """Return the losses with one more; None if the segment cannot be read then."""
        kind = _FILE_OF.get(wrong.reason)
        if kind is not None:
            is_needed = kind in self.files or (self.log is not None and kind in _ENDS_OF_TRANSACTIONS)
            return None if is_needed else replace(self, files={**self.files, kind: wrong})
        if self.log is not None and self.log.reason is wrong.reason is Reason.LEADER_EPOCH_UNKNOWN:
            # Not one batch is wrong, but the checkpoint.
            return Losses(files={**self.files, SegmentFileKind.LEADER_EPOCH_CHECKPOINT: wrong})
        is_kept = is_mirror or self.log is not None or self.files.keys() & _ENDS_OF_TRANSACTIONS
        return None if is_kept or wrong.reason not in _OF_LOG else replace(self, log=wrong)


def find_sound_of_damaged(
    layout: ArchiveLayout,
    work: SegmentWork,
    side_files: SideFiles,
    wrong: ArchiveError,
    *,
    limits: DecodeLimits,
    window_bytes: int,
) -> SoundBatches:
    """Find the sound batches of the log. Raise `wrong` again if its damage is not found, or nothing else is sound."""
    segment = work.segment
    offset_index, time_index = side_files.offset_index_check.index, side_files.time_index
    producers = [entry.last_offset for entry in side_files.producer_snapshot.entries]
    last_offsets = np.array([last for last in producers if last >= segment.start_offset], dtype=np.int64)
    found = find_sound_batches(
        DamagedLog(
            read=lambda position, length: layout.read_log_range(segment, position, length),
            size_bytes=layout.log_size_bytes(segment),
            start_offset=segment.start_offset,
            end_offset=work.announced_end_offset,
            announced_size_bytes=work.announced_size_bytes,
            named_offsets=np.unique(np.concatenate((offset_index.offsets, time_index.offsets, last_offsets))),
            lineage=[(e.leader_epoch, e.start_offset) for e in side_files.leader_epoch_checkpoint.entries],
            indexed_positions=offset_index.positions,
            max_batch_bytes=limits.max_batch_bytes,
            window_bytes=window_bytes,
        )
    )
    is_found = (
        found is not None
        and found.holes
        and found.holds_index_entries(offset_index.offsets)
        and found.holds_offsets(time_index.offsets, as_last=False)
        and found.holds_offsets(last_offsets, as_last=True)
    )
    if found is None or not is_found:
        raise wrong
    return found


def require_listed_aborts(
    side_files: SideFiles, aborted: AbortedTransactions, found: SoundBatches, wrong: ArchiveError
) -> None:
    """Raise `wrong` if the transaction index and the sound batches name other aborts, outside the holes."""
    index = side_files.txn_index
    if index.is_empty:
        if aborted.places()[0]:
            raise wrong  # the index may be lost, too
        return
    columns = (index.producer_ids, index.first_offsets, index.last_offsets)
    listed = {
        (producer, last): first for producer, first, last in zip(*(each.tolist() for each in columns), strict=True)
    }
    if len(listed) < index.entry_count:
        raise wrong
    began_before = {
        producer: first for (producer, _), first in reversed(listed.items()) if first < side_files.start_offset
    }
    shown = aborted.finish(began_before)
    columns = (shown.producer_ids, shown.first_offsets, shown.last_offsets)
    seen = {(producer, last): first for producer, first, last in zip(*(each.tolist() for each in columns), strict=True)}
    for key, first in seen.items():
        # The first batch, or the marker of an earlier transaction, may be lost.
        if key not in listed or (listed[key] != first and not found.has_hole_between(first, listed[key])):
            raise wrong
    aborts, writes = aborted.places()
    producers = {entry.producer_id for entry in side_files.producer_snapshot.entries}
    for (producer, last), first in listed.items():
        is_lost = found.is_lost(last) and producer in producers and last - side_files.start_offset <= INT32_MAX
        is_marker_known = is_lost or (producer, last) in aborts
        is_start_known = first < side_files.start_offset or found.is_lost(first) or (producer, first) in writes
        if not is_marker_known or not is_start_known:
            raise wrong


def rows_of_holes(
    found: SoundBatches, side_files: SideFiles, announced_max_timestamp_ms: int | None
) -> list[dict[str, object]]:
    """Return the value of the column `holes`."""
    rows: list[dict[str, object]] = []
    for hole in found.holes:
        bound = found.bound_of(hole, side_files.time_index)
        rows.append(
            {
                "from_offset": hole.from_offset,
                "to_offset": hole.to_offset,
                "position": hole.position,
                "end_position": hole.end_position,
                "reason": hole.reason.value,
                "max_timestamp_bound_ms": announced_max_timestamp_ms if bound is None else bound,
            }
        )
    return rows
