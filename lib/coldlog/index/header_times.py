"""Compute the running maximum of the timestamp at each batch from the batch headers.

Depth `batch` does not read records: the running maximum is over the largest timestamps in the headers, for batches that
have records and end at or after `counted_from_offset`. If this offset is inside a batch, the batch counts with the
maximum that the caller found in its records, because its header also counts the records before the offset.

At depth `record` the stairs and maxima of a window's records are found as if the segment began there. `go_on` makes of
them those of the whole segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numba
import numpy as np
import numpy.typing as npt

from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.index.stairs import BatchTimes, RunningMaximum, Stairs

Int64Column = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", np.int64, np.bool_)
_NO_BATCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderTimes:
    """The running maximum before each batch and including it, one entry per batch; valid only if its flag is set."""

    previous_running_ms: Int64Column
    has_previous_running: BoolColumn
    running_ms: Int64Column
    has_running: BoolColumn


def find_cut_batch(headers: BatchHeaders, offset: int) -> int | None:
    """The index of the batch that begins before `offset` and ends at or after it, if it has records; batches ascend."""
    if not len(headers) or int(headers.base_offset[0]) >= offset:
        return None
    batch = int(np.searchsorted(headers.last_offset, offset))
    is_cut = batch < len(headers) and int(headers.base_offset[batch]) < offset and int(headers.record_count[batch]) > 0
    return batch if is_cut else None


def run_over_headers(
    headers: BatchHeaders, running: RunningMaximum, cut: int | None, of_cut: RunningMaximum
) -> HeaderTimes:
    """The running maxima; advances `running`. `of_cut` is the maximum over the counted records of batch `cut`."""
    values = np.empty((2, len(headers)), dtype=np.int64)
    is_known = np.empty((2, len(headers)), dtype=np.bool_)
    running.timestamp_ms, running.is_known = _run(
        headers.last_offset, headers.record_count, headers.max_timestamp_ms,
        running.counted_from_offset, running.timestamp_ms, running.is_known,
        _NO_BATCH if cut is None else cut,
        of_cut.timestamp_ms, of_cut.is_known,
        values, is_known,
    )  # fmt: skip
    return HeaderTimes(
        previous_running_ms=values[0],
        has_previous_running=is_known[0],
        running_ms=values[1],
        has_running=is_known[1],
    )


def go_on(stairs: Stairs, times: BatchTimes, running: RunningMaximum) -> tuple[Stairs, HeaderTimes]:
    """The stairs and running maxima of a window in its segment; advances `running`, the maximum before the window.

    A stair of the window is one of the segment if it is above that maximum. Stairs ascend, so these are the last ones.
    """
    before_ms, is_known = running.timestamp_ms, running.is_known
    running_ms, has_running = times.running_ms, times.has_running
    if is_known:
        first = int(np.searchsorted(stairs.timestamp_ms, before_ms, side="right"))
        stairs = _from(stairs, first, before_ms)
        running_ms = np.where(has_running, np.maximum(running_ms, before_ms), before_ms)
        has_running = np.ones(len(has_running), dtype=np.bool_)
    if len(stairs.offset):
        running.timestamp_ms, running.is_known = int(stairs.timestamp_ms[-1]), True
    return stairs, HeaderTimes(
        previous_running_ms=_shifted(running_ms, before_ms),
        has_previous_running=_shifted(has_running, is_known),
        running_ms=running_ms,
        has_running=has_running,
    )


def _from(stairs: Stairs, first: int, previous_ms: int) -> Stairs:
    previous_timestamp_ms, has_previous = (
        stairs.previous_timestamp_ms[first:].copy(),
        stairs.has_previous[first:].copy(),
    )
    previous_timestamp_ms[:1], has_previous[:1] = previous_ms, True
    return Stairs(
        timestamp_ms=stairs.timestamp_ms[first:].copy(),
        previous_timestamp_ms=previous_timestamp_ms,
        has_previous=has_previous,
        offset=stairs.offset[first:].copy(),
        batch=stairs.batch[first:].copy(),
    )


def _shifted(column: npt.NDArray[_Scalar], before: int | bool) -> npt.NDArray[_Scalar]:
    """The column shifted by one entry; the first entry is `before`."""
    return np.concatenate((np.array([before], dtype=column.dtype), column[:-1])) if len(column) else column


@numba.njit(cache=True, nogil=True)
def _run(  # type: ignore[no-untyped-def]  # numba infers it
    last_offsets, counts, max_timestamps, counted_from, running, is_known, cut, cut_ms, is_cut_known, values, flags
):
    """Fill `values` and `flags`; return the running maximum and whether it is known."""
    for i in range(len(last_offsets)):
        values[0, i], flags[0, i] = running, is_known
        timestamp, is_counted = max_timestamps[i], counts[i] > 0 and last_offsets[i] >= counted_from
        if i == cut:
            timestamp, is_counted = cut_ms, is_cut_known
        if is_counted and (not is_known or timestamp > running):
            running, is_known = timestamp, True
        values[1, i], flags[1, i] = running, is_known
    return running, is_known
