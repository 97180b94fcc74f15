"""Compute the aborted transactions of a log that has no transaction index.

The batches of the log are added in order. The entries are those of Kafka's own index of this log: a producer's
transaction begins with the first transactional batch after the producer's last marker and ends with a marker. An abort
marker of a transaction without a batch makes no entry (ProducerStateManager). The last stable offset of an entry is the
first offset of the oldest transaction that another producer has open at the marker, or the offset after the marker.

A transaction that began before the log is known only if `finish` gets its first offset. `may_begin_before` has the
producers for which this first offset is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coldlog.formats.kafka.record_batch import TRANSACTIONAL, BatchHeaders
from coldlog.formats.kafka.txn_index import TxnIndex

Int64Column = npt.NDArray[np.int64]
_DATA, _MARKER, _ABORT = 0, 1, 2


@dataclass(slots=True)
class AbortedTransactions:
    """Keeps 25 bytes for each transactional batch."""

    _producer_ids: list[Int64Column] = field(default_factory=list)
    _offsets: list[Int64Column] = field(default_factory=list)
    _kinds: list[npt.NDArray[np.int8]] = field(default_factory=list)

    def add(self, headers: BatchHeaders, abort_offsets: Int64Column) -> None:
        """Add the next batches; `abort_offsets` are the offsets of abort markers among them."""
        if not headers.has_any(TRANSACTIONAL):
            return
        kinds = headers.is_control.astype(np.int8)
        kinds[np.isin(headers.base_offset, abort_offsets) & headers.is_control] = _ABORT
        chosen = headers.is_transactional
        self._producer_ids.append(headers.producer_id[chosen])
        self._offsets.append(headers.base_offset[chosen])
        self._kinds.append(kinds[chosen])

    @property
    def has_batches(self) -> bool:
        """At least one batch is transactional."""
        return bool(self._offsets)

    @property
    def may_begin_before(self) -> frozenset[int]:
        """Producers whose first marker here is an abort: that transaction may have begun in an earlier log."""
        seen: set[int] = set()
        found: set[int] = set()
        for producer_id, _, kind in self._iter_batches():
            if kind == _ABORT and producer_id not in seen:
                found.add(producer_id)
            if kind != _DATA:
                seen.add(producer_id)
        return frozenset(found)

    def places(self) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Producer id and base offset of the abort markers, and of the batches with records."""
        batches = self._iter_batches()
        aborts = {(producer_id, offset) for producer_id, offset, kind in batches if kind == _ABORT}
        return aborts, {(producer_id, offset) for producer_id, offset, kind in batches if kind == _DATA}

    def finish(self, open_before: Mapping[int, int]) -> TxnIndex:
        """The entries; `open_before` has the first offsets of transactions that were open at the log's beginning."""
        open_from = dict(open_before)
        entries: list[tuple[int, int, int, int]] = []
        for producer_id, offset, kind in self._iter_batches():
            if kind == _DATA:
                open_from.setdefault(producer_id, offset)
                continue
            first_offset = open_from.pop(producer_id, None)
            if kind == _ABORT and first_offset is not None:
                entries.append((producer_id, first_offset, offset, min(open_from.values(), default=offset + 1)))
        columns = np.array(entries, dtype=np.int64).reshape(-1, 4).T
        return TxnIndex(
            producer_ids=columns[0],
            first_offsets=columns[1],
            last_offsets=columns[2],
            last_stable_offsets=columns[3],
        )

    def _iter_batches(self) -> list[tuple[int, int, int]]:
        columns = (self._producer_ids, self._offsets, self._kinds)
        if not self._offsets:
            return []
        return list(zip(*(np.concatenate(column).tolist() for column in columns), strict=True))
