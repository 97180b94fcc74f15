"""Find the transactions that may be open where a segment stops serving before its end.

Behind such a cut, the log of a deposed leader may end transactions that its successor ends otherwise. If the log has no
marker, what is open at its end was open at the cut. If it has markers, or may have some, any transaction of the segment
may be open at the cut, and the oldest one that the segment before it leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldlog.index.partition_plan import IncarnationPlan
from coldlog.tables.delta.row_edits import Row


def find_open_at_cuts(plan: IncarnationPlan, by_id: Mapping[str, Row]) -> dict[str, int | None]:
    """Return, for each segment that is cut at its end, the first offset of the oldest transaction that may be open
    there; None: there is none. `by_id` has the rows of `segments`."""
    found: dict[str, int | None] = {}
    reached, open_from = -1, None
    for served in sorted(
        (each for each in plan.segments if each.reason is None), key=lambda each: each.from_offset or 0
    ):
        row, first, last = by_id[served.segment.segment_id], served.from_offset or 0, served.to_offset or 0
        open_before = open_from if first == reached + 1 else None
        reached, open_from = last, row["open_from_offset"]
        if served.is_cut_at_end:
            is_without_marker = row["commit_marker_count"] == row["abort_marker_count"] == 0 and row["holes"] is None
            own = open_from if is_without_marker else first
            open_from = min((each for each in (own, open_before) if each is not None and each <= last), default=None)
            found[served.segment.segment_id] = open_from
    return found
