"""Check that the entries of a segment's indexes name what its log holds.

The chunks of a log are added in order. The rules, by the code that writes each file:

- Offset index. The position of an entry is where a batch begins. Its offset is the last offset of that batch, or of a
  later batch that begins before the position of the next entry. A leader, and a broker that rebuilds the index, write
  the first form (LogSegment.append, LogSegment.recover). A follower appends a whole fetched set at once. Before Kafka
  3.9.1, and in 4.0.0, it writes at most one entry for the set: the last offset of the set, with the position of the
  set's first batch (KAFKA-806, apache/kafka pull request 18012). The log cleaner of these versions appends sets, too,
  but names the last record of the set (MemoryRecords.filterTo): compaction may have removed the records after it from
  the set's last batch, whose header keeps its last offset.
- Time index. The offset of an entry is in a batch. Followers, and leaders from Kafka 3.8 on, write the last offset
  of the batch that raised the largest timestamp; leaders up to 3.7 may write the offset of the record itself
  (LogValidator; KAFKA-16310).
- Transaction index. It lists exactly the aborts that the log shows. The log does not show where a transaction began
  that is older than the log: the producer snapshot of the segment before does (`require_starts`).

No checksum protects these files, nor the base offset of a batch. The batches before and after it bound the base
offset. The last batch has none after it; entries that name its last offset confirm it.

Not checked, because no answer is taken from them: the timestamps of the time index (a leader takes them from the
records, a follower from the batch header, which a client may fill in wrongly), and the last stable offsets of the
transaction index (a follower that appends many batches at once counts transactions that begin after the marker).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.offset_index import OFFSET_INDEX_ENTRY, OffsetIndex
from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.kafka.time_index import TIME_INDEX_ENTRY, TimeIndex
from coldlog.formats.kafka.txn_index import TXN_INDEX_ENTRY, TxnIndex
from coldlog.index.aborted_transactions import AbortedTransactions
from coldlog.index.segment_index import IndexChunk
from coldlog.index.segment_summary import SegmentSummary

Int64Column = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class OffsetIndexCheck:
    """Compare the entries of an offset index with the batches of its log."""

    index: OffsetIndex
    object_name: str
    _next_position: int = field(default=0, init=False)
    _next_offset: int = field(default=0, init=False)

    def add(self, chunk: IndexChunk) -> None:
        """Check the positions inside the chunk, and the offsets up to its last one; `ArchiveError` names the entry."""
        if len(chunk.headers):
            self._check_positions(chunk.headers)
            self._check_offsets(chunk.headers)

    def _check_positions(self, headers: BatchHeaders) -> None:
        first, positions = self._next_position, self.index.positions
        end = int(headers.position[-1]) + int(headers.size_bytes[-1])
        stop = int(np.searchsorted(positions, end))
        batch = np.maximum(np.searchsorted(headers.position, positions[first:stop], side="right") - 1, 0)
        is_wrong = headers.position[batch] != positions[first:stop]
        if is_wrong.any():
            slot = int(np.argmax(is_wrong))
            at = int(headers.position[batch[slot]])
            raise self._refusal(first + slot, f"the position of a batch; one begins at byte {at}")
        self._next_position = stop

    def _check_offsets(self, headers: BatchHeaders) -> None:
        """A batch that ends with an entry's offset begins at or after its position, and before the next entry's."""
        first, offsets, positions = self._next_offset, self.index.offsets, self.index.positions
        stop = int(np.searchsorted(offsets, int(headers.last_offset[-1]), side="right"))
        batch = np.searchsorted(headers.last_offset, offsets[first:stop])
        begins = headers.position[batch]
        found = headers.record_count[batch], headers.base_offset[batch], headers.last_offset[batch]
        is_wrong = ~may_end(*found, offsets[first:stop]) | (begins < positions[first:stop])
        followed = positions[first + 1 : stop + 1]
        is_wrong[: len(followed)] |= begins[: len(followed)] >= followed
        if is_wrong.any():
            slot = int(np.argmax(is_wrong))
            raise self._refusal(first + slot, _expected_offset(headers, int(batch[slot])))
        self._next_offset = stop

    def finish(self, summary: SegmentSummary) -> None:
        """Refuse entries that lie after the end of the log."""
        checked = min(self._next_position, self._next_offset)
        if checked < self.index.entry_count:
            raise self._refusal(checked, f"nothing after offset {summary.last_offset}, where the log ends")

    def _refusal(self, entry: int, expected: str) -> ArchiveError:
        return ArchiveError(
            Reason.OFFSET_INDEX_INVALID,
            f"offset index does not agree with the log in entry {entry}",
            object_name=self.object_name,
            position=entry * OFFSET_INDEX_ENTRY.itemsize,
            expected=expected,
            found=f"last offset {int(self.index.offsets[entry])} at byte {int(self.index.positions[entry])}",
        )


def may_end(
    record_counts: npt.NDArray[np.int32], base_offsets: Int64Column, last_offsets: Int64Column, offsets: Int64Column
) -> npt.NDArray[np.bool_]:
    """Whether each batch ends with its offset, or its last record may have it: so few records fit up to there."""
    room = offsets - base_offsets + 1
    found: npt.NDArray[np.bool_] = (record_counts > 0) & (record_counts <= room) | (last_offsets == offsets)
    return found


def _expected_offset(headers: BatchHeaders, batch: int) -> str:
    return (
        "the offset of a batch's last record, between this entry's position and the next one's; "
        f"the batch at byte {int(headers.position[batch])} ends with offset {int(headers.last_offset[batch])}"
    )


@dataclass(slots=True, kw_only=True)
class TimeIndexCheck:
    """Compare the entries of a time index with the batches of its log.

    An entry after the end of the log is not refused here: `SideFiles.require_agreement` knows where the log ends.
    """

    index: TimeIndex
    object_name: str
    _next_entry: int = field(default=0, init=False)

    def add(self, chunk: IndexChunk) -> None:
        """Check every entry up to the last offset of the chunk: its offset is in a batch."""
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
    """Compare a transaction index with the aborts that its log shows; an index without entries is not checked."""

    index: TxnIndex
    object_name: str
    start_offset: int
    _aborted: AbortedTransactions = field(default_factory=AbortedTransactions, init=False)

    def add(self, chunk: IndexChunk) -> None:
        """Collect the markers and the transactional batches of the chunk."""
        if not self.index.is_empty:
            self._aborted.add(chunk.headers, chunk.abort_offsets)

    def finish(self) -> None:
        """Refuse an index that lists other aborts than the log shows."""
        if self.index.is_empty:
            return
        listed = _entries_of(self.index)
        self._require(listed, _entries_of(self._aborted.finish(self._listed_starts(listed))))

    @property
    def is_start_needed(self) -> bool:
        """A listed transaction began before the log, or may have begun there."""
        is_listed = bool(self._listed_starts(_entries_of(self.index)))
        return is_listed or bool(self._aborted.may_begin_before)

    def require_starts(self, open_before: Mapping[int, int]) -> None:
        """Refuse an index with other transactions that began before the log than `open_before`: producers and first
        offsets. If no chunk was added, because the log is damaged, only those of the index are compared."""
        listed = _entries_of(self.index)
        if self._aborted.has_batches:
            self._require(listed, _entries_of(self._aborted.finish(open_before)))
            return
        shown = [
            (producer_id, first if first >= self.start_offset else open_before[producer_id], last)
            for producer_id, first, last in listed
            if first >= self.start_offset or producer_id in open_before
        ]
        self._require(listed, shown)

    def _listed_starts(self, listed: list[_Aborted]) -> dict[int, int]:
        return {producer_id: first for producer_id, first, _ in reversed(listed) if first < self.start_offset}

    def _require(self, listed: list[_Aborted], shown: list[_Aborted]) -> None:
        if listed == shown:
            return
        pairs = enumerate(zip(listed, shown, strict=False))
        at = next((at for at, (entry, expected) in pairs if entry != expected), min(len(listed), len(shown)))
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
