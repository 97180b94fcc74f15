"""offset_ranges: which offsets of which partitions are to be read?

Resolves what the options say against one version of the tables. The first offset of a partition is its log start as far
as the archive knows, its end is where the archive ends; with READ_COMMITTED its stable offset, behind which lie
transactions whose end is not archived. A timestamp means the first offset whose record is as late.

Data is lost where offsets that are asked for are not served: below the log start, between served segments, behind the
end. That is a `UsageError`, or passed over where the options say so. What a query's filters exclude is not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.served_index import PartitionFacts, ServedIndex
from coldlog.model.list_offsets import ErrorCode
from coldlog.model.states import IsolationLevel
from coldlog.records.source.archived_log import ArchivedLogs, ServedSegment, undecided_offsets, without_offsets
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.options import (
    EARLIEST,
    LATEST,
    Limit,
    SourceOptions,
    Strategy,
    Subscription,
    TopicPartition,
)

_SHOWN = 5
_UNSERVED = "are in no served segment; see coldlog.archive_problems"
_UNDECIDED = "may belong to a transaction that was aborted in offsets which are in no served segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets `start` to before `until` of a partition, and the segments that serve some of them."""

    topic: str
    partition: int
    topic_id: str
    start: int
    until: int
    segments: Sequence[ServedSegment]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpan:
    """Where the reading of a partition begins, and the offset behind its last; `end`: of what may be read at all."""

    topic_id: str
    start: int
    until: int
    end: int


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where a partition begins and ends, for its reader; `is_open`: it ends at a transaction that is not decided."""

    first: int
    end: int
    is_open: bool

    @property
    def told(self) -> str:
        """For people."""
        if self.end <= self.first:
            return f"no offset can be read, the next one is {self.first}"
        if self.is_open:
            return f"offsets {self.first} to {self.end - 1} can be read, then comes a transaction that is open"
        return f"the archive has offsets {self.first} to {self.end - 1}"


class OffsetResolver:
    """Answers from one version of the tables; `lookup` finds offsets of timestamps."""

    def __init__(self, options: SourceOptions, logs: ArchivedLogs, index: ServedIndex, lookup: ListOffsets) -> None:
        self._options = options
        self._logs = logs
        self._index = index
        self._lookup = lookup
        self._is_committed = options.isolation_level is IsolationLevel.READ_COMMITTED

    def resolve(self, wanted: RecordFilter) -> list[OffsetRange]:
        """The ranges of the partitions that are asked for, apart from those that the filter excludes."""
        places = self._partitions(self._options.subscription)
        for limit, side in ((self._options.start, "starting"), (self._options.end, "ending")):
            self._require_named(limit, side, places)
        chosen = [place for place in places if wanted.holds_partition(*place)]
        return [each for place in chosen if (each := self._range(place, wanted.bounds)) is not None]

    def find_spans(self) -> dict[TopicPartition, PartitionSpan]:
        """Of each partition that is asked for, where its reading begins and ends."""
        options = self._options
        places = self._partitions(options.subscription)
        self._require_named(options.start, "starting", places)
        self._require_named(options.end, "ending", places)
        found = {}
        for place in places:
            facts = self._facts(place)
            ends = self._ends(facts)
            found[place] = PartitionSpan(
                topic_id=facts.topic_id,
                start=self._offset(options.start, place, ends, is_start=True),
                until=min(ends.end, self._offset(options.end, place, ends, is_start=False)),
                end=ends.end,
            )
        return found

    def _facts(self, place: TopicPartition) -> PartitionFacts:
        known = self._index.partition(*place)
        assert known is not None, "it was listed in this version of the table"
        return known[0]

    def _partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Those that the archive has."""
        known = self._logs.partitions()
        if subscription.strategy is Strategy.PATTERN:
            return [place for place in known if re.search(subscription.pattern, place[0])]
        if subscription.strategy is Strategy.ASSIGN:
            missing = [
                f"partition {topic}-{partition}" for topic, partition in sorted(subscription.partitions - {*known})
            ]
            chosen = [place for place in known if place in subscription.partitions]
        else:
            topics = {topic for topic, _ in known}
            missing = [f"topic {topic}" for topic in subscription.topics if topic not in topics]
            chosen = [place for place in known if place[0] in subscription.topics]
        if missing and self._options.fails_on_data_loss:
            raise UsageError(
                f"the archive holds no {', no '.join(missing[:_SHOWN])}; failOnDataLoss=false reads what there is"
            )
        return chosen

    def _require_named(self, limit: Limit, side: str, places: Sequence[TopicPartition]) -> None:
        """Where single partitions are named, it must be all, and no others."""
        if limit.by_partition is None:
            return
        what = f"{side}{'Offsets' if limit.offsets is not None else 'OffsetsByTimestamp'}"
        unnamed = sorted({*places} - limit.by_partition.keys())
        if unnamed:
            raise UsageError(f"{what} must name every partition that is read; {_listed(unnamed)} missing")
        strangers = sorted(limit.by_partition.keys() - {*places})
        if strangers and self._options.fails_on_data_loss:
            raise UsageError(
                f"{what} names partitions that are not read, or that the archive has not: {_listed(strangers)}"
            )

    def _range(self, place: TopicPartition, bounds: RecordBounds) -> OffsetRange | None:
        facts = self._facts(place)
        ends = self._ends(facts)
        start = self._offset(self._options.start, place, ends, is_start=True)
        until = self._offset(self._options.end, place, ends, is_start=False)
        if start > until:
            raise UsageError(
                f"the starting offset {start} of {place[0]}-{place[1]} lies behind the ending offset {until}; "
                f"{ends.told}"
            )
        start, until = max(start, bounds.from_offset), min(until, bounds.to_offset + 1)
        if start >= until:
            return None
        served = self._logs.served_segments(*place, facts.topic_id)
        undecided = undecided_offsets(served) if self._is_committed else []
        segments = [
            each for each in without_offsets(served, undecided) if each.to_offset >= start and each.from_offset < until
        ]
        if self._options.fails_on_data_loss:
            _require_all(place, start, until, segments, ends, undecided)
        elif not segments:
            return None
        return OffsetRange(
            topic=place[0],
            partition=place[1],
            topic_id=facts.topic_id,
            start=max(start, ends.first),
            until=min(until, ends.end),
            segments=segments,
        )

    def _ends(self, facts: PartitionFacts) -> _Ends:
        first = facts.first_offset
        end = max(first, facts.local_start_offset)
        stable = facts.stable_offset if self._is_committed else None
        if stable is None or stable >= end:
            return _Ends(first, end, is_open=False)
        return _Ends(first, max(first, stable), is_open=True)

    def _offset(self, limit: Limit, place: TopicPartition, ends: _Ends, *, is_start: bool) -> int:
        said = limit.by_partition[place] if limit.by_partition is not None else limit.offset
        if limit.timestamp_ms is not None or limit.timestamps_ms is not None:
            timestamp_ms = limit.timestamp_ms if said is None else said
            assert timestamp_ms is not None
            return self._offset_at(place, timestamp_ms, ends, is_start=is_start)
        assert said is not None
        return {EARLIEST: ends.first, LATEST: ends.end}.get(said, said)

    def _offset_at(self, place: TopicPartition, timestamp_ms: int, ends: _Ends, *, is_start: bool) -> int:
        """The first offset as late; the end where there is none."""
        answers = self._lookup.answer_one(*place, timestamp_ms, is_committed=self._is_committed)
        error, found = ErrorCode(int(answers.errors[0])), answers.found(0)
        if error is ErrorCode.KAFKA_STORAGE_ERROR:
            raise RetriableError(f"the archive does not answer for {place[0]}-{place[1]}")
        if error not in (ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED, ErrorCode.OPEN_TRANSACTION):
            raise ColdlogError(f"no offset of {place[0]}-{place[1]} for {timestamp_ms}: {error.name}")
        if found is not None:
            return found.offset
        if is_start and not self._options.starts_late:
            raise UsageError(
                f"no archived record of {place[0]}-{place[1]} is as late as {timestamp_ms}; "
                "startingOffsetsByTimestampStrategy=latest reads nothing of such a partition"
            )
        return ends.end


