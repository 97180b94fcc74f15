"""index_checks: does each entry of a segment's indexes name what its log holds?

Fed the chunks of a log in order. An entry of the offset index must point to the beginning of a batch and name its last
offset, one of the time index must name an offset of a batch, and the transaction index must list the very aborts that
the log shows. Where a transaction began before the log, the index alone says so, and is believed.

Nothing protects these files, nor the base offset of a batch: it follows from the batch before it and the one behind,
and of the last batch, which has none behind it, from entries that name it.

Not judged: the timestamps of the time index (a leader takes them from the records, a follower from the batch's header,
which a client may have filled in wrongly) and the last stable offsets of the transaction index (a follower that takes
in many batches at once counts transactions that begin behind the marker). No answer is taken from either.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.offset_index import OFFSET_INDEX_ENTRY, OffsetIndex
from coldlog.formats.time_index import TIME_INDEX_ENTRY, TimeIndex
from coldlog.formats.txn_index import TXN_INDEX_ENTRY, TxnIndex
from coldlog.index.aborted_transactions import AbortedTransactions
from coldlog.index.segment_index import IndexChunk
from coldlog.index.segment_summary import SegmentSummary


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
            position=entry * OFFSET_INDEX_ENTRY.itemsize,
            expected=expected,
            found=f"last offset {int(self.index.offsets[entry])} at byte {int(self.index.positions[entry])}",
        )


@dataclass(slots=True, kw_only=True)
class TimeIndexCheck:
    """Holds the entries of a time index against the batches as they come. One behind the log's end stays for whoever
    knows that end."""

    index: TimeIndex
    object_name: str
    _next_entry: int = field(default=0, init=False)

    def add(self, chunk: IndexChunk) -> None:
        """Every entry up to the last offset of the chunk names an offset of a batch: its last one, or, as brokers of
        other versions do, that of a record."""
        headers = chunk.headers
        if not len(headers):
            return
        stop = int(np.searchsorted(self.index.offsets, int(headers.last_offset[-1]), side="right"))
        offsets = self.index.offsets[self._next_entry : stop]
        batch = np.searchsorted(headers.last_offset, offsets)
        is_wrong = headers.base_offset[batch] > offsets
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            at = int(batch[first])
            raise ArchiveError(
                Reason.TIME_INDEX_INVALID,
                f"time index does not agree with the log in entry {self._next_entry + first}",
                object_name=self.object_name,
                position=(self._next_entry + first) * TIME_INDEX_ENTRY.itemsize,
                expected=f"an offset of a batch; one at byte {int(headers.position[at])} has "
                f"{int(headers.base_offset[at])} to {int(headers.last_offset[at])}",
                found=f"offset {int(offsets[first])}",
            )
        self._next_entry = stop


@dataclass(slots=True, kw_only=True)
class TxnIndexCheck:
    """Holds a transaction index against the aborts that the log shows; one without entries is not judged."""

    index: TxnIndex
    object_name: str
    start_offset: int
    _aborted: AbortedTransactions = field(default_factory=AbortedTransactions, init=False)

    def add(self, chunk: IndexChunk) -> None:
        """Takes the markers and the transactional batches of the chunk in."""
        if not self.index.is_empty:
            self._aborted.add(chunk.headers, chunk.abort_offsets)

    def finish(self) -> None:
        """The index lists every abort, and nothing else."""
        if self.index.is_empty:
            return
        listed = _entries_of(self.index)
        began_before = {producer_id: first for producer_id, first, _ in reversed(listed) if first < self.start_offset}
        shown = _entries_of(self._aborted.finish(began_before))
        if listed == shown:
            return
        pairs = enumerate(zip(listed, shown, strict=False))
        at = next((at for at, (own, other) in pairs if own != other), min(len(listed), len(shown)))
        raise ArchiveError(
            Reason.TXN_INDEX_INVALID,
            f"transaction index does not agree with the log in entry {at}",
            object_name=self.object_name,
            position=at * TXN_INDEX_ENTRY.itemsize,
            expected=_text_of(shown[at]) if at < len(shown) else f"{len(shown)} entries",
            found=_text_of(listed[at]) if at < len(listed) else f"{len(listed)} entries",
        )


_Aborted = tuple[int, int, int]
"""Producer id, first and last offset."""


def _entries_of(index: TxnIndex) -> list[_Aborted]:
    columns = (index.producer_ids, index.first_offsets, index.last_offsets)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _text_of(entry: _Aborted) -> str:
    producer_id, first_offset, last_offset = entry
    return f"an abort of producer {producer_id} from offset {first_offset} to its marker at {last_offset}"
