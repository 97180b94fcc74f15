"""Find which offsets of which partitions are to be read.

The options are resolved against one version of the tables. A partition begins at its log start, as far as the archive
knows, and ends where the archive ends. With READ_COMMITTED it ends at its stable offset; after it are transactions
whose end is not archived. A timestamp means the first offset whose record is at or after it. With a log directory, a
partition ends where the whole log does, as the directory's files show. Its log start is the archive's: a broker that
does not tier deletes what is still archived. Only if the archive has no offsets, the directory's log start counts too.

Data is lost if offsets that are asked for are not served: below the log start, between served segments, or after the
end; and if the archive had offsets after its end, and the reading goes to the end (`data_loss`). Then a `UsageError` is
raised, or they are skipped if the options say so. Offsets that a query's filters exclude are not asked for. The same
option decides if the log start is not known, so that records may have been deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.local.local_tier import FoundOffset, LocalLogState
from coldlog.lookups.local.seam import find_contradiction
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.served_index import ServedIndex
from coldlog.model.internal_topics import INTERNAL_TOPICS
from coldlog.model.list_offsets import ErrorCode
from coldlog.model.states import IsolationLevel
from coldlog.records.aborted_transactions import NOTHING_ABORTED, AbortedTransactions
from coldlog.records.source.archived_log import ArchivedLogs, ServedSegment, undecided_offsets, without_offsets
from coldlog.records.source.data_loss import (
    LEFT,
    LostEnd,
    find_lost_end,
    lost_end_text,
    require_all,
    require_known_start,
)
from coldlog.records.source.local_logs import LocalLogs
from coldlog.records.source.log_ends import LogEnds
from coldlog.records.source.options import (
    EARLIEST,
    LATEST,
    Limit,
    SourceOptions,
    Strategy,
    Subscription,
    TopicPartition,
)
from coldlog.records.source.stream_positions import recreated
from coldlog.tables.known_topics import unknown_text

if TYPE_CHECKING:
    from coldlog.records.source.filters import RecordFilter  # imports Spark

_SHOWN = 5
_GREATEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets from `start` to before `until` of a partition, and the segments that serve some of them."""

    topic: str
    partition: int
    topic_id: str
    start: int
    until: int
    segments: Sequence[ServedSegment]
    local: tuple[int, int] | None = None
    """The first offset to read from the log directory, and the one after the last."""
    aborted_later: AbortedTransactions = NOTHING_ABORTED
    """Those whose markers are not archived yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpan:
    """Where a reading begins, where it ends (exclusive), and `end`, up to which offset the partition can be read.
    `lost_end`: why what follows is lost, if the reading asks for it, and must not miss it."""

    topic_id: str
    start: int
    until: int
    end: int
    lost_end: str | None = None


class OffsetResolver:
    """Resolves offsets from one version of the tables; `lookup` finds offsets of timestamps in the archive. With
    `local`, the log goes on there."""

    def __init__(
        self,
        options: SourceOptions,
        logs: ArchivedLogs,
        index: ServedIndex,
        lookup: ListOffsets,
        *,
        local: LocalLogs | None = None,
    ) -> None:
        self._local = local
        self._options = options
        self._logs = logs
        self._index = index
        self._lookup = lookup
        self._is_committed = options.isolation_level is IsolationLevel.READ_COMMITTED

    def resolve(self, wanted: RecordFilter) -> list[OffsetRange]:
        """Return the ranges of the partitions that are asked for, without those that the filter excludes."""
        places = self._partitions(self._options.subscription)
        for limit, side in ((self._options.start, "starting"), (self._options.end, "ending")):
            self._require_named(limit, side, places)
        chosen = [place for place in places if wanted.holds_partition(*place)]
        return [found for place in chosen if (found := self._range(place, wanted.bounds)) is not None]

    def find_spans(self) -> dict[TopicPartition, PartitionSpan]:
        """Return where the reading of each partition that is asked for begins and ends."""
        options = self._options
        places = self._partitions(options.subscription)
        self._require_named(options.start, "starting", places)
        self._require_named(options.end, "ending", places)
        found = {}
        for place in places:
            facts = self._facts(place)
            ends = self._ends(place, facts)
            start = self._offset(options.start, place, ends, is_start=True)
            until = self._offset(options.end, place, ends, is_start=False)
            lost_end = self._lost_end(place, facts, ends, until)
            lost_end = None if lost_end is None else lost_end.between(start, _GREATEST)
            found[place] = PartitionSpan(
                topic_id=facts.topic_id,
                start=start,
                until=min(ends.end, until),
                end=ends.end,
                lost_end=None if lost_end is None else lost_end_text(place, lost_end, ends),
            )
        return found

    def _facts(self, place: TopicPartition) -> PartitionFacts:
        known = self._index.partition(*place)
        if known is not None:
            return known[0]
        state = None if self._local is None else self._local.state(*place)
        if state is None:
            raise RetriableError(f"{place[0]}-{place[1]} has left the log directory since it was listed; try again")
        return _not_archived(state)

    def _state(self, place: TopicPartition, facts: PartitionFacts) -> LocalLogState | None:
        """Return the state of the partition in the directory; None: only the archive is read."""
        local, state = self._local, None if self._local is None else self._local.state(*place)
        if local is None or state is None:
            return None
        if facts.topic_id and state.topic_id not in (None, facts.topic_id):
            why = (
                f"the log directory has another topic {place[0]} (id {state.topic_id}) than the archive (id "
                f"{facts.topic_id}): it was deleted and created again since the index was built. Run run_pipeline when "
                "the new one is archived, or read the archive alone with failOnDataLoss=false"
            )
        elif contradiction := _contradiction(local, place, state, facts):
            why = (
                f"the log directory does not continue the archive of {place[0]}-{place[1]}: {contradiction}. Run "
                "run_pipeline when the newer log is archived, use the directory of the leader, or read the archive "
                "alone with failOnDataLoss=false"
            )
        else:
            return state
        if self._options.fails_on_data_loss:
            raise UsageError(why)
        return None

    def _partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the partitions of the subscription that the archive or the directory has."""
        known = self._logs.partitions()
        if self._local is not None:
            known = sorted({*known, *self._local.tier.partitions()})
        if subscription.strategy is Strategy.PATTERN:
            known = [place for place in known if place[0] not in INTERNAL_TOPICS]
            return [place for place in known if re.search(subscription.pattern, place[0])]
        if subscription.strategy is Strategy.ASSIGN:
            missing: list[tuple[str, int | None]] = [*sorted(subscription.partitions - {*known})]
            chosen = [place for place in known if place in subscription.partitions]
        else:
            topics = {topic for topic, _ in known}
            missing = [(topic, None) for topic in subscription.topics if topic not in topics]
            chosen = [place for place in known if place[0] in subscription.topics]
        if missing and self._options.fails_on_data_loss:
            names = {topic for topic, _ in known}
            unknown = "; nor ".join(unknown_text(*place, names) for place in missing[:_SHOWN])
            where = "the warehouse does" if self._local is None else "the warehouse and the log directory do"
            hint = "; failOnDataLoss=false reads the others" if chosen else ""
            raise UsageError(f"{where} not know {unknown}{hint}")
        return self._without_others(chosen, subscription.topic_ids)

    def _without_others(
        self, places: list[TopicPartition], topic_ids: Mapping[TopicPartition, str]
    ) -> list[TopicPartition]:
        """Leave out the partitions of topics with other ids. Raise `UsageError` for them if the options say so."""
        now = {place: self._facts(place).topic_id for place in places if place in topic_ids}
        others = [place for place, topic_id in now.items() if topic_id not in ("", topic_ids[place])]
        if others and self._options.fails_on_data_loss:
            raise recreated(others, topic_ids, now)
        return [place for place in places if place not in others]

    def _require_named(self, limit: Limit, side: str, places: Sequence[TopicPartition]) -> None:
        """Check that offsets by partition name exactly the partitions that are read."""
        if limit.by_partition is None:
            return
        option = f"{side}{'Offsets' if limit.offsets is not None else 'OffsetsByTimestamp'}"
        unnamed = sorted({*places} - limit.by_partition.keys())
        if unnamed:
            raise UsageError(f"{option} must name every partition that is read; missing: {_listed(unnamed)}")
        unread = sorted(limit.by_partition.keys() - {*places})
        if unread and self._options.fails_on_data_loss:
            raise UsageError(f"{option} names partitions that are not read or not in the archive: {_listed(unread)}")

    def _range(self, place: TopicPartition, bounds: RecordBounds) -> OffsetRange | None:
        facts = self._facts(place)
        ends = self._ends(place, facts)
        start = self._offset(self._options.start, place, ends, is_start=True)
        until = self._offset(self._options.end, place, ends, is_start=False)
        if start > until:
            raise UsageError(
                f"the starting offset {start} of {place[0]}-{place[1]} is after the ending offset {until}; "
                f"{ends.description}"
            )
        lost_end = self._lost_end(place, facts, ends, until)
        start, until = max(start, bounds.from_offset), min(until, bounds.to_offset + 1)
        lost_end = None if lost_end is None else lost_end.between(start, bounds.to_offset)
        if start >= until and lost_end is None:
            return None
        served = self._logs.served_segments(*place, facts.topic_id)
        undecided = undecided_offsets(served) if self._is_committed else []
        if self._is_committed and ends.gap is not None and ends.archive_stable < ends.archive_end:
            undecided.append((ends.archive_stable, ends.archive_end - 1))
        segments = [
            one for one in without_offsets(served, undecided) if one.to_offset >= start and one.from_offset < until
        ]
        local = ends.local_range(start, until)
        if self._options.fails_on_data_loss:
            require_known_start(place, facts)
            require_all(place, start, until, segments, ends, undecided, lost_end)
        elif not segments and local is None:
            return None
        return OffsetRange(
            topic=place[0],
            partition=place[1],
            topic_id=facts.topic_id,
            start=max(start, ends.first),
            until=min(until, ends.end, ends.archive_end),
            segments=segments,
            local=local,
            aborted_later=self._aborted_later(place, ends, until),
        )

    def _lost_end(self, place: TopicPartition, facts: PartitionFacts, ends: LogEnds, until: int) -> LostEnd | None:
        """Return the lost offsets after the archive's end, if the reading goes to the end, and must not miss them. It
        goes to the end up to `latest`, and up to a time that no record has reached. A log directory says itself where
        the log ends."""
        limit = self._options.end
        given = limit.by_partition[place] if limit.by_partition is not None else limit.offset
        is_time = limit.timestamp_ms is not None or limit.timestamps_ms is not None
        is_to_end = until == ends.end if is_time else given == LATEST
        if not is_to_end or not self._options.fails_on_data_loss or ends.local_first is not None:
            return None
        return find_lost_end(self._logs, place, facts)

    def _aborted_later(self, place: TopicPartition, ends: LogEnds, until: int) -> AbortedTransactions:
        """Return the aborted transactions that were open where the archive ends."""
        if not self._is_committed or self._local is None or ends.local_first is None or ends.gap is not None:
            return NOTHING_ABORTED
        if min(until, ends.archive_end) <= ends.archive_stable:
            return NOTHING_ABORTED
        return self._local.aborted_from(*place, ends.archive_end)

    def _ends(self, place: TopicPartition, facts: PartitionFacts) -> LogEnds:
        state, first = self._state(place, facts), facts.first_offset
        if state is not None and facts.local_start_offset <= first:
            first = max(first, state.log_start_offset)
        archive_end = max(first, facts.local_start_offset)
        stable = archive_end if facts.stable_offset is None else min(archive_end, facts.stable_offset)
        readable = stable if self._is_committed else archive_end
        end = readable
        if state is not None:
            end = max(readable, state.last_stable_offset if self._is_committed else state.high_watermark)
        return LogEnds(
            first=first,
            end=max(first, end),
            is_open=self._is_committed and end < max(archive_end, 0 if state is None else state.high_watermark),
            archive_end=archive_end,
            archive_stable=stable,
            local_first=None if state is None else state.local_log_start_offset,
        )

    def _offset(self, limit: Limit, place: TopicPartition, ends: LogEnds, *, is_start: bool) -> int:
        given = limit.by_partition[place] if limit.by_partition is not None else limit.offset
        if limit.timestamp_ms is not None or limit.timestamps_ms is not None:
            timestamp_ms = limit.timestamp_ms if given is None else given
            assert timestamp_ms is not None
            return self._offset_at(place, timestamp_ms, ends, is_start=is_start)
        assert given is not None
        return {EARLIEST: ends.first, LATEST: ends.end}.get(given, given)

    def _offset_at(self, place: TopicPartition, timestamp_ms: int, ends: LogEnds, *, is_start: bool) -> int:
        """Return the first offset at or after the timestamp; the end if there is none."""
        found = self._find_archived(place, timestamp_ms, ends)
        if found is None and ends.local_first is not None:
            found = self._find_later(place, timestamp_ms, ends)
        if found is not None and (ends.local_first is None or found.offset < ends.end):
            return found.offset
        if is_start and not self._options.starts_late:
            archived = "archived " if ends.local_first is None else ""
            raise UsageError(
                f"no {archived}record of {place[0]}-{place[1]} is at or after {timestamp_ms}; "
                "startingOffsetsByTimestampStrategy=latest reads nothing of such a partition"
            )
        return ends.end

    def _find_archived(self, place: TopicPartition, timestamp_ms: int, ends: LogEnds) -> FoundOffset | None:
        """Ask the archive. With a directory, it need not have the partition, nor decide the record."""
        is_whole, passing = ends.local_first is not None, {ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED}
        passing.add(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_whole else ErrorCode.OPEN_TRANSACTION)
        answers = self._lookup.answer_one(*place, timestamp_ms, is_committed=self._is_committed and not is_whole)
        error = ErrorCode(int(answers.errors[0]))
        if error is ErrorCode.KAFKA_STORAGE_ERROR:
            raise RetriableError(f"the archive does not answer for {place[0]}-{place[1]}")
        if error not in passing:
            raise ColdlogError(f"no offset of {place[0]}-{place[1]} for {timestamp_ms}: {answers.error_text(0)}")
        return answers.found(0)

    def _find_later(self, place: TopicPartition, timestamp_ms: int, ends: LogEnds) -> FoundOffset | None:
        """Ask the directory for what follows the archive."""
        assert self._local is not None
        if ends.gap is not None and self._options.fails_on_data_loss:
            raise UsageError(
                f"offsets {ends.gap[0]} to {ends.gap[1] - 1} of {place[0]}-{place[1]}, which may have the first record "
                f"at or after {timestamp_ms}, {LEFT}; failOnDataLoss=false reads what there is"
            )
        return self._local.tier.find_offset(*place, timestamp_ms, max(ends.archive_end, ends.local_first or 0))


def _contradiction(local: LocalLogs, place: TopicPartition, state: LocalLogState, facts: PartitionFacts) -> str | None:
    """Say how the directory contradicts the archive, if it has more."""
    end = max(facts.first_offset, facts.local_start_offset)
    if state.high_watermark <= end:
        return None
    return find_contradiction(local.tier, *place, state, end, facts.lineage)


def _not_archived(state: LocalLogState) -> PartitionFacts:
    """Return the facts of a partition that only the directory has."""
    return PartitionFacts(
        topic_id=state.topic_id or "",
        log_start_offset=state.log_start_offset,
        earliest_offset=None,
        latest_tiered_offset=None,
        max_timestamp_ms=None,
        max_timestamp_offset=None,
        stable_offset=None,
        lineage=(),
    )


def _listed(places: Sequence[TopicPartition]) -> str:
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(f"{topic}-{partition}" for topic, partition in places[:_SHOWN]) + more
