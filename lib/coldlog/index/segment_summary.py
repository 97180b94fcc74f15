"""Summarize the headers and records of a segment.

`SegmentTotals` adds up the windows; `SegmentSummary` is the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numba
import numpy as np

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.compression import CODEC_NAMES
from coldlog.formats.kafka.record_batch import CODEC_MASK, CONTROL, TRANSACTIONAL, BatchHeaders
from coldlog.index.open_transactions import OpenTransactions
from coldlog.index.stairs import BatchTimes, Stairs
from coldlog.model.states import IndexDepth

_LOWEST = np.iinfo(np.int64).min
_NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSummary:
    """The totals of one segment. `*_timestamp_offset` is None if records were not decoded or there are none.

    `counted_*` are over records at or after `counted_from_offset`; `largest_batch_timestamp_ms` is over headers.
    `open_transactions` are first offsets by producer id, of transactions that begin in this log; `ended_producers` have
    a marker in it. `last_position` and `last_producer_id` are those of the last batch; the producer id is -1 if the
    batch has none or is a marker.
    """

    batch_count: int
    control_batch_count: int
    record_count: int
    abort_marker_count: int
    commit_marker_count: int
    base_offset: int
    last_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    max_timestamp_ms: int | None
    max_timestamp_offset: int | None
    min_timestamp_ms: int | None
    counted_max_timestamp_ms: int | None
    counted_max_timestamp_offset: int | None
    largest_batch_timestamp_ms: int
    stair_count: int
    codecs: tuple[str, ...]
    open_transactions: Mapping[int, int]
    ended_producers: frozenset[int]
    last_position: int
    last_producer_id: int


@dataclass(slots=True, kw_only=True)
class SegmentTotals:
    """Totals over the windows so far; `_last_stair_offset` is None while there is no stair."""

    batch_count: int = 0
    abort_marker_count: int = 0
    commit_marker_count: int = 0
    _control_batch_count: int = 0
    _record_count: int = 0
    _base_offset: int = -1
    _last_offset: int = -1
    _last_position: int = -1
    _last_producer_id: int = -1
    _stair_count: int = 0
    _leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    _codecs: int = 0
    _open_transactions: OpenTransactions = field(default_factory=OpenTransactions)
    _largest_batch_ms: int = int(_LOWEST)
    _largest: tuple[int, int] | None = None
    _smallest_ms: int | None = None
    _last_stair_offset: int | None = None

    def add(self, headers: BatchHeaders, times: BatchTimes | None, stairs: Stairs) -> None:
        """Add the batches of one window, at least one; `times` is None if records were not decoded. A leader epoch that
        decreases is an `ArchiveError`."""
        before = self._leader_epochs[-1][0] if self._leader_epochs else None
        records, codecs, attributes, largest_ms, has_records, largest_of_records_ms, has_other_epoch = _survey(
            headers.record_count, headers.attributes, headers.max_timestamp_ms, headers.leader_epoch,
            headers.leader_epoch[0] if before is None else before,
        )  # fmt: skip
        if not self.batch_count:
            self._base_offset = int(headers.base_offset[0])
        self.batch_count += len(headers)
        if attributes & (CONTROL | TRANSACTIONAL):
            self._control_batch_count += int(headers.is_control.sum())
            self._open_transactions.add(headers)
        self._record_count += records
        self._last_offset = int(headers.last_offset[-1])
        self._last_position = int(headers.position[-1])
        self._last_producer_id = -1 if headers.attributes[-1] & CONTROL else int(headers.producer_id[-1])
        self._codecs |= codecs
        self._largest_batch_ms = max(self._largest_batch_ms, largest_ms)
        if before is None or has_other_epoch:
            self._add_epochs(headers, before)
        self._stair_count += len(stairs.offset)
        if len(stairs.offset):
            self._last_stair_offset = int(stairs.offset[-1])
        if times is not None:
            self._add_times(headers, times)
        elif has_records and (self._largest is None or largest_of_records_ms > self._largest[0]):
            self._largest = (largest_of_records_ms, -1)

    def _add_epochs(self, headers: BatchHeaders, before: int | None) -> None:
        changes = np.flatnonzero(np.diff(headers.leader_epoch)) + 1
        falls = np.flatnonzero(np.diff(headers.leader_epoch) < 0) + 1
        if int(headers.leader_epoch[0]) < (_NO_LEADER_EPOCH if before is None else before):
            falls = np.array([0])
        if len(falls):
            raise ArchiveError(
                Reason.HEADER_INVALID,
                "leader epoch of a batch is lower than that of the previous batch",
                position=int(headers.position[falls[0]]),
                expected=f"epochs from {_NO_LEADER_EPOCH} on that never decrease",
                found=f"epoch {int(headers.leader_epoch[falls[0]])}",
            )
        for at in ([] if before == int(headers.leader_epoch[0]) else [0]) + changes.tolist():
            self._leader_epochs.append((int(headers.leader_epoch[at]), int(headers.base_offset[at])))

    def _add_times(self, headers: BatchHeaders, times: BatchTimes) -> None:
        with_records = np.flatnonzero(headers.record_count > 0)
        if not len(with_records):
            return
        first = int(with_records[np.argmax(times.largest_ms[with_records])])
        largest = int(times.largest_ms[first])
        if self._largest is None or largest > self._largest[0]:
            self._largest = (largest, int(times.largest_offset[first]))
        smallest = int(times.smallest_ms[with_records].min())
        self._smallest_ms = smallest if self._smallest_ms is None else min(self._smallest_ms, smallest)

    def summary(self, counted_max_ms: int | None, depth: IndexDepth) -> SegmentSummary:
        """The summary; `counted_max_ms` is the running maximum at the end."""
        is_decoded = depth is IndexDepth.RECORD
        return SegmentSummary(
            batch_count=self.batch_count,
            control_batch_count=self._control_batch_count,
            record_count=self._record_count,
            abort_marker_count=self.abort_marker_count,
            commit_marker_count=self.commit_marker_count,
            base_offset=self._base_offset,
            last_offset=self._last_offset,
            leader_epochs=tuple(self._leader_epochs),
            max_timestamp_ms=self._largest[0] if self._largest else None,
            max_timestamp_offset=self._largest[1] if self._largest and is_decoded else None,
            min_timestamp_ms=self._smallest_ms,
            counted_max_timestamp_ms=counted_max_ms,
            counted_max_timestamp_offset=self._last_stair_offset,
            largest_batch_timestamp_ms=self._largest_batch_ms,
            stair_count=self._stair_count,
            codecs=tuple(name for codec, name in enumerate(CODEC_NAMES) if self._codecs >> codec & 1),
            open_transactions=dict(self._open_transactions.first_offsets),
            ended_producers=frozenset(self._open_transactions.ended),
            last_position=self._last_position,
            last_producer_id=self._last_producer_id,
        )


@numba.njit(cache=True, nogil=True)
def _survey(record_count, attributes, max_timestamp_ms, leader_epoch, first_epoch):  # type: ignore[no-untyped-def]  # numba infers it
    """(records, codecs as bits, all attributes, largest timestamp, whether a batch has records, largest timestamp of
    batches with records, whether an epoch differs from the previous one)."""
    records, codecs, every = np.int64(0), np.int64(0), np.int64(0)
    largest, largest_of_records, has_records = _LOWEST, _LOWEST, False
    has_other_epoch, epoch = False, np.int64(first_epoch)
    for i in range(len(record_count)):
        records += record_count[i]
        codecs |= np.int64(1) << (attributes[i] & CODEC_MASK)
        every |= attributes[i]
        largest = max(largest, max_timestamp_ms[i])
        if record_count[i] > 0:
            has_records = True
            largest_of_records = max(largest_of_records, max_timestamp_ms[i])
        has_other_epoch |= leader_epoch[i] != epoch
        epoch = leader_epoch[i]
    return records, codecs, every, largest, has_records, largest_of_records, has_other_epoch