def _require_all(
    place: TopicPartition,
    start: int,
    until: int,
    segments: Sequence[ServedSegment],
    ends: _Ends,
    undecided: Sequence[tuple[int, int]],
) -> None:
    """Every offset is served, and of readers of committed records decided."""
    lost: list[tuple[int, int, str]] = []
    behind = "lie behind a transaction that is open where the archive ends" if ends.is_open else "are not archived"
    if start < ends.first:
        lost.append((start, min(until, ends.first), "lie below the log start"))
    at = max(start, ends.first)
    for each in segments:
        lost += _why_lost(at, each.from_offset, undecided)
        at = max(at, each.to_offset + 1)
    lost += _why_lost(at, min(until, ends.end), undecided)
    if until > max(start, ends.end):
        lost.append((max(start, ends.end), until, behind))
    if lost:
        told = "; ".join(f"{first} to {end - 1} {why}" for first, end, why in lost[:_SHOWN])
        raise UsageError(
            f"offsets of {place[0]}-{place[1]} that are asked for lack: {told}; {ends.told}; failOnDataLoss=false "
            "reads what there is"
        )


def _why_lost(start: int, until: int, undecided: Sequence[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Of offsets that no served segment gives."""
    lost = []
    for begin, end in undecided:
        first, behind = max(start, begin), min(until, end + 1)
        if first < behind:
            lost += [(start, first, _UNSERVED), (first, behind, _UNDECIDED)]
            start = behind
    lost.append((start, until, _UNSERVED))
    return [each for each in lost if each[0] < each[1]]


def _listed(places: Sequence[TopicPartition]) -> str:
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(f"{topic}-{partition}" for topic, partition in places[:_SHOWN]) + more
