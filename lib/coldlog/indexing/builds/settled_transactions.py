"""Find and check the aborted and open transactions of a segment that began in earlier segments.

A segment's log shows its markers, but not where a transaction began that is older than the log. The transaction index
has that for aborts, the producer snapshot of the segment before for all. They must agree, because neither a lookup nor
a fetch notices a wrong first offset: records would be skipped that were committed, or returned that were aborted.
Nothing is compared if the snapshot is missing or damaged, or if the segments do not follow each other without a gap. If
one of the segment's two files is damaged, the logs and snapshots of the earlier segments take its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coldlog.archive.layouts.layout import ListedSegment, SegmentFileKind
from coldlog.errors import ArchiveError, Reason
from coldlog.index.aborted_transactions import AbortedTransactions
from coldlog.index.segment_summary import SegmentSummary
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.preceding_segments import (
    EarlierSegments,
    OpenBefore,
    find_open_before,
    find_snapshot_before,
    is_directly_before,
)
from coldlog.indexing.builds.side_files import SideFiles


def require_known_starts(earlier: EarlierSegments, segment: ListedSegment, side_files: SideFiles) -> None:
    """Refuse a transaction index that contradicts the producer snapshot of the segment directly before.

    The segment's own log does not show it. In a mirror these files may be of another time; they are not compared.
    """
    if side_files.is_mirror or not side_files.txn_index_check.is_start_needed:
        return
    open_before = find_snapshot_before(earlier, segment)
    if open_before is None:
        return
    try:
        side_files.txn_index_check.require_starts(open_before)
    except ArchiveError:
        lineage = [(each.leader_epoch, each.start_offset) for each in side_files.leader_epoch_checkpoint.entries]
        if is_directly_before(earlier, segment, lineage):
            raise


def require_no_unlisted_abort(
    earlier: EarlierSegments,
    segment: ListedSegment,
    side_files: SideFiles,
    aborted: AbortedTransactions,
) -> None:
    """Refuse a transaction index that is missing or empty if the log ends a transaction that has records by an abort.

    A broker uploads no index without entries. A marker has none if its transaction wrote nothing to the partition.
    """
    if side_files.is_without_txn_index or not side_files.txn_index.is_empty:
        return
    open_before, producers = OpenBefore(), aborted.may_begin_before
    if producers:
        open_before = find_open_before(earlier, segment, producers)
    unlisted = aborted.finish(open_before.first_offsets)
    if unlisted.entry_count or not open_before.is_complete:
        places = f"offset {int(unlisted.last_offsets[0])}" if unlisted.entry_count else "an unknown offset"
        raise ArchiveError(
            Reason.TXN_INDEX_INVALID,
            "transaction index has no entry, but the log has aborted transactions",
            object_name=side_files.names.get(SegmentFileKind.TXN_INDEX, ""),
            expected=f"an entry for the abort at {places}",
            found="none",
        )


def settle_transactions(
    earlier: EarlierSegments,
    work: SegmentWork,
    side_files: SideFiles,
    aborted: AbortedTransactions | None,
    summary: SegmentSummary,
) -> tuple[SideFiles, Mapping[int, int]]:
    """Add aborts from the log to the side files, and find the transactions that earlier segments leave open.

    These are only searched if something depends on them: the aborts of this segment, or the transactions that it leaves
    open. In a mirror these are not searched for a segment without a transactional batch (`publish.open_at_cuts`). If
    they cannot be found, the damage of the file that would have them is raised; a mirror's are taken as far as they
    were found.
    """
    layout, open_before = earlier.layout, OpenBefore()
    if aborted is not None:
        producers = aborted.may_begin_before if side_files.is_without_txn_index else frozenset()
        is_end_needed = side_files.is_without_snapshot and (aborted.has_batches or not layout.is_mirror)
        if is_end_needed:
            producers |= summary.open_transactions.keys() - summary.ended_producers
        if producers or is_end_needed:
            is_every_needed = is_end_needed and not layout.is_mirror
            open_before = find_open_before(
                earlier,
                work.segment,
                None if is_every_needed else producers,
            )
        if not open_before.is_complete and not layout.is_mirror:
            kind = SegmentFileKind.PRODUCER_SNAPSHOT if is_end_needed else SegmentFileKind.TXN_INDEX
            raise side_files.lost[kind]
        if side_files.is_without_txn_index:
            side_files = replace(side_files, txn_index=aborted.finish(open_before.first_offsets))
    if work.is_last and layout.is_mirror:
        side_files = side_files.up_to(summary.last_offset)
    if layout.is_mirror and (aborted is None or aborted.has_batches):
        open_at_end = side_files.open_at_end(summary, open_before.first_offsets, has_holes=False)
        earlier.remember(work.segment, open_at_end)
    return side_files, open_before.first_offsets
