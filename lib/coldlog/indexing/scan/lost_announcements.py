"""Find the listed segments whose announcement the metadata topic may have lost.

If retention removed records of a metadata partition before they were read, a listed segment without an event is either
an orphan or was announced in the lost records. A broker copies the segments of a partition one after another, by
offset. So the announcement came after those of earlier segments and before those of later segments. It can be lost only
if lost records lie between the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from coldlog.indexing.events.announced_segments import SegmentKey
from coldlog.tables.delta.row_edits import Row

_FIRST, _LAST = -1, 2**63 - 1


def segment_key(row: Row) -> SegmentKey:
    """The key that `fold_events` gives the segment of this row."""
    return row["topic"], row["partition"], row["topic_id"], row["segment_id"]


def may_be_announced(
    listed: Iterable[Row], announced: Mapping[SegmentKey, Row], lost: Mapping[int, Sequence[int]]
) -> frozenset[SegmentKey]:
    """Return the keys of the listed segments without an event that lost records may have announced.

    `announced` are the segments with a valid event, as `fold_events` has them; both have all segments of a partition.
    `lost` has the last offset of each run of lost records, by metadata partition.
    """
    if not lost:
        return frozenset()
    of_partitions: dict[tuple[str, int], list[Row]] = {}
    for (_, partition, topic_id, _), row in announced.items():
        if row["announced_start_offset"] is not None:
            of_partitions.setdefault((topic_id, partition), []).append(row)
    announcements = {partition: _Announcements(rows, lost) for partition, rows in of_partitions.items()}
    return frozenset(
        segment_key(row)
        for row in listed
        if segment_key(row) not in announced
        and (found := announcements.get((row["topic_id"], row["partition"]))) is not None
        and found.may_lack(row["start_offset"])
    )


class _Announcements:
    """The segments of a partition that were announced with their offsets, in the order of these."""

    def __init__(self, rows: Sequence[Row], lost: Mapping[int, Sequence[int]]) -> None:
        places = sorted((row["announced_start_offset"], row["metadata_offset"]) for row in rows)
        self._starts = [start for start, _ in places]
        self._latest = [_FIRST, *accumulate((at for _, at in places), max)]
        earliest = [_LAST, *accumulate((at for _, at in reversed(places)), min)]
        self._earliest = earliest[::-1]
        self._lost = lost.get(max(row["metadata_partition"] for row in rows), ())

    def may_lack(self, start_offset: int) -> bool:
        """Whether records were lost after the announcements up to this offset, and before those of later segments."""
        at = bisect_right(self._starts, start_offset)
        return any(self._latest[at] < lost < self._earliest[at] for lost in self._lost)
