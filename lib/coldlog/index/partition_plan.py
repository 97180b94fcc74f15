"""partition_plan: what does one partition's archive answer, and from which segments?

Takes the segments of one topic-partition (every incarnation of its topic), finds the log start offset and the lineage
of its leaders, decides which offsets each segment serves (up to where it leaves the lineage, then by `served_ranges`),
runs the maximum of the timestamp over them, and adds up what the partition holds. The running maxima are what a lookup
enters by: the segment that holds the first record at or after T is the only one with previous < T <= running. They come
twice: over what the records say, and over what Kafka's metadata promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage
from coldlog.index.served_ranges import (
    NO_LEADER_EPOCH,
    Candidate,
    NotServedReason,
    ServedRange,
    count_gaps,
    plan_served_ranges,
)


class LogStartSource(StrEnum):
    """What told a log start offset; the `log_start_source` column of `partition_metadata`."""

    SUPPLIED = "supplied"
    DELETED_SEGMENTS = "deleted_segments"
    LEADER_EPOCHS = "leader_epochs"


@dataclass(frozen=True, slots=True)
class LogStart:
    """From which offset on a partition still exists."""

    offset: int
    source: LogStartSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """A listed or announced segment, and what the build found in it if it `is_usable`; timestamps are None where there
    are no records. `is_deleted`: it was copied once, and is being or was deleted since."""

    topic_id: str
    segment_id: str
    start_offset: int
    written_ms: int | None
    is_usable: bool
    is_deleted: bool = False
    end_offset: int = -1
    leader_epochs: tuple[EpochStart, ...] = ()
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
    """One incarnation of a topic's partition: its segments by start offset, and what they answer together."""

    topic_id: str
    is_current: bool
    log_start: LogStart | None
    lineage: LeaderEpochLineage
    segments: Sequence[ServedSegment]
    earliest_offset: int | None
    latest_tiered_offset: int | None
    max_timestamp_ms: int | None
    max_timestamp_offset: int | None
    gap_count: int


CutMaxima = Mapping[str, tuple[int, int | None]]
"""Of segments cut at their end, by id: the largest timestamp up to the cut, and the lowest offset that has it if
known."""


Checkpoints = Mapping[str, Sequence[EpochStart]]
"""The leader epochs that came with the newest segment of an incarnation, by topic id."""


def plan_partition(
    segments: Iterable[SegmentFacts], log_start_offset: int | None, checkpoints: Checkpoints, cut_maxima: CutMaxima
) -> list[IncarnationPlan]:
    """A plan for each incarnation; `log_start_offset` was supplied for the current one, the one that was written to
    last."""
    by_topic_id: dict[str, list[SegmentFacts]] = {}
    for segment in segments:
        by_topic_id.setdefault(segment.topic_id, []).append(segment)
    current = max(by_topic_id, key=lambda topic_id: (_written_ms(by_topic_id[topic_id]), topic_id), default=None)
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


def _written_ms(segments: Iterable[SegmentFacts]) -> int:
    return max((segment.written_ms or 0 for segment in segments), default=0)


def _plan_incarnation(
    topic_id: str,
    members: list[SegmentFacts],
    *,
    is_current: bool,
    supplied_start: int | None,
    checkpoint: Sequence[EpochStart],
    cut_maxima: CutMaxima,
) -> IncarnationPlan:
    start = _find_log_start(members, supplied_start, checkpoint)
    log_start = None if start is None else start.offset
    lineage = LeaderEpochLineage.of(checkpoint, log_start)
    judged = {member.segment_id: _judge(member, lineage, members) for member in members if member.is_usable}
    by_id = {member.segment_id: member for member in members}
    followers = [by_id[segment_id] for segment_id, verdict in judged.items() if verdict.last_offset is not None]
    ranges = plan_served_ranges((_candidate(member, judged[member.segment_id]) for member in followers), log_start)
    served = _run_maxima([each for each in ranges if each.reason is None], by_id, judged, cut_maxima)
    others = [_not_served(by_id[each.segment.segment_id], each.reason, judged) for each in ranges if each.reason]
    left = [member for member in members if member.segment_id not in {each.segment_id for each in followers}]
    others += [_not_served(member, _unusable_reason(member, log_start), judged) for member in left]
    top = _first_highest(served)
    return IncarnationPlan(
        topic_id=topic_id,
        is_current=is_current,
        log_start=start,
        lineage=lineage if lineage.entries else _lineage_of(served),
        segments=sorted(served + others, key=lambda each: (each.segment.start_offset, each.segment.segment_id)),
        earliest_offset=served[0].from_offset if served else None,
        latest_tiered_offset=served[-1].to_offset if served else None,
        max_timestamp_ms=top.max_timestamp_ms if top else None,
        max_timestamp_offset=_max_timestamp_offset(top, cut_maxima),
        gap_count=count_gaps(ranges),
    )


