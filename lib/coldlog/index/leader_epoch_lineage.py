"""Decide whether a segment belongs to the lineage of its partition's leader epochs.

A lineage has the leader epochs of a partition's log and the first offset of each. A deposed leader may have uploaded
records that its successors never had; such a segment is outside the lineage. There are two rules:

`is_within` is Kafka's rule (RemoteLogManager.isRemoteSegmentWithinLeaderEpochs), by which a broker chooses segments for
ListOffsets: a segment that leaves the lineage at any offset is excluded as a whole.

`find_last_offset_within` is the rule for readers of records: a segment counts up to the first offset at which it leaves
the lineage, because up to there it has the records of the lineage.

Both rules first remove epochs without records (the next epoch begins at the same offset), as Kafka does.

Both compare where epochs begin, as a broker announces it. If nothing was announced, only the first batch of each epoch
that compaction has left in the segment is known. `with_compacted` makes the announced epochs of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

EpochStart = tuple[int, int]
"""A leader epoch and the first offset written in it."""


def filter_epochs(entries: Iterable[EpochStart]) -> tuple[EpochStart, ...]:
    """The entries without epochs that have no records: of several epochs with the same offset, the last is kept."""
    ordered = sorted(entries)
    kept = [before for before, after in pairwise(ordered) if before[1] != after[1]]
    return (*kept, *ordered[-1:])


@dataclass(frozen=True, slots=True)
class LeaderEpochLineage:
    """The epochs of a log, ascending, without empty ones."""

    entries: tuple[EpochStart, ...]

    @staticmethod
    def of(entries: Iterable[EpochStart], log_start_offset: int | None = None) -> LeaderEpochLineage:
        """The lineage from `log_start_offset` on, truncated as a broker does when the log start offset increases."""
        filtered = filter_epochs(entries)
        if log_start_offset is None:
            return LeaderEpochLineage(filtered)
        after_start = [(epoch, offset) for epoch, offset in filtered if offset > log_start_offset]
        at_start = [(epoch, log_start_offset) for epoch, offset in filtered if offset <= log_start_offset]
        return LeaderEpochLineage((*at_start[-1:], *after_start))

    @property
    def first_epoch(self) -> int:
        """The oldest epoch; -1 for an empty lineage."""
        return self.entries[0][0] if self.entries else -1

    def find_next(self, epoch: int) -> EpochStart | None:
        """The first entry with a higher epoch."""
        at = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return self.entries[at] if at < len(self.entries) else None

    def find_offset(self, epoch: int) -> int | None:
        """The first offset of `epoch`; None if the lineage has no such epoch."""
        at = bisect_left(self.entries, epoch, key=lambda entry: entry[0])
        return self.entries[at][1] if at < len(self.entries) and self.entries[at][0] == epoch else None

    def with_compacted(self, batch_epochs: Sequence[EpochStart]) -> list[EpochStart]:
        """The epochs of a segment as they were before compaction, from the first batch of each epoch.

        Logs that have a batch of the same epoch at the same offset are the same up to there: an epoch has one leader,
        and followers first cut off what it does not have. So between two batches of the lineage the segment had all of
        the lineage's epochs.
        """
        completed = list(batch_epochs[:1])
        for before, after in pairwise(batch_epochs):
            if self._has(before) and self._has(after):
                completed += [entry for entry in self.entries if before[0] < entry[0] <= after[0]]
            else:
                completed.append(after)
        return completed

    def _has(self, batch_epoch: EpochStart) -> bool:
        """Whether the epoch is the lineage's at this offset. Its oldest epoch may have begun earlier."""
        epoch, offset = batch_epoch
        at = bisect_right(self.entries, offset, key=lambda entry: entry[1]) - 1
        return bool(self.entries) and self.entries[max(at, 0)][0] == epoch

    def is_within(self, segment_epochs: Sequence[EpochStart], end_offset: int, log_end_offset: int) -> bool:
        """Kafka's rule for a segment with these epochs that ends at `end_offset`, inclusive."""
        epochs = filter_epochs(segment_epochs)
        if not epochs or not self.entries or end_offset >= log_end_offset:
            return False
        last_epoch = epochs[-1][0]
        if not self.first_epoch <= last_epoch <= self.entries[-1][0]:
            return False
        considered = self._considered(epochs)
        return self._begins_within(considered[0]) and self._follows(considered, end_offset)

    def find_last_offset_within(self, segment_epochs: Sequence[EpochStart], end_offset: int) -> int | None:
        """The last offset up to which the segment follows the lineage; None if it never does, also because the epoch
        in which it begins has ended before it."""
        last_offset = self.find_end_within(segment_epochs, end_offset)
        if last_offset is None:
            return None
        first = self._considered(filter_epochs(segment_epochs))[0]
        return last_offset if last_offset >= first[1] else None

    def find_end_within(self, segment_epochs: Sequence[EpochStart], end_offset: int) -> int | None:
        """The last offset up to which the segment follows the lineage. If the epoch in which it begins has ended before
        it, this is the end of that epoch. None if the segment has no epoch of the lineage."""
        epochs = self._considered(filter_epochs(segment_epochs))
        if not epochs or not self._begins_within(epochs[0]):
            return None
        for entry, next_entry in zip(epochs, [*epochs[1:], None], strict=True):
            next_in_lineage = self.find_next(entry[0])
            if next_entry == next_in_lineage:
                continue
            ends = [after[1] - 1 for after in (next_entry, next_in_lineage) if after is not None]
            return min([end_offset, *ends])
        return end_offset

    def _considered(self, epochs: Iterable[EpochStart]) -> list[EpochStart]:
        """Leave out epochs before the lineage's first one: their records are before the log start offset."""
        return [entry for entry in epochs if entry[0] >= self.first_epoch]

    def _begins_within(self, first: EpochStart) -> bool:
        """The segment's first epoch begins inside the lineage's epoch. The lineage's oldest epoch may have begun
        earlier, because the log start offset has increased since."""
        lineage_offset = self.find_offset(first[0])
        return lineage_offset is not None and (first[0] == self.first_epoch or first[1] >= lineage_offset)

    def _follows(self, epochs: Sequence[EpochStart], end_offset: int) -> bool:
        next_in_lineage = self.find_next(epochs[-1][0])
        is_end_within = next_in_lineage is None or end_offset < next_in_lineage[1]
        return is_end_within and all(self.find_next(entry[0]) == next_entry for entry, next_entry in pairwise(epochs))
