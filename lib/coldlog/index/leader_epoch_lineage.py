"""leader_epoch_lineage: was a segment written by the leaders whose log counts?

A lineage is the leader epochs of a partition's log and the first offset of each. A leader that was deposed may have
uploaded records that its successors never had; its segments lie outside the lineage. Two questions, two rules:

`is_within` is Kafka's (RemoteLogManager.isRemoteSegmentWithinLeaderEpochs), the one by which a broker chooses segments
for ListOffsets: a segment that leaves the lineage anywhere is out as a whole.

`find_last_offset_within` is what a reader of the records sees: a segment is good up to the first offset at which it
leaves the lineage, because up to there it holds the very records that the lineage has.

Epochs that hold no record (the next one begins at the same offset) are left out of both sides first, as Kafka does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

EpochStart = tuple[int, int]
"""A leader epoch and the first offset written in it."""


def filter_epochs(entries: Iterable[EpochStart]) -> tuple[EpochStart, ...]:
    """The entries without epochs that hold no record; of epochs with the same offset the last stays."""
    ordered = sorted(entries)
    kept = [before for before, after in pairwise(ordered) if before[1] != after[1]]
    return (*kept, *ordered[-1:])


@dataclass(frozen=True, slots=True)
class LeaderEpochLineage:
    """The epochs of a log, ascending, without empty ones."""

    entries: tuple[EpochStart, ...]

    @staticmethod
    def of(entries: Iterable[EpochStart], log_start_offset: int | None = None) -> LeaderEpochLineage:
        """The lineage that begins at `log_start_offset`: as a broker cuts it when the log start moves on."""
        filtered = filter_epochs(entries)
        if log_start_offset is None:
            return LeaderEpochLineage(filtered)
        behind = [(epoch, offset) for epoch, offset in filtered if offset > log_start_offset]
        holding = [(epoch, log_start_offset) for epoch, offset in filtered if offset <= log_start_offset]
        return LeaderEpochLineage((*holding[-1:], *behind))

    @property
    def first_epoch(self) -> int:
        """The oldest epoch; -1 of no lineage."""
        return self.entries[0][0] if self.entries else -1

    def find_next(self, epoch: int) -> EpochStart | None:
        """The entry behind `epoch`."""
        at = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return self.entries[at] if at < len(self.entries) else None

    def find_offset(self, epoch: int) -> int | None:
        """Where `epoch` begins; None if the lineage has no such epoch."""
        at = bisect_left(self.entries, epoch, key=lambda entry: entry[0])
        return self.entries[at][1] if at < len(self.entries) and self.entries[at][0] == epoch else None

    def is_within(self, segment_epochs: Sequence[EpochStart], end_offset: int, log_end_offset: int) -> bool:
        """Kafka's rule for a segment of these epochs that ends at `end_offset`, inclusive."""
        epochs = filter_epochs(segment_epochs)
        if not epochs or not self.entries or end_offset >= log_end_offset:
            return False
        last_epoch = epochs[-1][0]
        if not self.first_epoch <= last_epoch <= self.entries[-1][0]:
            return False
        considered = [entry for entry in epochs if entry[0] >= self.first_epoch]
        return self._begins_within(considered[0]) and self._follows(considered, end_offset)

    def find_last_offset_within(self, segment_epochs: Sequence[EpochStart], end_offset: int) -> int | None:
        """The last offset up to which the segment follows the lineage; None if it never does.

        Epochs before the lineage's first are older than the log start and judged by that alone.
        """
        epochs = [entry for entry in filter_epochs(segment_epochs) if entry[0] >= self.first_epoch]
        if not epochs or not self._begins_within(epochs[0]):
            return None
        for own, own_next in zip(epochs, [*epochs[1:], None], strict=True):
            follows = self.find_next(own[0])
            if own_next == follows:
                continue
            ends = [after[1] - 1 for after in (own_next, follows) if after is not None]
            return min([end_offset, *ends])
        return end_offset

    def _begins_within(self, first: EpochStart) -> bool:
        """The oldest epoch of a lineage may have begun earlier: its log start has moved on since."""
        own_offset = self.find_offset(first[0])
        return own_offset is not None and (first[0] == self.first_epoch or first[1] >= own_offset)

    def _follows(self, epochs: Sequence[EpochStart], end_offset: int) -> bool:
        follows = self.find_next(epochs[-1][0])
        is_end_within = follows is None or end_offset < follows[1]
        return is_end_within and all(self.find_next(own[0]) == own_next for own, own_next in pairwise(epochs))
