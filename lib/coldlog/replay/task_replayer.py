"""Replay one task record by record, while its archive may still grow.

    with open_fetcher(["warehouse.uri=/data/coldlog", "archive.uri=/mnt/tiered"]) as fetcher:
        task = {("orders", 0): None, ("payments", 0): None}                 # from the first archived offsets
        replayer = TaskReplayer(fetcher, SystemClock(), task, ReplayOptions(max_task_idle_ms=5_000))
        for each in replayer: ...                                           # until all that is archived was replayed

Partitions are read as by a task of Kafka Streams. Each has a bounded buffer: one fetch, which is followed by the next
when it is used up. The next record is the buffered one with the smallest timestamp. max.task.idle.ms decides what
happens while a buffer is empty (coldlog.replay.idling). The lag is computed from what is known. A look learns more: it
opens the newest tables and fetches once from each partition without records. Looks are made if a lag is unknown, while
the task waits for a partition, and before a partition is skipped, if the last look began before the wait for it was
over or is older than `max_metadata_age_ms`. So nothing is missed that was in the tables when the wait was over.

With -1 there is a look or a fetch before each `POLL_RECORDS` records and when none are buffered, but not in between.

If a fetch fails, the replay stops with a `ReplayError`. Nothing is skipped: the next call asks for the same offset
again, unless `seek` was called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.model.fetch import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT_MS,
    FetchAnswer,
    FetchedRecord,
    FetchErrorCode,
    FetchFailure,
    PartitionEnds,
)
from coldlog.model.states import IsolationLevel
from coldlog.replay.buffers import RecordBuffers
from coldlog.replay.idling import NEVER_WAIT, TaskIdling, checked_idle_ms
from coldlog.replay.lateness import Lateness
from coldlog.replay.positions import EndsReader, PartitionPositions, TopicPartition
from coldlog.tiering.rules.clock import Clock

POLL_RECORDS = 500
"""The max.poll.records of a consumer."""
_LEAST_PAUSE_MS = 100
_MAY_SUCCEED_LATER = frozenset(
    {
        FetchErrorCode.REQUEST_TIMED_OUT,
        FetchErrorCode.THROTTLING_QUOTA_EXCEEDED,
        FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class RecordReader(EndsReader, Protocol):
    """The source of records, such as a `RecordFetcher`."""

    def fetch_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = ...,
        isolation_level: IsolationLevel = ...,
        timeout_ms: int = ...,
    ) -> FetchAnswer:
        """Fetch records of a partition from an offset on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a task is replayed.

    `max_task_idle_ms` is Kafka Streams' max.task.idle.ms. A fetch returns at most `max_bytes` of a log (but at least
    one batch), which limits the buffer of a partition, and has the timeout `fetch_timeout_ms`. With
    `drops_negative_timestamps` such records are skipped, as Kafka Streams does with its LogAndSkipOnInvalidTimestamp;
    they are counted in both cases. `max_metadata_age_ms` is how old the known end of a partition may be when it is
    skipped, and how often a look is made during a wait (at most every 100 ms). Invalid values are a `UsageError`.
    """

    max_task_idle_ms: int = 0
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    max_bytes: int = DEFAULT_MAX_BYTES
    fetch_timeout_ms: int = DEFAULT_TIMEOUT_MS
    drops_negative_timestamps: bool = False
    max_metadata_age_ms: int = 1_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_task_idle_ms", checked_idle_ms(self.max_task_idle_ms))
        for name in ("max_bytes", "fetch_timeout_ms", "max_metadata_age_ms"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} of a replay must not be negative, but is {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedTo:
    """How far a partition was replayed: the next offset, and the largest timestamp before it (None: no record was
    replayed), from which lateness is computed. `topic_id` is that of the topic, if it is known (not empty): the replay
    stops if the topic was created again."""

    next_offset: int
    reached_ms: int | None = None
    topic_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRecord:
    """A replayed record. `late_ms`: it came so much after a record that it should have preceded; None: it is not
    late."""

    topic: str
    partition: int
    record: FetchedRecord
    late_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class ReplayCounts:
    """Counts of what was done so far.

    `enforced_processing` are records that were chosen while a partition had none buffered. `late_records` came after a
    record that they should have preceded, by at most `greatest_lateness_ms`. `negative_timestamps` are records with a
    negative timestamp, kept or dropped. `looks` are reads of the newest tables. `failed_fetches` are fetches that
    returned an error.
    """

    records: int = 0
    enforced_processing: int = 0
    late_records: int = 0
    greatest_lateness_ms: int = 0
    negative_timestamps: int = 0
    fetches: int = 0
    failed_fetches: int = 0
    looks: int = 0
    waited_ms: int = 0


class ReplayError(ColdlogError):
    """A partition cannot be read further from `offset` on. Position and buffers are kept: the next call tries again.
    Call `TaskReplayer.seek` to `failure.resume_offset`, if known, to skip the offsets in between."""

    def __init__(self, topic: str, partition: int, offset: int | None, failure: FetchFailure) -> None:
        where = "its first offset" if offset is None else f"offset {offset}"
        advice = (
            ""
            if failure.resume_offset is None
            else f"; seek to offset {failure.resume_offset} to skip the offsets before it"
        )
        super().__init__(f"the replay stopped at {where} of {topic}-{partition}: {failure}{advice}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.failure = failure

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.topic, self.partition, self.offset, self.failure)


class RetriableReplayError(ReplayError, RetriableError):
    """A ReplayError that a later attempt may not have."""


class TaskReplayer:
    """The records of one task. Use it in one thread.

    `start` names the partitions and how far each was replayed before, as `replayed` returned it; None: from the first
    archived offset on. The iteration ends when all that is archived was replayed and the wait is over. A new iteration
    continues with what was archived since.
    """

    def __init__(
        self,
        reader: RecordReader,
        clock: Clock,
        start: Mapping[TopicPartition, ReplayedTo | None],
        options: ReplayOptions | None = None,
    ) -> None:
        if not start:
            raise UsageError("a task has no partitions; name at least one")
        self._reader = reader
        self._clock = clock
        self._options = options or ReplayOptions()
        self._positions = PartitionPositions(reader, self._options.isolation_level)
        self._positions.assign(start)
        self._buffers = RecordBuffers(start)
        self._idling = TaskIdling(self._options.max_task_idle_ms)
        known = {place: to.reached_ms for place, to in start.items() if to is not None}
        self._lateness = Lateness({place: reached for place, reached in known.items() if reached is not None})
        self._topic_ids = {place: to.topic_id for place, to in start.items() if to is not None}
        self._looked_ms: int | None = None
        self.counts = ReplayCounts()
        for (topic, partition), to in start.items():
            if to is not None:
                self._positions.seek(topic, partition, to.next_offset)

    @property
    def replayed(self) -> dict[TopicPartition, ReplayedTo | None]:
        """Return how far each partition was replayed. A later replay can use it as `start`."""
        found: dict[TopicPartition, ReplayedTo | None] = {}
        for place in self._positions.assigned:
            head = self._buffers.head_offset(place)
            offset = self._positions.position(*place) if head is None else head
            reached_ms, topic_id = self._lateness.reached_ms(place), self._topic_ids.get(place, "")
            found[place] = (
                None if offset is None else ReplayedTo(next_offset=offset, reached_ms=reached_ms, topic_id=topic_id)
            )
        return found

    def current_lag(self, topic: str, partition: int) -> int | None:
        """Return how many offsets of a partition are archived, as far as known, and not fetched yet. Never asks."""
        return self._positions.current_lag(topic, partition)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue at another offset of a partition, also of a topic that was created again; records that are replayed
        again come late. Raise `UsageError` for a partition that is not of the task, or a negative offset."""
        before = self.replayed.get((topic, partition))
        self._positions.seek(topic, partition, offset)
        self._buffers.clear((topic, partition))
        self._topic_ids.pop((topic, partition), None)
        if before is not None and offset < before.next_offset:
            self._lateness.forget((topic, partition))

    def __iter__(self) -> Iterator[ReplayedRecord]:
        while True:
            count = 0
            for record in self._iter_poll(POLL_RECORDS, waits_for_each=True):
                count += 1
                yield record
            if count == 0:
                return

    def poll(self, max_records: int = POLL_RECORDS) -> list[ReplayedRecord]:
        """Return the next records, at most so many; none if all that is archived was replayed and the wait is over.
        Records that are buffered are returned before the task waits for more.

        If a fetch fails after the first record, the records before it are returned; the next poll fetches again.
        """
        if max_records < 1:
            raise UsageError(f"a poll needs at least one record, not {max_records}")
        found: list[ReplayedRecord] = []
        try:
            for record in self._iter_poll(max_records, waits_for_each=False):
                found.append(record)
        except (ReplayError, RetriableError):
            # Records that were taken belong to the caller. A lasting failure is raised by the next poll.
            if not found:
                raise
        return found

    def _iter_poll(self, max_records: int, *, waits_for_each: bool) -> Iterator[ReplayedRecord]:
        if self._idling.max_task_idle_ms == NEVER_WAIT:
            self._read_without_waiting()
        for number in range(max_records):
            if not self._get_ready(may_wait=waits_for_each or number == 0):
                return
            yield self._take()

    def _take(self) -> ReplayedRecord:
        is_enforced = bool(self._buffers.empty)
        place, record = self._buffers.take()
        late_ms = self._lateness.add(place, record.timestamp_ms)
        self.counts.records += 1
        self.counts.enforced_processing += is_enforced
        if late_ms is not None:
            self.counts.late_records += 1
            self.counts.greatest_lateness_ms = max(self.counts.greatest_lateness_ms, late_ms)
        return ReplayedRecord(topic=place[0], partition=place[1], record=record, late_ms=late_ms)

    def _get_ready(self, *, may_wait: bool) -> bool:
        """Fetch, look and wait until a record may be chosen. False: there is none, or not yet."""
        has_just_looked = False
        while True:
            lags = {place: self._positions.current_lag(*place) for place in self._buffers.empty}
            now_ms = self._clock.monotonic_ms()
            found = self._idling.assess(lags, now_ms)
            if found.lagging:
                for place in found.lagging:
                    self._fetch(place)
                has_just_looked = False
            elif found.unknown or self._is_look_due(found.deadline_ms, now_ms, has_just_looked=has_just_looked):
                self._look()
                has_just_looked = True
            elif found.deadline_ms is not None and now_ms < found.deadline_ms:
                if not may_wait:
                    return False
                self._wait(found.deadline_ms - now_ms)
                self._look()
                has_just_looked = True
            else:
                return self._buffers.has_records

    def _is_look_due(self, deadline_ms: int | None, now_ms: int, *, has_just_looked: bool) -> bool:
        """True if a look is needed before partitions are skipped. Their known ends must not be older than the moment at
        which the last wait ended (`deadline_ms`; None: no wait), and must be new."""
        if deadline_ms is None or now_ms < deadline_ms:
            return False
        is_old = not has_just_looked and not self._has_looked_since(now_ms - self._options.max_metadata_age_ms)
        return is_old or not self._has_looked_since(deadline_ms)

    def _has_looked_since(self, moment_ms: int) -> bool:
        return self._looked_ms is not None and moment_ms <= self._looked_ms

    def _wait(self, left_ms: int) -> None:
        """Wait until there may be more records."""
        pause_ms = min(left_ms, max(_LEAST_PAUSE_MS, self._options.max_metadata_age_ms))
        self._clock.wait_ms(pause_ms)
        self.counts.waited_ms += pause_ms

    def _look(self) -> None:
        """Open the newest tables, and fetch from partitions without records."""
        began_ms = self._refresh()
        for place in self._buffers.empty:
            self._fetch(place)
        self._looked_ms = began_ms

    def _refresh(self) -> int:
        began_ms = self._clock.monotonic_ms()
        self._positions.refresh()
        self.counts.looks += 1
        return began_ms

    def _read_without_waiting(self) -> None:
        """Fetch once from each partition without records. Repeat while none has records and some have lag. A partition
        with a retriable failure is skipped if another has records."""
        if not self._has_looked_since(self._clock.monotonic_ms() - self._options.max_metadata_age_ms):
            self._looked_ms = self._refresh()
        while True:
            failed: list[RetriableReplayError] = []
            for place in self._buffers.empty:
                try:
                    self._fetch(place)
                except RetriableReplayError as interrupted:
                    failed.append(interrupted)
            if self._buffers.has_records:
                return
            if failed:
                raise failed[0]
            if not any(self._positions.current_lag(*place) for place in self._buffers.empty):
                return

    def _fetch(self, place: TopicPartition) -> None:
        """Fetch the next records of a partition without records."""
        offset = self._begin(place)
        options = self._options
        self.counts.fetches += 1
        answer = self._reader.fetch_records(
            *place, offset, options.max_bytes, options.isolation_level, options.fetch_timeout_ms
        )
        if isinstance(answer, FetchFailure):
            raise self._stopped(place, offset, answer)
        self._require_same_topic(place, offset, answer.ends)
        negative = sum(record.timestamp_ms < 0 for record in answer.records)
        self.counts.negative_timestamps += negative
        is_shorter = options.drops_negative_timestamps and negative
        kept = [record for record in answer.records if record.timestamp_ms >= 0] if is_shorter else answer.records
        self._positions.fetched(*place, answer)
        self._buffers.fill(place, kept)

    def _require_same_topic(self, place: TopicPartition, offset: int, ends: PartitionEnds) -> None:
        """Stop if the topic was created again: the offset is one of the topic before it."""
        known = self._topic_ids.get(place, "")
        if known and ends.topic_id not in ("", known):
            other = FetchFailure(
                error=FetchErrorCode.OFFSET_OUT_OF_RANGE,
                message=f"topic {place[0]} was created again: its id was {known}, and is {ends.topic_id}; seek to "
                f"offset {ends.log_start_offset} to replay the new one",
                ends=ends,
            )
            raise self._stopped(place, offset, other)
        self._topic_ids[place] = ends.topic_id or known

    def _begin(self, place: TopicPartition) -> int:
        """Return the position; if there is none, set it to the first archived offset."""
        position = self._positions.position(*place)
        if position is None:
            ends = self._reader.partition_ends(*place)
            if ends is None:
                unknown = FetchFailure(
                    error=FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    message=f"the archive has no partition {place[0]}-{place[1]}",
                )
                raise self._stopped(place, None, unknown)
            position = ends.log_start_offset
            self._positions.seek(*place, position)
        return position

    def _stopped(self, place: TopicPartition, offset: int | None, failure: FetchFailure) -> ReplayError:
        self.counts.failed_fetches += 1
        kind = RetriableReplayError if failure.error in _MAY_SUCCEED_LATER else ReplayError
        return kind(*place, offset, failure)