def _lineage_of(served: Iterable[ServedSegment]) -> LeaderEpochLineage:
    """Where no checkpoint tells: the epochs of the batches that are served, each from its first offset there on."""
    entries: list[EpochStart] = []
    for each in served:
        for epoch, offset in each.segment.leader_epochs:
            is_served = each.to_offset is not None and offset <= each.to_offset
            if is_served and epoch > (entries[-1][0] if entries else NO_LEADER_EPOCH):
                entries.append((epoch, max(offset, each.from_offset or 0)))
    return LeaderEpochLineage.of(entries)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """`last_offset`: up to which offset the segment follows the lineage; None: nowhere."""

    last_offset: int | None
    is_within: bool | None


def _judge(member: SegmentFacts, lineage: LeaderEpochLineage, members: Iterable[SegmentFacts]) -> _Verdict:
    """Without a lineage, or without leader epochs in the batches, nothing can be said."""
    epochs = [entry for entry in member.leader_epochs if entry[0] != NO_LEADER_EPOCH]
    if not lineage.entries or not epochs:
        return _Verdict(member.end_offset, None)
    log_end = 1 + max(each.end_offset for each in members if each.is_usable)
    is_within = lineage.is_within(epochs, member.end_offset, log_end)
    return _Verdict(lineage.find_last_offset_within(epochs, member.end_offset), is_within)


def _find_log_start(
    members: Sequence[SegmentFacts], supplied: int | None, checkpoint: Sequence[EpochStart]
) -> LogStart | None:
    """The highest that anything says.

    A broker moves the log start behind a segment before it deletes it, unless the segment is of leaders that were
    deposed; and it moves the first leader epoch of the checkpoint along with the log start (truncateFromStart). That
    epoch says nothing where records before it have none: an old message format.
    """
    lineage = LeaderEpochLineage.of(checkpoint)
    found = [] if supplied is None else [LogStart(supplied, LogStartSource.SUPPLIED)]
    found += [
        LogStart(member.end_offset + 1, LogStartSource.DELETED_SEGMENTS)
        for member in members
        if member.is_deleted and _follows(lineage, member)
    ]
    if lineage.entries and not any(_has_no_epochs(member) for member in members):
        found.append(LogStart(lineage.entries[0][1], LogStartSource.LEADER_EPOCHS))
    return max(found, key=lambda start: start.offset, default=None)


def _follows(lineage: LeaderEpochLineage, member: SegmentFacts) -> bool:
    epochs = member.leader_epochs
    return not lineage.entries or lineage.find_last_offset_within(epochs, member.end_offset) is not None


def _has_no_epochs(member: SegmentFacts) -> bool:
    return member.is_usable and any(epoch == NO_LEADER_EPOCH for epoch, _ in member.leader_epochs)


def _unusable_reason(member: SegmentFacts, log_start_offset: int | None) -> NotServedReason:
    if not member.is_usable:
        return NotServedReason.NOT_INDEXED
    is_below = log_start_offset is not None and member.end_offset < log_start_offset
    return NotServedReason.BELOW_LOG_START if is_below else NotServedReason.OUTSIDE_LINEAGE


def _candidate(member: SegmentFacts, verdict: _Verdict) -> Candidate:
    epochs = member.leader_epochs
    return Candidate(
        segment_id=member.segment_id,
        start_offset=member.start_offset,
        end_offset=member.end_offset if verdict.last_offset is None else verdict.last_offset,
        first_leader_epoch=epochs[0][0] if epochs else NO_LEADER_EPOCH,
        last_leader_epoch=epochs[-1][0] if epochs else NO_LEADER_EPOCH,
    )


def _run_maxima(
    ranges: list[ServedRange],
    by_id: Mapping[str, SegmentFacts],
    judged: Mapping[str, _Verdict],
    cut_maxima: CutMaxima,
) -> list[ServedSegment]:
    running: int | None = None
    promised: int | None = None
    served = []
    for each in ranges:
        member = by_id[each.segment.segment_id]
        whole, cut = member.counted_max_timestamp_ms, cut_maxima.get(member.segment_id, (None, None))[0]
        is_within, is_cut = judged[member.segment_id].is_within, each.to_offset < member.end_offset
        own = cut if is_cut else whole
        before, promised_before = running, promised
        running = _larger(running, own)
        if is_within is not False:
            promised = _larger(promised, member.metadata_max_timestamp_ms)
        served.append(
            ServedSegment(
                segment=member,
                from_offset=each.from_offset,
                to_offset=each.to_offset,
                reason=None,
                is_within_lineage=is_within,
                is_cut_at_end=is_cut,
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


def _not_served(member: SegmentFacts, reason: NotServedReason | None, judged: Mapping[str, _Verdict]) -> ServedSegment:
    verdict = judged.get(member.segment_id)
    is_within = None if verdict is None else verdict.is_within
    return ServedSegment(segment=member, from_offset=None, to_offset=None, reason=reason, is_within_lineage=is_within)


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
