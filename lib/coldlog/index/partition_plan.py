"""Plan which segments of a partition serve which offsets.

Input are the segments of one topic-partition, of every incarnation of its topic. The plan finds the log start offset
and the lineage of the leader epochs, decides which offsets each segment serves (up to where it leaves the lineage, then
by `served_ranges`), computes the running maximum of the timestamp over the served segments, and summarizes the
partition. A lookup starts from the running maxima: the segment with the first record at or after T is the only one with
previous < T <= running. There are two: one over the timestamps of the records, one over those in Kafka's metadata. The
offsets that lookups pass over are in `unserved_ranges`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage
from coldlog.index.log_start import (
    LogStart,
    LogStartSource,
    epochs_without_checkpoint,
    find_log_start,
    hidden_log_start,
    start_at_first_segment,
)
from coldlog.index.segment_facts import SegmentFacts, finished_max_timestamp_ms
from coldlog.index.served_ranges import (
    NO_LEADER_EPOCH,
    Candidate,
    NotServedReason,
    ServedRange,
    count_gaps,
    plan_served_ranges,
)
from coldlog.index.unserved_ranges import (
    UnreadSegment,
    UnservedRange,
    find_unserved_ranges,
    ranges_with_rising_bounds,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSegment:
    """The offsets that a segment serves. `must_count_from` is set if its index was counted from another offset than
    `from_offset`; `is_cut_at_end` if another upload serves its last offsets."""

    segment: SegmentFacts
    from_offset: int | None
    to_offset: int | None
    reason: NotServedReason | None
    is_within_lineage: bool | None = None
    is_cut_at_end: bool = False
    max_timestamp_ms: int | None = None
    previous_running_max_timestamp_ms: int | None = None
    running_max_timestamp_ms: int | None = None
    broker_previous_running_max_timestamp_ms: int | None = None
    broker_running_max_timestamp_ms: int | None = None

    @property
    def must_count_from(self) -> int | None:
        return None if self.from_offset == self.segment.counted_from_offset else self.from_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationPlan:
    """The plan of one incarnation of a topic's partition; segments are in the order of start offsets.

    `max_timestamp_ms` is that of the offsets served, `finished_max_timestamp_ms` that of all finished segments.
    """

    topic_id: str
    is_current: bool
    log_start: LogStart | None
    lineage: LeaderEpochLineage
    segments: Sequence[ServedSegment]
    earliest_offset: int | None
    latest_tiered_offset: int | None
    max_timestamp_ms: int | None
    max_timestamp_offset: int | None
    finished_max_timestamp_ms: int | None
    gap_count: int
    unserved_ranges: Sequence[UnservedRange]


CutMaxima = Mapping[str, tuple[int, int | None]]
"""For segments cut at their end, by id: the largest timestamp up to the cut, and the lowest offset with this timestamp
if known."""


Checkpoints = Mapping[str, Sequence[EpochStart]]
"""The leader epoch checkpoint of the newest segment of each incarnation, by topic id."""


def plan_partition(
    segments: Iterable[SegmentFacts], log_start_offset: int | None, checkpoints: Checkpoints, cut_maxima: CutMaxima
) -> list[IncarnationPlan]:
    """A plan for each incarnation. `log_start_offset` was supplied by the user for the current incarnation, which is
    the one that was written last; when segments of it were deleted does not count."""
    by_topic_id: dict[str, list[SegmentFacts]] = {}
    for segment in segments:
        by_topic_id.setdefault(segment.topic_id, []).append(segment)
    current = max(by_topic_id, key=lambda topic_id: (*_last_times(by_topic_id[topic_id]), topic_id), default=None)
    return [
        _plan_incarnation(
            topic_id,
            members,
            is_current=topic_id == current,
            supplied_start=log_start_offset if topic_id == current else None,
            checkpoint=checkpoints.get(topic_id, ()),
            cut_maxima=cut_maxima,
        )
        for topic_id, members in sorted(by_topic_id.items())
    ]


def _last_times(segments: Sequence[SegmentFacts]) -> tuple[int, int]:
    """When a segment was last written and last deleted; 0 if that is not known. The deletions of an incarnation may go
    on while the next one is written, so they decide only if nothing is known of what was written."""
    written_ms = max(segment.written_ms or 0 for segment in segments)
    return written_ms, max(segment.deleted_ms or 0 for segment in segments)


def _plan_incarnation(
    topic_id: str,
    members: list[SegmentFacts],
    *,
    is_current: bool,
    supplied_start: int | None,
    checkpoint: Sequence[EpochStart],
    cut_maxima: CutMaxima,
) -> IncarnationPlan:
    newer = list(epochs_without_checkpoint(members, checkpoint))
    # A leader that begins where an earlier one has records was elected uncleanly, and these are no longer in the log.
    checkpoint = (*(entry for entry in checkpoint if not newer or entry[1] <= newer[0][1]), *newer)
    start = find_log_start(members, supplied_start, checkpoint)
    log_start = None if start is None else start.offset
    lineage = LeaderEpochLineage.of(checkpoint, log_start)
    log_end = 1 + max((member.end_offset for member in members if member.is_usable), default=-1)
    judged = {member.segment_id: _judge(member, lineage, log_end) for member in members if member.is_usable}
    by_id = {member.segment_id: member for member in members}
    followers = [by_id[segment_id] for segment_id, verdict in judged.items() if verdict.last_offset is not None]
    is_lineage_known = bool(lineage.entries)
    ranges = plan_served_ranges(
        (_candidate(member, judged[member.segment_id], is_of_lineage=is_lineage_known) for member in followers),
        log_start,
    )
    served = _run_maxima([span for span in ranges if span.reason is None], by_id, judged, cut_maxima)
    others = [_not_served(by_id[span.segment.segment_id], span.reason, judged) for span in ranges if span.reason]
    follower_ids = {follower.segment_id for follower in followers}
    rest = [member for member in members if member.segment_id not in follower_ids]
    others += [_not_served(member, _unusable_reason(member, log_start), judged) for member in rest]
    top = _first_highest(served)
    first_served = served[0].from_offset if served else None
    start = start_at_first_segment(start, first_served, members)
    return IncarnationPlan(
        topic_id=topic_id,
        is_current=is_current,
        log_start=start,
        lineage=lineage if lineage.entries else _lineage_of(served),
        segments=sorted(served + others, key=lambda entry: (entry.segment.start_offset, entry.segment.segment_id)),
        earliest_offset=first_served,
        latest_tiered_offset=served[-1].to_offset if served else None,
        max_timestamp_ms=top.max_timestamp_ms if top else None,
        max_timestamp_offset=_max_timestamp_offset(top, cut_maxima),
        finished_max_timestamp_ms=finished_max_timestamp_ms(members),
        gap_count=count_gaps(ranges),
        unserved_ranges=_unserved_ranges(served, members, start),
    )


def _unserved_ranges(
    served: Sequence[ServedSegment], members: Iterable[SegmentFacts], log_start: LogStart | None
) -> list[UnservedRange]:
    holes = [hole for each in served for hole in _holes_within(each)]
    unread = [
        UnreadSegment(
            start_offset=hole.from_offset, end_offset=hole.to_offset, max_timestamp_ms=hole.max_timestamp_bound_ms
        )
        for hole in holes
    ]
    unread += [
        UnreadSegment(
            start_offset=member.start_offset,
            end_offset=None if member.end_offset < 0 else member.end_offset,
            max_timestamp_ms=member.metadata_max_timestamp_ms,
        )
        for member in members
        if member.is_unread
    ]
    spans = [span for each in served for span in _spans_without_holes(each)]
    uncertain = (LogStartSource.LEADER_EPOCHS, LogStartSource.CHECKPOINT_LOST, LogStartSource.FIRST_SEGMENT)
    is_certain = log_start is not None and log_start.source not in uncertain
    ranges = find_unserved_ranges(
        spans,
        unread,
        log_start.offset if log_start is not None and is_certain else None,
    )
    last_served = served[-1].to_offset if served else None
    return ranges_with_rising_bounds([*hidden_log_start(members, log_start), *ranges], last_served)


def _holes_within(served: ServedSegment) -> Iterator[UnservedRange]:
    """Yield the holes of a segment where it serves; one of unknown length reaches to the next segment."""
    first, last = served.from_offset, served.to_offset
    if first is None or last is None:
        return
    for hole in served.segment.holes:
        begin = max(hole.from_offset, first)
        if hole.to_offset is None:
            # Behind its own end, too: there the next segment follows, or nothing that is known.
            yield replace(hole, from_offset=begin)
        elif begin <= min(hole.to_offset, last):
            yield replace(hole, from_offset=begin, to_offset=min(hole.to_offset, last))


def _spans_without_holes(served: ServedSegment) -> Iterator[tuple[int, int]]:
    first, last = served.from_offset, served.to_offset
    if first is None or last is None:
        return
    for hole in _holes_within(served):
        if hole.from_offset > first:
            yield first, min(hole.from_offset - 1, last)
        first = last + 1 if hole.to_offset is None else hole.to_offset + 1
    if first <= last:
        yield first, last


def _lineage_of(served: Iterable[ServedSegment]) -> LeaderEpochLineage:
    """The lineage if there is no checkpoint: the epochs of the served batches, each from its first served offset on."""
    entries: list[EpochStart] = []
    for entry in served:
        for epoch, offset in entry.segment.leader_epochs:
            is_served = entry.to_offset is not None and offset <= entry.to_offset
            if is_served and epoch > (entries[-1][0] if entries else NO_LEADER_EPOCH):
                entries.append((epoch, max(offset, entry.from_offset or 0)))
    return LeaderEpochLineage.of(entries)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Whether a segment belongs to the lineage, and `last_offset`, up to which it follows it (None: at no offset)."""

    last_offset: int | None
    is_within: bool | None


