"""Report a log that is not what the tables say of it: it was truncated or replaced, or its index files were wrong.

Every reader that takes positions of batches or intervals from the tables raises these errors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coldlog.errors import ArchiveError, Reason
from coldlog.index.leader_epoch_lineage import EpochStart, filter_epochs

if TYPE_CHECKING:
    from coldlog.formats.kafka.record_batch import BatchHeaders


_NO_LEADER_EPOCH = -1


def shorter_log(position: int, expected: str, found: str) -> ArchiveError:
    """The error for a log that ends before bytes that the tables refer to."""
    message = "log is shorter than when it was indexed"
    return ArchiveError(Reason.LOG_TRUNCATED, message, position=position, expected=expected, found=found)


def replaced_batch(position: int, expected: str, found: str) -> ArchiveError:
    """The error for a position at which the log has another batch than the tables."""
    message = "log was replaced after it was indexed: the batch differs; run the pipeline again"
    return ArchiveError(Reason.HEADER_INVALID, message, position=position, expected=expected, found=found)


def _unpromised_batch(position: int, expected: str, found: str) -> ArchiveError:
    """The error for a log without the batches that its index files name. Nobody has read the log before."""
    message = (
        "log does not have the batches that its index files name: it was replaced, or an older log cleaner wrote its "
        "offset index; run the pipeline again, which reads the log"
    )
    return ArchiveError(Reason.HEADER_INVALID, message, position=position, expected=expected, found=found)


def require_leader_epoch(epochs: Sequence[EpochStart], position: int, base_offset: int, leader_epoch: int) -> None:
    """Raise `ArchiveError` if a batch has another leader epoch than its segment has at its offset. No checksum covers
    it. `epochs` are those of the segment; if there are none, or the batch has none, nothing is compared."""
    entries = filter_epochs(epochs)
    if not entries or leader_epoch == _NO_LEADER_EPOCH:
        return
    at = bisect_right(entries, base_offset, key=lambda entry: entry[1]) - 1
    is_right = leader_epoch == entries[at][0] if at >= 0 else leader_epoch <= entries[0][0]
    if not is_right:
        raise ArchiveError(
            Reason.HEADER_INVALID,
            "batch has another leader epoch than its segment; run the pipeline again, which reads the log",
            position=position,
            expected=f"leader epoch {entries[max(at, 0)][0]} at offset {base_offset}",
            found=f"leader epoch {leader_epoch}",
        )


@dataclass(slots=True, kw_only=True)
class ExpectedEnds:
    """What the tables tell of the batches in a part of a log at sidecar depth.

    For each of `offsets` there is a batch that ends with it. No batch ends after `end_offset`, the segment's last one.
    No checksum covers the base offset of a batch. But if a log has no gaps between batches, a damaged base offset
    breaks one of these rules, or the order of the batches.
    """

    offsets: Iterable[int]
    end_offset: int
    _wanted: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._wanted = sorted(set(self.offsets), reverse=True)

    def check(self, headers: BatchHeaders) -> None:
        """Raise `ArchiveError` if these batches are not the expected ones. They follow those of the last call."""
        if not len(headers):
            return
        last_offset, ends = int(headers.last_offset[-1]), set(headers.last_offset.tolist())
        while self._wanted and self._wanted[-1] <= last_offset:
            self._require(self._wanted.pop(), int(headers.position[0]), ends)
        if last_offset > self.end_offset:
            raise _unpromised_batch(
                int(headers.position[-1]), f"no offset after {self.end_offset}", f"offsets up to {last_offset}"
            )

    def finish(self, position: int) -> None:
        """Raise `ArchiveError` if a batch was missing up to this position."""
        if self._wanted:
            self._require(self._wanted[-1], position, set())

    @staticmethod
    def _require(offset: int, position: int, ends: set[int]) -> None:
        if offset not in ends:
            found = f"batches that end with offsets {min(ends)} to {max(ends)}" if ends else "none"
            raise _unpromised_batch(position, f"a batch that ends with offset {offset}", found)
