"""partition_plan: what does one partition's archive answer, and from which segments?

Takes the segments of one topic-partition (every incarnation of its topic), decides which offsets each serves
(`served_ranges`), runs the maximum of the timestamp over them, and adds up what the partition holds. The running
maxima are what a lookup enters by: the segment that holds the first record at or after T is the only one with
previous < T <= running. They come twice: over what the records say, and over what Kafka's metadata promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coldlog.index.served_ranges import Candidate, NotServedReason, ServedRange, count_gaps, plan_served_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """A listed segment, and what the build found in it if it `is_usable`; timestamps are None where there are no
    records."""

    topic_id: str
    segment_id: str
    start_offset: int
    log_modified_ms: int | None
    is_usable: bool
    end_offset: int = -1
    first_leader_epoch: int = -1
    last_leader_epoch: int = -1
    counted_from_offset: int = -1
    counted_max_timestamp_ms: int | None = None
    counted_max_timestamp_offset: int | None = None
    metadata_max_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSegment:
    """What a segment answers for. `must_count_from` is set where its index was counted from another offset than it
    serves from; `is_cut_at_end` where a later upload takes over before its end."""

    segment: SegmentFacts
    from_offset: int | None
    to_offset: int | None
    reason: NotServedReason | None
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
    """One incarnation of a topic's partition: its segments by start offset, and what they answer together."""

    topic_id: str
    is_current: bool
    log_start_offset: int | None
    segments: Sequence[ServedSegment]
    earliest_offset: int | None
    latest_tiered_offset: int | None
    max_timestamp_ms: int | None
    max_timestamp_offset: int | None
    gap_count: int


CutMaxima = Mapping[str, tuple[int, int | None]]
"""Of segments cut at their end, by id: the largest timestamp up to the cut, and the lowest offset that has it if
known."""


def plan_partition(
    segments: Iterable[SegmentFacts], log_start_offset: int | None, cut_maxima: CutMaxima
) -> list[IncarnationPlan]:
    """A plan for each incarnation; the log start offset is that of the current one, the one that was written to
    last."""
    by_topic_id: dict[str, list[SegmentFacts]] = {}
    for segment in segments:
        by_topic_id.setdefault(segment.topic_id, []).append(segment)
    current = max(by_topic_id, key=lambda topic_id: (_written_ms(by_topic_id[topic_id]), topic_id), default=None)
    return [
        _plan_incarnation(topic_id, members, topic_id == current, log_start_offset, cut_maxima)
        for topic_id, members in sorted(by_topic_id.items())
    ]


def _written_ms(segments: Iterable[SegmentFacts]) -> int:
    return max((segment.log_modified_ms or 0 for segment in segments), default=0)


def _plan_incarnation(
    topic_id: str, members: list[SegmentFacts], is_current: bool, log_start_offset: int | None, cut_maxima: CutMaxima
) -> IncarnationPlan:
    own_start = log_start_offset if is_current else None
    by_id = {member.segment_id: member for member in members}
    ranges = plan_served_ranges((_candidate(member) for member in members if member.is_usable), own_start)
    served = _run_maxima([each for each in ranges if each.reason is None], by_id, cut_maxima)
    others = [_not_served(by_id[each.segment.segment_id], each.reason) for each in ranges if each.reason is not None]
    others += [_not_served(member, NotServedReason.NOT_INDEXED) for member in members if not member.is_usable]
    top = _first_highest(served)
    return IncarnationPlan(
        topic_id=topic_id,
        is_current=is_current,
        log_start_offset=own_start,
        segments=sorted(served + others, key=lambda each: (each.segment.start_offset, each.segment.segment_id)),
        earliest_offset=served[0].from_offset if served else None,
        latest_tiered_offset=served[-1].to_offset if served else None,
        max_timestamp_ms=top.max_timestamp_ms if top else None,
        max_timestamp_offset=_max_timestamp_offset(top, cut_maxima),
        gap_count=count_gaps(ranges),
    )


def _candidate(member: SegmentFacts) -> Candidate:
    return Candidate(
        segment_id=member.segment_id,
        start_offset=member.start_offset,
        end_offset=member.end_offset,
        first_leader_epoch=member.first_leader_epoch,
        last_leader_epoch=member.last_leader_epoch,
    )


def _run_maxima(
    ranges: list[ServedRange], by_id: Mapping[str, SegmentFacts], cut_maxima: CutMaxima
) -> list[ServedSegment]:
    running: int | None = None
    promised: int | None = None
    served = []
    for each in ranges:
        member = by_id[each.segment.segment_id]
        whole, cut = member.counted_max_timestamp_ms, cut_maxima.get(member.segment_id, (None, None))[0]
        own = cut if each.is_cut_at_end else whole
        before, promised_before = running, promised
        running, promised = _larger(running, own), _larger(promised, member.metadata_max_timestamp_ms)
        served.append(
            ServedSegment(
                segment=member,
                from_offset=each.from_offset,
                to_offset=each.to_offset,
                reason=None,
                is_cut_at_end=each.is_cut_at_end,
                max_timestamp_ms=own,
                previous_running_max_timestamp_ms=before,
                running_max_timestamp_ms=running,
                broker_previous_running_max_timestamp_ms=promised_before,
                broker_running_max_timestamp_ms=promised,
            )
        )
    return served


def _larger(running: int | None, own: int | None) -> int | None:
    return running if own is None else own if running is None else max(running, own)


def _not_served(member: SegmentFacts, reason: NotServedReason | None) -> ServedSegment:
    return ServedSegment(segment=member, from_offset=None, to_offset=None, reason=reason)


def _first_highest(served: Iterable[ServedSegment]) -> ServedSegment | None:
    top: ServedSegment | None = None
    for each in served:
        if each.max_timestamp_ms is not None and (
            top is None or top.max_timestamp_ms is None or each.max_timestamp_ms > top.max_timestamp_ms
        ):
            top = each
    return top


def _max_timestamp_offset(top: ServedSegment | None, cut_maxima: CutMaxima) -> int | None:
    if top is None:
        return None
    if top.is_cut_at_end:
        return cut_maxima.get(top.segment.segment_id, (None, None))[1]
    return top.segment.counted_max_timestamp_offset
