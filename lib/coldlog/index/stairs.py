"""Find the stairs of a segment: the records with a higher timestamp than every earlier record.

One call reads the records of many batches: of each record its length, attributes, timestamp delta and offset delta;
key, value and headers are skipped by the length. The running maximum is passed from call to call, so a segment can be
read in pieces. Only records at or after `counted_from_offset` count for the running maximum and the stairs; the largest
and smallest timestamps of a batch count all of its records.

Refused (`RECORDS_INVALID`, with the batch's position): a record that extends beyond its batch, fewer or more records
than in the header, a number that is too long, offsets that do not ascend or are outside the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numba
import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.kafka.sections import RecordSections
from coldlog.formats.kafka.varint import MAX_VARINT_BYTES, MAX_VARLONG_BYTES, read_signed

Int64Column = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]

_FINE, _BAD_LENGTH, _BAD_NUMBER, _BAD_OFFSET, _NOT_CONSUMED = 0, 1, 2, 3, 4
_COMPLAINTS = {
    _BAD_LENGTH: "record extends beyond its batch",
    _BAD_NUMBER: "record has a number that does not end",
    _BAD_OFFSET: "record offset does not ascend or is outside its batch",
    _NOT_CONSUMED: "batch has bytes after its last record",
}


@dataclass(slots=True, kw_only=True)
class RunningMaximum:
    """The largest timestamp of a segment so far; `is_known` is False before the first counted record."""

    counted_from_offset: int
    timestamp_ms: int = 0
    is_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stairs:
    """One entry per stair. `has_previous` is False for the first stair of a segment, which has no
    `previous_timestamp_ms`.

    `batch` is an index into the headers that the sections belong to.
    """

    timestamp_ms: Int64Column
    previous_timestamp_ms: Int64Column
    has_previous: BoolColumn
    offset: Int64Column
    batch: Int64Column


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Timestamps of the records, one entry per batch; undefined for a batch without records."""

    largest_ms: Int64Column
    largest_offset: Int64Column
    smallest_ms: Int64Column
    running_ms: Int64Column
    has_running: BoolColumn = field()


def find_stairs(sections: RecordSections, headers: BatchHeaders, running: RunningMaximum) -> tuple[Stairs, BatchTimes]:
    """Stairs and times of the batches in `sections`; advances `running`."""
    count = len(sections.starts)
    of_batches = slice(sections.first, sections.first + count)
    room = int(headers.record_count[of_batches].sum(dtype=np.int64))
    stairs = np.empty((4, room), dtype=np.int64)
    has_previous = np.empty(room, dtype=np.bool_)
    times = np.zeros((4, count), dtype=np.int64)
    has_running = np.zeros(count, dtype=np.bool_)
    found, status, batch, timestamp_ms, is_known = _find_stairs(
        sections.buffer, sections.starts, sections.ends,
        headers.base_offset[of_batches], headers.last_offset[of_batches], headers.base_timestamp_ms[of_batches],
        headers.max_timestamp_ms[of_batches], headers.is_log_append_time[of_batches], headers.record_count[of_batches],
        running.counted_from_offset, running.timestamp_ms, running.is_known,
        stairs, has_previous, times, has_running,
    )  # fmt: skip
    if status != _FINE:
        raise ArchiveError(
            Reason.RECORDS_INVALID,
            _COMPLAINTS[status],
            position=int(headers.position[sections.first + batch]),
            expected=f"{int(headers.record_count[sections.first + batch])} records",
            found="others",
        )
    running.timestamp_ms, running.is_known = int(timestamp_ms), bool(is_known)
    stairs = stairs[:, :found].copy() if found * 2 < room else stairs[:, :found]
    return (
        Stairs(
            timestamp_ms=stairs[0],
            previous_timestamp_ms=stairs[1],
            has_previous=has_previous[:found],
            offset=stairs[2],
            batch=stairs[3] + sections.first,
        ),
        BatchTimes(
            largest_ms=times[0],
            largest_offset=times[1],
            smallest_ms=times[2],
            running_ms=times[3],
            has_running=has_running,
        ),
    )


@numba.njit(cache=True, nogil=True)
def _find_stairs(  # type: ignore[no-untyped-def]  # noqa: C901  # numba infers it; one loop, split it would be slower
    buffer, starts, ends, base_offsets, last_offsets, base_timestamps, max_timestamps, is_append_time, counts,
    counted_from, running, is_known, stairs, has_previous, times, has_running,
):  # fmt: skip
    """(stairs found, status, the batch of this status, running maximum, whether it is known)."""
    found = 0
    for batch in range(len(starts)):
        at, end = starts[batch], ends[batch]
        next_delta = np.int64(0)
        last_delta = last_offsets[batch] - base_offsets[batch]
        largest, smallest, largest_offset = np.int64(0), np.int64(0), np.int64(0)
        for record in range(counts[batch]):
            length, at = read_signed(buffer, at, end, MAX_VARINT_BYTES)
            if at < 0 or length < 0 or length > end - at:
                return found, _BAD_LENGTH, batch, running, is_known
            stop = at + length
            timestamp_delta, at = read_signed(buffer, at + 1, stop, MAX_VARLONG_BYTES)
            if at < 0:
                return found, _BAD_NUMBER, batch, running, is_known
            offset_delta, at = read_signed(buffer, at, stop, MAX_VARINT_BYTES)
            if at < 0:
                return found, _BAD_NUMBER, batch, running, is_known
            if offset_delta < next_delta or offset_delta > last_delta:
                return found, _BAD_OFFSET, batch, running, is_known
            next_delta = offset_delta + 1
            at = stop
            timestamp = max_timestamps[batch] if is_append_time[batch] else base_timestamps[batch] + timestamp_delta
            offset = base_offsets[batch] + offset_delta
            if record == 0 or timestamp > largest:
                largest, largest_offset = timestamp, offset
            if record == 0 or timestamp < smallest:
                smallest = timestamp
            if offset >= counted_from and (not is_known or timestamp > running):
                stairs[0, found] = timestamp
                stairs[1, found] = running
                stairs[2, found] = offset
                stairs[3, found] = batch
                has_previous[found] = is_known
                found += 1
                running, is_known = timestamp, True
        if at != end:
            return found, _NOT_CONSUMED, batch, running, is_known
        times[0, batch], times[1, batch], times[2, batch] = largest, largest_offset, smallest
        times[3, batch] = running
        has_running[batch] = is_known
    return found, _FINE, len(starts), running, is_known
