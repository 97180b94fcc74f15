"""Compute the running maximum of the timestamp at each batch from the batch headers.

Depth `batch` does not read records: the running maximum is over the largest timestamps in the headers, for batches that
have records and end at or after `counted_from_offset`. If this offset is inside a batch, the batch counts with the
maximum that the caller found in its records, because its header also counts the records before the offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.index.stairs import RunningMaximum

Int64Column = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
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
    headers: BatchHeaders, running: RunningMaximum, cut: int | None = None, of_cut: RunningMaximum | None = None
) -> HeaderTimes:
    """The running maxima; advances `running`. `of_cut` is the maximum over the counted records of batch `cut`."""
    values = np.empty((2, len(headers)), dtype=np.int64)
    is_known = np.empty((2, len(headers)), dtype=np.bool_)
    running.timestamp_ms, running.is_known = _run(
        headers.last_offset, headers.record_count, headers.max_timestamp_ms,
        running.counted_from_offset, running.timestamp_ms, running.is_known,
        _NO_BATCH if cut is None else cut,
        0 if of_cut is None else of_cut.timestamp_ms, of_cut is not None and of_cut.is_known,
        values, is_known,
    )  # fmt: skip
    return HeaderTimes(
        previous_running_ms=values[0],
        has_previous_running=is_known[0],
        running_ms=values[1],
        has_running=is_known[1],
    )


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