def _judge(member: SegmentFacts, lineage: LeaderEpochLineage, log_end: int) -> _Verdict:
    """`is_within` is None without a lineage, or without leader epochs in the batches. `log_end` is the offset behind
    all usable segments."""
    epochs = [entry for entry in member.leader_epochs if entry[0] != NO_LEADER_EPOCH]
    if not lineage.entries or not epochs:
        return _Verdict(member.end_offset, None)
    if member.may_be_compacted:
        epochs = lineage.with_compacted(epochs)
    is_within = lineage.is_within(epochs, member.end_offset, log_end)
    return _Verdict(lineage.find_last_offset_within(epochs, member.end_offset), is_within)


def _unusable_reason(member: SegmentFacts, log_start_offset: int | None) -> NotServedReason:
    if not member.is_usable:
        return NotServedReason.NOT_INDEXED
    is_below = log_start_offset is not None and member.end_offset < log_start_offset
    return NotServedReason.BELOW_LOG_START if is_below else NotServedReason.OUTSIDE_LINEAGE


def _candidate(member: SegmentFacts, verdict: _Verdict, *, is_of_lineage: bool) -> Candidate:
    epochs = member.leader_epochs
    end = member.end_offset if verdict.last_offset is None else verdict.last_offset
    first_epoch = epochs[0][0] if epochs else NO_LEADER_EPOCH
    lost = (
        (hole.from_offset, member.end_offset if hole.to_offset is None else hole.to_offset) for hole in member.holes
    )
    return Candidate(
        segment_id=member.segment_id,
        start_offset=member.start_offset,
        end_offset=end,
        first_leader_epoch=first_epoch,
        last_leader_epoch=next((epoch for epoch, offset in reversed(epochs) if offset <= end), first_epoch),
        lost=tuple(lost) if is_of_lineage and epochs else (),
    )


