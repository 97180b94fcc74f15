"""Find the transactions that may be open where a segment stops serving, if the segment alone does not show them.

That is so before its end: behind such a cut, the log of a deposed leader may end transactions that its successor ends
otherwise. If the log has no marker, what is open at its end was open at the cut. If it has markers, or may have some,
any transaction of the segment may be open at the cut, and the oldest one that the segment before it leaves open.

It is also so in a mirror without a producer snapshot of the segment's end: a transaction of an earlier segment that has
no batch in this one. If the log has no marker, all that is open where it begins is open at its end.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldlog.index.partition_plan import IncarnationPlan
from coldlog.tables.delta.row_edits import Row


def find_open_at_cuts(plan: IncarnationPlan, by_id: Mapping[str, Row]) -> dict[str, int | None]:
    """Return, for each segment that is cut at its end, the first offset of the oldest transaction that may be open
    there; None: there is none. Return it for other segments only if `open_from_offset` does not say it. `by_id` has the
    rows of `segments`."""
    found: dict[str, int | None] = {}
    open_from: int | None = None
    reached, is_cut = -1, False
    for served in sorted(
        (each for each in plan.segments if each.reason is None), key=lambda each: each.from_offset or 0
    ):
        row, first, last = by_id[served.segment.segment_id], served.from_offset or 0, served.to_offset or 0
        open_before = open_from if first == reached + 1 else None
        is_without_marker = row["commit_marker_count"] == row["abort_marker_count"] == 0 and row["holes"] is None
        at_end = row["open_from_offset"]
        if served.is_cut_at_end:
            own = at_end if is_without_marker else first
            open_from = min((each for each in (own, open_before) if each is not None and each <= last), default=None)
            found[served.segment.segment_id] = open_from
        elif is_without_marker and open_before is not None and not is_cut and (at_end is None or open_before < at_end):
            open_from = found[served.segment.segment_id] = open_before
        else:
            open_from = at_end
        reached, is_cut = last, served.is_cut_at_end
    return found
