"""Find, from a segment's offset and time index alone, the part of its log that has the first match of a timestamp.

The rule. Kafka writes both indexes together: with each entry of the offset index, and once more at the close, it adds
the largest timestamp so far to the time index, if it has increased. An entry (L, P) of the offset index says: the
batches that were appended at once begin at position P and end with offset L. So for each L

    (1) the largest timestamp of all batches up to L is that of the last time index entry with an offset of at most L.

Proof. At the time of (L, P) Kafka had the maximum M over all batches up to L (`LogSegment.append` updates it first). It
appended (M, o), or M was there already; o is in the batch that reached M first, so o <= L. Every later entry has a
larger timestamp, which no batch up to L has, so its offset is after L. `LogSegment.recover` rebuilds both files by the
same steps. `truncateTo` removes the entries at or after an offset from both, and (1) holds for every L that stays. A
clean stop adds an entry of the time index for a maximum that a later L covers as well. A follower up to Kafka 3.9.0,
and 4.0.0, appends a fetched set at once (KAFKA-806): L is then the end of the set, and M counts the whole set.

The offset index cuts the log into intervals: after one L, up to the next one, and from the last L to the end. Let R be
the largest timestamp up to the end of an interval by (1); for the last one it is the last entry, which the close adds.

    (2) For R of the previous interval < T <= R, the first batch with a timestamp of at least T is in the interval.

No batch up to the previous L reaches T, and one up to the interval's L does. The bytes of an interval begin at the P of
the previous L, because only the begin of those batches is known, and end at the P after its own L, or at the log's end.
The same holds for the intervals that remain if entries of the offset index are left out (`stride_bytes`).

What does not hold:

- "The first match is in the batch of the time index entry." With 5, 9 and 7 in an interval only 9 has an entry, and the
  first match of 4 is the batch with 5.
- "The interval ends at the P of its own L." In a follower's index L may end a set that begins at P: the match may be
  any batch of the set.
- "Backward timestamps break it." They add no entry, and (1) counts maxima only.
- "(1) holds for a log that an older log cleaner has written." Its entry may name the last record of a batch, before the
  batch's end (`index_checks`), and the time index names the end. No batch ends with such an L. So readers refuse the
  interval and report it, and the next build reads the log.

`T` is not negative. Kafka's maximum begins at -1, so batches without timestamps have no entry.

Two facts are not in the files. The maximum in a batch's header may be one that no record has (compaction removed it),
and a truncation inside a batch may leave the time index entry of a removed batch, written by a leader up to Kafka 3.7,
which names the record. Then an interval has no match: the next one is searched, and so on up to the log's end.

Not fit for this, and so None: no entry in the time index, entries after the end of the log, and a last time index entry
that is not the announced maximum. Then the file is not that of a closed segment, or belongs to another one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coldlog.formats.kafka.offset_index import OffsetIndex
from coldlog.formats.kafka.time_index import TimeIndex

Int64Column = npt.NDArray[np.int64]
NO_TIMESTAMP_MS = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogIntervals:
    """The intervals of a log by columns, in order.

    An interval has the batches that end after `after_offset` and at or before `last_offset`; its bytes are
    `size_bytes` from `position` on, and may begin and end with batches of its neighbours. `running_max_ms` is the
    largest timestamp up to its end, and -1 if there is none.
    """

    after_offset: Int64Column
    last_offset: Int64Column
    position: Int64Column
    size_bytes: Int64Column
    running_max_ms: Int64Column

    def __len__(self) -> int:
        return len(self.position)

    def find(self, timestamp_ms: int) -> int | None:
        """Return the interval that has the first match of a timestamp of at least 0; None if no interval has one."""
        at = int(np.searchsorted(self.running_max_ms, timestamp_ms))
        return at if at < len(self) else None


def find_intervals(
    offset_index: OffsetIndex,
    time_index: TimeIndex,
    *,
    end_offset: int,
    max_timestamp_ms: int,
    log_bytes: int,
    stride_bytes: int,
) -> LogIntervals | None:
    """Return the intervals of a closed segment, of at least `stride_bytes` each except the last; None if the indexes
    are not fit for it.

    `end_offset` (inclusive), `max_timestamp_ms` and `log_bytes` are those that its metadata announced.
    """
    if not _is_fit(offset_index, time_index, end_offset, max_timestamp_ms, log_bytes):
        return None
    cuts = _find_cuts(offset_index.positions, stride_bytes)
    cuts = cuts[offset_index.offsets[cuts] < end_offset]  # no batch is after the end
    after_offset = np.concatenate(([offset_index.base_offset - 1], offset_index.offsets[cuts]))
    position = np.concatenate(([0], offset_index.positions[cuts]))
    last_offset = np.concatenate((after_offset[1:], [end_offset]))
    # The batches of a cut's own entry belong to the interval before it; they end where the next entry begins at latest.
    ends = np.concatenate((offset_index.positions, [log_bytes]))[cuts + 1]
    end = np.concatenate((ends, [log_bytes]))
    reached = np.searchsorted(time_index.offsets, last_offset, side="right")
    maxima = np.concatenate(([NO_TIMESTAMP_MS], time_index.timestamps_ms))
    return LogIntervals(
        after_offset=after_offset,
        last_offset=last_offset,
        position=position,
        size_bytes=end - position,
        running_max_ms=maxima[reached],
    )


def _is_fit(
    offset_index: OffsetIndex, time_index: TimeIndex, end_offset: int, max_timestamp_ms: int, log_bytes: int
) -> bool:
    if not time_index.entry_count or log_bytes <= 0 or end_offset < offset_index.base_offset:
        return False
    is_closed = int(time_index.timestamps_ms[-1]) == max_timestamp_ms and int(time_index.offsets[-1]) <= end_offset
    if not offset_index.entry_count:
        return is_closed
    return is_closed and int(offset_index.offsets[-1]) <= end_offset and int(offset_index.positions[-1]) < log_bytes


def _find_cuts(positions: Int64Column, stride_bytes: int) -> npt.NDArray[np.intp]:
    """Return the entries at which an interval begins: the first one a stride or more after each begin."""
    # A list, because numpy's search for single values made a whole build three times as long.
    begins, cuts = positions.tolist(), []
    at = bisect_left(begins, max(stride_bytes, 1))
    while at < len(begins):
        cuts.append(at)
        at = bisect_left(begins, begins[at] + stride_bytes, at + 1)
    return np.array(cuts, dtype=np.intp)