def _run_maxima(
    ranges: list[ServedRange],
    by_id: Mapping[str, SegmentFacts],
    judged: Mapping[str, _Verdict],
    cut_maxima: CutMaxima,
) -> list[ServedSegment]:
    running: int | None = None
    broker_running: int | None = None
    served = []
    for span in ranges:
        member = by_id[span.segment.segment_id]
        whole, cut = member.counted_max_timestamp_ms, cut_maxima.get(member.segment_id, (None, None))[0]
        is_within, is_cut = judged[member.segment_id].is_within, span.to_offset < member.end_offset
        max_timestamp_ms = cut if is_cut else whole
        previous, broker_previous = running, broker_running
        running = _larger(running, max_timestamp_ms)
        if is_within is not False:
            broker_running = _larger(broker_running, member.metadata_max_timestamp_ms)
        served.append(
            ServedSegment(
                segment=member,
                from_offset=span.from_offset,
                to_offset=span.to_offset,
                reason=None,
                is_within_lineage=is_within,
                is_cut_at_end=is_cut,
                max_timestamp_ms=max_timestamp_ms,
                previous_running_max_timestamp_ms=previous,
                running_max_timestamp_ms=running,
                broker_previous_running_max_timestamp_ms=broker_previous,
                broker_running_max_timestamp_ms=broker_running,
            )
        )
    return served


def _larger(running: int | None, value: int | None) -> int | None:
    return running if value is None else value if running is None else max(running, value)


def _not_served(member: SegmentFacts, reason: NotServedReason | None, judged: Mapping[str, _Verdict]) -> ServedSegment:
    verdict = judged.get(member.segment_id)
    is_within = None if verdict is None else verdict.is_within
    return ServedSegment(segment=member, from_offset=None, to_offset=None, reason=reason, is_within_lineage=is_within)


def _first_highest(served: Iterable[ServedSegment]) -> ServedSegment | None:
    top: ServedSegment | None = None
    for entry in served:
        if entry.max_timestamp_ms is not None and (
            top is None or top.max_timestamp_ms is None or entry.max_timestamp_ms > top.max_timestamp_ms
        ):
            top = entry
    return top


def _max_timestamp_offset(top: ServedSegment | None, cut_maxima: CutMaxima) -> int | None:
    if top is None:
        return None
    if top.is_cut_at_end:
        return cut_maxima.get(top.segment.segment_id, (None, None))[1]
    return top.segment.counted_max_timestamp_offset
