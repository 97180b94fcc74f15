"""replay: what does one run of a replay do, and what does the next one go on with?

A run replays what was archived since the last one, as far as the options go: it plans exact offsets, puts their records
in order (`replay_order`), hands them to the sink as run N, and ends the plan. A run that was killed is done again from
its plan; a sink that has run N already takes nothing again, so that each record is in a Delta sink once.

Within a run nothing is out of order. Between runs it can be: what was uploaded later than it should have been comes
late, behind records with later timestamps. Such records are counted, and told with the greatest lateness. With
`max_task_idle_ms` a run waits that long for partitions that have nothing new while others have; to look at the tables
does not count. To go on without them is an enforced choice, and counted too. -1 and 0 do not wait: a run reads all that
the tables know.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.offset_ranges import PartitionSpan
from coldlog.records.source.options import Limit, SourceOptions, Strategy, Subscription
from coldlog.records.source.planning import find_spans, plan_reading
from coldlog.replay.runs.replay_order import OrderedReading, Survey, TaskCounts, ordered, survey
from coldlog.replay.runs.replay_state import (
    PartitionState,
    ReplayState,
    ReplayStates,
    TaskState,
    TopicPartition,
    require_same,
)
from coldlog.tiering.rules.clock import Clock

_POLL_MS = 1_000
_SHOWN = 5


class ReplayOrder(StrEnum):
    """Which partitions share one order: all, or those of one number, as tasks of Kafka Streams have them."""

    ALL = "all"
    TASKS = "tasks"


class NegativeTimestamps(StrEnum):
    """What becomes of records with a negative timestamp: they keep their place, or are left out as in Kafka Streams."""

    KEEP = "keep"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """One run, as sinks know it. `replay_id` is empty for a replay that is done once."""

    replay_id: str
    number: int
    partitions: frozenset[int]
    negative_count: int
    is_first: bool
    is_repeated: bool


class ReplaySink(Protocol):
    """Where records go."""

    @property
    def name(self) -> str:
        """Tells sinks apart, for people and for the next run."""

    def require_ready(self, run: SinkRun) -> None:
        """A `UsageError` where the sink cannot take the run; of the first one it needs to be empty."""

    def written(self, run: SinkRun) -> DataFrame | None:
        """All records that the sink has, if it has this run already, as a whole, and is sure to take none of it
        again; None: the run is to be written."""

    def write(self, run: SinkRun, records: DataFrame) -> None:
        """All records of a run, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """`name`: the replay goes on where its last run ended; without it, it is done once."""

    source: SourceOptions
    name: str | None = None
    order: ReplayOrder = ReplayOrder.ALL
    max_task_idle_ms: int = 0
    negative_timestamps: NegativeTimestamps = NegativeTimestamps.KEEP

    def __post_init__(self) -> None:
        if self.max_task_idle_ms < -1:
            raise UsageError(f"max.task.idle.ms = {self.max_task_idle_ms}: expected -1, 0 or a time to wait")

    @property
    def rules(self) -> str:
        """What all runs of a replay share."""
        return (
            f"order {self.order}, isolation level {self.source.isolation_level}, "
            f"negative timestamps {self.negative_timestamps}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """What a run did. `enforced`: partitions that were not waited for any longer."""

    run: int
    is_repeated: bool
    partition_count: int
    negative_count: int = 0
    counts: Mapping[int, TaskCounts] = field(default_factory=dict)
    enforced: tuple[TopicPartition, ...] = ()

    @property
    def record_count(self) -> int:
        """Records that were replayed."""
        return sum(each.record_count for each in self.counts.values())

    @property
    def late_count(self) -> int:
        """Of them, those that come behind a later one of a run before."""
        return sum(each.late_count for each in self.counts.values())

    @property
    def greatest_lateness_ms(self) -> int:
        """By how much at most."""
        return max((each.greatest_lateness_ms for each in self.counts.values()), default=0)


def replay(
    spark: SparkSession, options: ReplayOptions, sink: ReplaySink, states: ReplayStates, clock: Clock
) -> ReplaySummary:
    """One run. `UsageError`: the options do not fit the archive, the sink, or what the replay did before."""
    name = options.name
    before = states.read(name) if name is not None else None
    if before is not None:
        require_same(str(name), before, sink.name, options.rules)
    run = _Run(spark=spark, options=options, sink=sink, states=states)
    if before is not None and before.is_planned:
        return run.repeat(before)
    planned, enforced = _plan(options, sink.name, before, clock)
    if _is_idle(planned):
        return ReplaySummary(run=before.run if before else 0, is_repeated=False, partition_count=0)
    prepared = run.prepare(planned, is_repeated=False)
    # What is planned can be done, so that a run that is killed can be done again.
    if name is not None:
        states.change(name, before, planned)
    return replace(run.perform(planned, prepared), enforced=enforced)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a run is about to write."""

    reading: OrderedReading
    surveyed: Survey
    run: SinkRun


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run, for the first time or again."""

    spark: SparkSession
    options: ReplayOptions
    sink: ReplaySink
    states: ReplayStates

    def repeat(self, planned: ReplayState) -> ReplaySummary:
        """A run that was planned and has not ended."""
        had = self.sink.written(_sink_run(planned, 0, is_repeated=True))
        if had is not None:
            return _end_written(self.states, str(self.options.name), planned, had)
        try:
            prepared = self.prepare(planned, is_repeated=True)
        except UsageError as unfit:
            raise UsageError(
                f"run {planned.run} of replay {self.options.name} had not ended and cannot be done again: {unfit}; "
                "begin another replay, with another name and output"
            ) from unfit
        return replace(self.perform(planned, prepared), is_repeated=True)

    def prepare(self, planned: ReplayState, *, is_repeated: bool) -> _Prepared:
        """Everything that can be refused before anything is written."""
        reading = _reading(self.spark, self.options, planned)
        surveyed = survey(self.spark, reading)
        negative_count = 0 if reading.drops_negative else surveyed.negative_count
        run = _sink_run(planned, negative_count, is_repeated=is_repeated)
        self.sink.require_ready(run)
        return _Prepared(reading, surveyed, run if self.options.name is not None else replace(run, replay_id=""))

    def perform(self, planned: ReplayState, prepared: _Prepared) -> ReplaySummary:
        """Writes it, and ends the plan."""
        surveyed = prepared.surveyed
        with ordered(self.spark, prepared.reading, surveyed, planned.tasks) as in_order:
            self.sink.write(prepared.run, in_order.records)
        if self.options.name is not None:
            done = _done(planned, surveyed.reached_ms, in_order.counts)
            self.states.change(self.options.name, planned, done)
        return ReplaySummary(
            run=planned.run,
            is_repeated=False,
            partition_count=len(prepared.reading.task_of),
            negative_count=surveyed.negative_count,
            counts=in_order.counts,
        )


def _sink_run(planned: ReplayState, negative_count: int, *, is_repeated: bool) -> SinkRun:
    return SinkRun(
        replay_id=planned.replay_id,
        number=planned.run,
        partitions=frozenset(partition for _, partition in planned.partitions),
        negative_count=negative_count,
        is_first=planned.run == 1,
        is_repeated=is_repeated,
    )


def _end_written(states: ReplayStates, name: str, planned: ReplayState, had: DataFrame) -> ReplaySummary:
    """The run was killed when all was written: what it came to is told by its rows, since the archive may have changed
    meanwhile."""
    firsts = {task: own.next_sequence for task, own in planned.tasks.items()}
    of_run = _reached_by_rows(had, firsts)
    reached_ms = {place: own.reached_ms for place, own in planned.partitions.items()}
    counts: dict[int, TaskCounts] = {}
    for topic, partition, task, count, latest_ms in of_run:
        before_ms = reached_ms[topic, partition]
        reached_ms[topic, partition] = latest_ms if before_ms is None else max(before_ms, latest_ms)
        counts[task] = TaskCounts(record_count=counts.get(task, TaskCounts()).record_count + count)
    states.change(name, planned, _done(planned, reached_ms, counts))
    return ReplaySummary(run=planned.run, is_repeated=True, partition_count=len(of_run), counts=counts)


def _reached_by_rows(had: DataFrame, firsts: Mapping[int, int]) -> list[tuple[str, int, int, int, int]]:
    """Topic, partition, task, records and latest timestamp of the rows from each task's first number on."""
    begins = had.sparkSession.createDataFrame(list(firsts.items()), "task INT, first BIGINT")
    rows = (
        had.join(F.broadcast(begins), "task")
        .where("sequence >= first")
        .groupBy("topic", "partition", "task")
        .agg(F.count(F.lit(1)).alias("count"), F.max(F.unix_millis("timestamp")).alias("latest_ms"))
        .collect()
    )
    return [(row["topic"], row["partition"], row["task"], row["count"], row["latest_ms"]) for row in rows]


def _is_idle(planned: ReplayState) -> bool:
    return all(each.from_offset == each.until_offset for each in planned.partitions.values())


def _plan(
    options: ReplayOptions, sink: str, before: ReplayState | None, clock: Clock
) -> tuple[ReplayState, tuple[TopicPartition, ...]]:
    """The next run, and the partitions that it does not wait for any longer."""
    left_ms = options.max_task_idle_ms
    while True:
        planned, open_ended = _plan_now(options, sink, before)
        waits = _waits(planned, open_ended)
        if not waits or options.max_task_idle_ms <= 0:
            return planned, ()
        if left_ms <= 0:
            return planned, waits
        began_ms = clock.monotonic_ms()
        clock.wait_ms(min(left_ms, _POLL_MS))
        left_ms -= clock.monotonic_ms() - began_ms


def _waits(planned: ReplayState, open_ended: Collection[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Of these, partitions that have nothing new, in tasks where others have."""
    busy = {own.task for own in planned.partitions.values() if own.from_offset < own.until_offset}
    return tuple(
        place
        for place, own in sorted(planned.partitions.items())
        if place in open_ended and own.task in busy and own.from_offset == own.until_offset
    )


def _plan_now(
    options: ReplayOptions, sink: str, before: ReplayState | None
) -> tuple[ReplayState, Collection[TopicPartition]]:
    """Everything that the tables know now and that was not replayed yet; and the partitions that may still grow into
    what is asked for."""
    known = before.partitions if before is not None else {}
    partitions = dict(known)
    # Where nothing is as late as a starting time, the replay begins with what comes.
    spans = find_spans(replace(options.source, starts_late=True))
    _require_continued(options, known, spans)
    for place, span in spans.items():
        own = known.get(place)
        if own is None:
            if span.start > span.end:
                raise UsageError(
                    f"the starting offset {span.start} of {place[0]}-{place[1]} lies behind the archive's end, "
                    f"{span.end}; begin there or before"
                )
            partitions[place] = PartitionState(
                topic_id=span.topic_id,
                from_offset=span.start,
                until_offset=max(span.start, span.until),
                reached_ms=None,
                task=place[1] if options.order is ReplayOrder.TASKS else 0,
            )
        else:
            partitions[place] = replace(own, until_offset=max(own.from_offset, span.until))
    tasks = before.tasks if before is not None else {}
    planned = ReplayState(
        replay_id=before.replay_id if before is not None else uuid.uuid4().hex,
        run=before.run + 1 if before is not None else 1,
        is_planned=True,
        sink=sink,
        rules=options.rules,
        partitions=partitions,
        tasks={own.task: tasks.get(own.task, TaskState()) for own in partitions.values()},
    )
    return planned, {place for place, span in spans.items() if span.until == span.end}


def _require_continued(
    options: ReplayOptions,
    known: Mapping[TopicPartition, PartitionState],
    spans: Mapping[TopicPartition, PartitionSpan],
) -> None:
    """The archive has what the replay has read."""
    common = sorted(known.keys() & spans.keys())
    anew = [place for place in common if spans[place].topic_id != known[place].topic_id]
    shorter = [place for place in common if spans[place].end < known[place].from_offset]
    found, what = (anew, "are topics made anew") if anew else (shorter, "end before the place where it goes on")
    if found and (anew or options.source.fails_on_data_loss):
        told = ", ".join(f"{topic}-{partition}" for topic, partition in found[:_SHOWN])
        raise UsageError(
            f"replay {options.name} cannot go on, since partitions {what}: {told}; begin another replay, with another "
            "name and output"
        )


def _reading(spark: SparkSession, options: ReplayOptions, planned: ReplayState) -> OrderedReading:
    moved = {place: own for place, own in planned.partitions.items() if own.from_offset < own.until_offset}
    source = replace(
        options.source,
        subscription=Subscription(strategy=Strategy.ASSIGN, partitions=frozenset(moved)),
        start=Limit(offsets={place: own.from_offset for place, own in moved.items()}),
        end=Limit(offsets={place: own.until_offset for place, own in moved.items()}),
        min_tasks=max(options.source.min_tasks, spark.sparkContext.defaultParallelism),
    )
    return OrderedReading(
        options=source,
        tasks=plan_reading(source, RecordFilter()),
        task_of={place: own.task for place, own in moved.items()},
        reached_ms={place: own.reached_ms for place, own in moved.items()},
        drops_negative=options.negative_timestamps is NegativeTimestamps.DROP,
    )


def _done(
    planned: ReplayState, reached_ms: Mapping[TopicPartition, int | None], counts: Mapping[int, TaskCounts]
) -> ReplayState:
    partitions = {
        place: replace(own, from_offset=own.until_offset, reached_ms=reached_ms.get(place, own.reached_ms))
        for place, own in planned.partitions.items()
    }
    latest_ms = {task: own.latest_ms for task, own in planned.tasks.items() if own.latest_ms is not None}
    for own in partitions.values():
        if own.reached_ms is not None:
            latest_ms[own.task] = max(latest_ms.get(own.task, own.reached_ms), own.reached_ms)
    tasks = {
        task: TaskState(
            next_sequence=own.next_sequence + counts.get(task, TaskCounts()).record_count, latest_ms=latest_ms.get(task)
        )
        for task, own in planned.tasks.items()
    }
    return replace(planned, is_planned=False, partitions=partitions, tasks=tasks)
