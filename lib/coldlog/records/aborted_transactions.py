"""Hold the aborted transactions of a partition, to leave out their records.

They are rows of `txn_index`, or entries of the transaction indexes of a log directory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coldlog.formats.kafka.txn_index import TxnIndex
from coldlog.model.transactions import AbortedTransaction

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransactions:
    """Aborted transactions: records of `producer_id[i]` from `first_offset[i]` to `last_offset[i]`, its marker, do not
    count. Sorted by producer and first offset; those of one producer do not overlap."""

    producer_id: Int64s
    first_offset: Int64s
    last_offset: Int64s
    last_stable_offset: Int64s

    def __len__(self) -> int:
        return len(self.producer_id)

    @classmethod
    def in_order(cls, producer: Int64s, first: Int64s, last: Int64s, stable: Int64s) -> AbortedTransactions:
        """Sort the transactions of these columns."""
        order = np.lexsort((first, producer))
        return cls(
            producer_id=producer[order],
            first_offset=first[order],
            last_offset=last[order],
            last_stable_offset=stable[order],
        )

    def between(self, from_offset: int, to_offset: int) -> AbortedTransactions:
        """Return the transactions that may have records between the offsets, both inclusive."""
        if not len(self):
            return self
        return self._where((self.last_offset >= from_offset) & (self.first_offset <= to_offset))

    def ended_from(self, offset: int) -> AbortedTransactions:
        """Return the transactions whose marker is at or after the offset."""
        return self._where(self.last_offset >= offset)

    def joined(self, other: AbortedTransactions) -> AbortedTransactions:
        """Return the transactions of both, which have none in common."""
        if not len(other):
            return self
        columns = zip(self._columns, other._columns, strict=True)
        return AbortedTransactions.in_order(*(np.concatenate(pair) for pair in columns))

    @property
    def _columns(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        return self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset

    def _where(self, is_taken: Flags) -> AbortedTransactions:
        return AbortedTransactions.in_order(*(column[is_taken] for column in self._columns))

    def rows(self) -> list[AbortedTransaction]:
        """Return the transactions by first offset."""
        columns = (self.first_offset, self.producer_id, self.last_offset, self.last_stable_offset)
        return [
            AbortedTransaction(producer_id=producer, first_offset=first, last_offset=last, last_stable_offset=stable)
            for first, producer, last, stable in sorted(zip(*(each.tolist() for each in columns), strict=True))
        ]

    def hold(self, producer_ids: Int64s, offsets: Int64s) -> Flags:
        """Flag the batches, given by producer and base offset, that belong to one of these transactions."""
        held = np.zeros(len(offsets), dtype=np.bool_)
        for producer_id in np.intersect1d(producer_ids, self.producer_id).tolist():
            of_producer = slice(*np.searchsorted(self.producer_id, [producer_id, producer_id + 1]).tolist())
            where = np.flatnonzero(producer_ids == producer_id)
            before = np.searchsorted(self.first_offset[of_producer], offsets[where], side="right") - 1
            is_inside = (before >= 0) & (offsets[where] <= self.last_offset[of_producer][np.maximum(before, 0)])
            held[where[is_inside]] = True
        return held


NOTHING_ABORTED = AbortedTransactions(
    producer_id=np.empty(0, dtype=np.int64),
    first_offset=np.empty(0, dtype=np.int64),
    last_offset=np.empty(0, dtype=np.int64),
    last_stable_offset=np.empty(0, dtype=np.int64),
)


def aborted_in(indexes: tuple[TxnIndex, ...]) -> AbortedTransactions:
    """Return the transactions that markers in these segments aborted."""
    names = ("producer_ids", "first_offsets", "last_offsets", "last_stable_offsets")
    columns = (
        np.concatenate([NOTHING_ABORTED.producer_id, *(getattr(one, name) for one in indexes)]) for name in names
    )
    return AbortedTransactions.in_order(*columns)
