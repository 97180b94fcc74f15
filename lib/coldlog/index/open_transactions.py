"""Find the transactions that are open at the end of a log.

A transaction begins with its producer's first transactional batch after the producer's last marker, and ends with a
marker. Only transactions that begin in the log are found; one that began earlier is known from an earlier segment or
from the producer snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coldlog.formats.kafka.record_batch import BatchHeaders


@dataclass(slots=True)
class OpenTransactions:
    """Open transactions after the batches that were added in order. `first_offsets` are by producer id; `ended` has the
    producers with a marker."""

    first_offsets: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def add(self, headers: BatchHeaders) -> None:
        """Add the next batches."""
        transactional = np.flatnonzero(headers.is_transactional)
        if not len(transactional):
            return
        producers = headers.producer_id[transactional]
        order = np.argsort(producers, kind="stable")
        batches, producers = transactional[order], producers[order]
        starts = np.flatnonzero(np.diff(producers, prepend=producers[0] - 1))
        is_control = headers.is_control[batches]
        last_markers = np.maximum.reduceat(np.where(is_control, batches, -1), starts)
        lengths = np.diff(np.append(starts, len(batches)))
        is_open = ~is_control & (batches > np.repeat(last_markers, lengths))
        first_open = np.minimum.reduceat(np.where(is_open, batches, len(headers)), starts)
        self._merge(producers[starts], last_markers >= 0, first_open, headers.base_offset)

    def _merge(
        self,
        producers: npt.NDArray[np.int64],
        was_ended: npt.NDArray[np.bool_],
        first_open: npt.NDArray[np.int64],
        base_offsets: npt.NDArray[np.int64],
    ) -> None:
        for producer, ended, batch in zip(producers.tolist(), was_ended.tolist(), first_open.tolist(), strict=True):
            if ended:
                self.ended.add(producer)
                self.first_offsets.pop(producer, None)
            if batch < len(base_offsets):
                self.first_offsets.setdefault(producer, int(base_offsets[batch]))
