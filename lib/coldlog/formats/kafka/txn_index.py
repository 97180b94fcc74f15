"""Read and write a segment's transaction index: the transactions that a marker in the segment aborted.

Entry, 34 bytes, big endian (org.apache.kafka.storage.internals.log.AbortedTxn):

    int16 version               0
    int64 producer_id
    int64 first_offset          of the transaction; may be in an earlier segment
    int64 last_offset           the abort marker; always in this segment
    int64 last_stable_offset    the first undecided offset after the marker was written

The file has only aborted transactions, in the order of their markers: last offsets ascend strictly. If there are none,
Kafka omits the file or leaves it empty. So its content (`is_empty`) decides, never its presence.

Refused (TXN_INDEX_INVALID): a size that is not a multiple of 34, another version, negative ids or offsets, a
transaction that ends before it begins or before the segment, last offsets that do not ascend. Last stable offsets may
have any order; Kafka writes 0 in some entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coldlog.errors import Reason, UsageError
from coldlog.formats.kafka.index_entries import (
    INT64_MAX,
    IndexFileFormat,
    Int64Column,
    find_not_ascending,
    read_column,
)

TXN_INDEX_VERSION = 0
TXN_INDEX_ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
_FORMAT = IndexFileFormat(name="txn index", entry_type=TXN_INDEX_ENTRY, reason=Reason.TXN_INDEX_INVALID)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TxnIndex:
    """Aborted transactions by columns (compared by identity: arrays have no single truth value)."""

    producer_ids: Int64Column
    first_offsets: Int64Column
    last_offsets: Int64Column
    last_stable_offsets: Int64Column

    @property
    def entry_count(self) -> int:
        """The number of aborted transactions."""
        return len(self.producer_ids)

    @property
    def is_empty(self) -> bool:
        """The segment has no aborted transaction."""
        return self.entry_count == 0


def read_txn_index(buffer: memoryview, *, base_offset: int) -> TxnIndex:
    """All entries of a `.txnindex` file; `base_offset` is the start offset of its segment."""
    return _read_entries(buffer, base_offset) if buffer.nbytes else _EMPTY


def _read_entries(buffer: memoryview, base_offset: int) -> TxnIndex:
    entries = _FORMAT.view_entries(buffer)
    _FORMAT.require_range("version", read_column(entries, "version"), TXN_INDEX_VERSION, TXN_INDEX_VERSION)
    index = TxnIndex(
        producer_ids=read_column(entries, "producer_id"),
        first_offsets=read_column(entries, "first_offset"),
        last_offsets=read_column(entries, "last_offset"),
        last_stable_offsets=read_column(entries, "last_stable_offset"),
    )
    _FORMAT.require_range("producer id", index.producer_ids, 0, INT64_MAX)
    _FORMAT.require_range("first offset", index.first_offsets, 0, INT64_MAX)
    _FORMAT.require_range("last offset", index.last_offsets, base_offset, INT64_MAX)
    _FORMAT.require_range("last stable offset", index.last_stable_offsets, 0, INT64_MAX)
    _FORMAT.require_ascending("last offset", index.last_offsets)
    # Both offsets were checked to be non-negative, so the difference cannot overflow.
    _FORMAT.require_range("length", index.last_offsets - index.first_offsets, 0, INT64_MAX)
    return index


def write_txn_index(index: TxnIndex) -> bytes:
    """The bytes of a `.txnindex` file."""
    slot = find_not_ascending(index.last_offsets)
    if slot is not None:
        raise UsageError(
            f"txn index entry {slot} cannot be written: last offset {int(index.last_offsets[slot])} descends"
        )
    entries = np.empty(index.entry_count, dtype=TXN_INDEX_ENTRY)
    entries["version"] = TXN_INDEX_VERSION
    entries["producer_id"] = index.producer_ids
    entries["first_offset"] = index.first_offsets
    entries["last_offset"] = index.last_offsets
    entries["last_stable_offset"] = index.last_stable_offsets
    return entries.tobytes()


_EMPTY = _read_entries(memoryview(b""), 0)
"""Most segments have none."""
