"""Do one run of a replay, and continue where the last run ended.

A run replays what was archived since the last run, as far as the options allow. It plans exact offsets, puts their
records in order (`replay_order`), writes them to the sink as run N, and ends the plan. A run that was killed is
repeated from its plan. A sink that already has run N does not take it again, so each record is in a Delta sink once.

Within a run all records are in order. Between runs a record can be late: if it was uploaded late, it comes after
records with later timestamps of an earlier run. Late records are counted and reported with the greatest lateness. With
`max_task_idle_ms` a run waits that long for partitions that have no new records while others have; the time to read the
tables does not count. If it continues without them, this is enforced processing, and counted too. -1 and 0 do not wait:
a run reads all that the tables know.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.offset_ranges import PartitionSpan
from coldlog.records.source.options import Limit, SourceOptions, Strategy, Subscription
from coldlog.records.source.planning import plan_reading
from coldlog.records.source.read_tasks import ReadTask
from coldlog.records.source.spans import find_spans, require_ends
from coldlog.replay.runs.replay_arguments import NegativeTimestamps, ReplayOrder
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """One run, as sinks see it. `replay_id` is empty for a replay without a name, which runs once."""

    replay_id: str
    number: int
    partitions: frozenset[int]
    negative_count: int
    is_first: bool
    is_repeated: bool


class ReplaySink(Protocol):
    """The target of a replay's records."""

    @property
    def name(self) -> str:
        """Return the name of the sink, for messages and for comparison with the next run."""

    def require_ready(self, run: SinkRun) -> None:
        """Raise `UsageError` if the sink cannot take the run. For the first run the sink must be empty."""

    def written(self, run: SinkRun) -> DataFrame | None:
        """Return all records of the sink if it already has this whole run and cannot take it again. None: the run must
        be written."""

    def write(self, run: SinkRun, records: DataFrame) -> None:
        """Write all records of a run, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of a replay. With a `name` it continues where its last run ended; without a name it runs once."""

    source: SourceOptions
    name: str | None = None
    order: ReplayOrder = ReplayOrder.ALL
    max_task_idle_ms: int = 0
    negative_timestamps: NegativeTimestamps = NegativeTimestamps.KEEP

    def __post_init__(self) -> None:
        if self.max_task_idle_ms < -1:
            raise UsageError(f"max.task.idle.ms = {self.max_task_idle_ms}: expected -1, 0 or milliseconds to wait")

    @property
    def rules(self) -> str:
        """Return the rules that all runs of a replay share."""
        return (
            f"order {self.order}, isolation level {self.source.isolation_level}, "
            f"negative timestamps {self.negative_timestamps}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """The result of a run. `enforced` are partitions for which it did not wait any longer."""

    run: int
    is_repeated: bool
    partition_count: int
    negative_count: int = 0
    counts: Mapping[int, TaskCounts] = field(default_factory=dict)
    enforced: tuple[TopicPartition, ...] = ()

    @property
    def figures(self) -> dict[str, object]:
        """Return what the run's row of `job_runs` says."""
        return {
            "run": self.run,
            "retries": int(self.is_repeated),
            "partitions": self.partition_count,
            "records": self.record_count,
            "late_records": self.late_count,
            "waited_in_vain": len(self.enforced),
        }

    @property
    def record_count(self) -> int:
        """Return how many records were replayed."""
        return sum(task.record_count for task in self.counts.values())

    @property
    def late_count(self) -> int:
        """Return how many of them come after a later record of an earlier run."""
        return sum(task.late_count for task in self.counts.values())

    @property
    def greatest_lateness_ms(self) -> int:
        """Return the greatest lateness."""
        return max((task.greatest_lateness_ms for task in self.counts.values()), default=0)


def replay(
    spark: SparkSession, options: ReplayOptions, sink: ReplaySink, states: ReplayStates, clock: Clock
) -> ReplaySummary:
    """Do one run. Raise `UsageError` if the options do not fit the archive, the sink, or the replay's earlier runs."""
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
    # Save the plan only when it can be done, so that a killed run can be repeated.
    if name is not None:
        states.change(name, before, planned)
    return replace(run.perform(planned, prepared), enforced=enforced)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A run that is ready to be written."""

    reading: OrderedReading
    surveyed: Survey
    run: SinkRun


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run, new or repeated."""

    spark: SparkSession
    options: ReplayOptions
    sink: ReplaySink
    states: ReplayStates

    def repeat(self, planned: ReplayState) -> ReplaySummary:
        """Repeat a run that was planned and has not ended."""
        written = self.sink.written(_sink_run(planned, 0, is_repeated=True))
        if written is not None:
            return _end_written(self.states, str(self.options.name), planned, written)
        try:
            prepared = self.prepare(planned, is_repeated=True)
        except UsageError as unfit:
            raise UsageError(
                f"run {planned.run} of replay {self.options.name} did not end and cannot be repeated: {unfit}. "
                "Begin another replay with another name and output"
            ) from unfit
        return replace(self.perform(planned, prepared), is_repeated=True)

    def prepare(self, planned: ReplayState, *, is_repeated: bool) -> _Prepared:
        """Prepare the run; everything that can be refused is refused before anything is written."""
        reading = _reading(self.spark, self.options, planned)
        surveyed = survey(self.spark, reading)
        negative_count = 0 if reading.drops_negative else surveyed.negative_count
        run = _sink_run(planned, negative_count, is_repeated=is_repeated)
        self.sink.require_ready(run)
        return _Prepared(reading, surveyed, run if self.options.name is not None else replace(run, replay_id=""))

    def perform(self, planned: ReplayState, prepared: _Prepared) -> ReplaySummary:
        """Write the run, and end the plan."""
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


def _end_written(states: ReplayStates, name: str, planned: ReplayState, written: DataFrame) -> ReplaySummary:
    """End a run that was killed after all was written. The counts are those of its rows, because the archive may have
    changed since."""
    firsts = {task: state.next_sequence for task, state in planned.tasks.items()}
    of_run = _reached_by_rows(written, firsts)
    reached_ms = {place: state.reached_ms for place, state in planned.partitions.items()}
    counts: dict[int, TaskCounts] = {}
    for topic, partition, task, count, latest_ms in of_run:
        before_ms = reached_ms[topic, partition]
        reached_ms[topic, partition] = latest_ms if before_ms is None else max(before_ms, latest_ms)
        counts[task] = TaskCounts(record_count=counts.get(task, TaskCounts()).record_count + count)
    states.change(name, planned, _done(planned, reached_ms, counts))
    return ReplaySummary(run=planned.run, is_repeated=True, partition_count=len(of_run), counts=counts)


def _reached_by_rows(written: DataFrame, firsts: Mapping[int, int]) -> list[tuple[str, int, int, int, int]]:
    """Return topic, partition, task, record count and latest timestamp of the rows from each task's first number on."""
    begins = written.sparkSession.createDataFrame(list(firsts.items()), "task INT, first BIGINT")
    rows = (
        written.join(F.broadcast(begins), "task")
        .where("sequence >= first")
        .groupBy("topic", "partition", "task")
        .agg(F.count(F.lit(1)).alias("count"), F.max(F.unix_millis("timestamp")).alias("latest_ms"))
        .collect()
    )
    return [(row["topic"], row["partition"], row["task"], row["count"], row["latest_ms"]) for row in rows]


def _is_idle(planned: ReplayState) -> bool:
    return all(state.from_offset == state.until_offset for state in planned.partitions.values())


def _plan(
    options: ReplayOptions, sink: str, before: ReplayState | None, clock: Clock
) -> tuple[ReplayState, tuple[TopicPartition, ...]]:
    """Plan the next run, waiting for partitions. Return also those for which it does not wait any longer."""
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
    """Return the partitions of `open_ended` that have no new records, in tasks where other partitions have."""
    busy = {state.task for state in planned.partitions.values() if state.from_offset < state.until_offset}
    return tuple(
        place
        for place, state in sorted(planned.partitions.items())
        if place in open_ended and state.task in busy and state.from_offset == state.until_offset
    )


def _plan_now(
    options: ReplayOptions, sink: str, before: ReplayState | None
) -> tuple[ReplayState, Collection[TopicPartition]]:
    """Plan everything that the tables know now and that was not replayed yet. Return also the partitions whose end may
    still grow."""
    known = before.partitions if before is not None else {}
    partitions = dict(known)
    # If no record is at or after a starting time, the replay begins with the next records.
    spans = find_spans(replace(options.source, starts_late=True))
    _require_continued(options, known, spans)
    require_ends(spans)
    for place, span in spans.items():
        state = known.get(place)
        if state is None:
            if span.start > span.end:
                raise UsageError(
                    f"the starting offset {span.start} of {place[0]}-{place[1]} is after the archive's end "
                    f"{span.end}; begin at the end or before"
                )
            partitions[place] = PartitionState(
                topic_id=span.topic_id,
                from_offset=span.start,
                until_offset=max(span.start, span.until),
                reached_ms=None,
                task=place[1] if options.order is ReplayOrder.TASKS else 0,
            )
        else:
            partitions[place] = replace(state, until_offset=max(state.from_offset, span.until))
    tasks = before.tasks if before is not None else {}
    planned = ReplayState(
        replay_id=before.replay_id if before is not None else uuid.uuid4().hex,
        run=before.run + 1 if before is not None else 1,
        is_planned=True,
        sink=sink,
        rules=options.rules,
        partitions=partitions,
        tasks={state.task: tasks.get(state.task, TaskState()) for state in partitions.values()},
    )
    return planned, {place for place, span in spans.items() if span.until == span.end}


def _require_continued(
    options: ReplayOptions,
    known: Mapping[TopicPartition, PartitionState],
    spans: Mapping[TopicPartition, PartitionSpan],
) -> None:
    """Check that the archive still has what the replay has read."""
    common = sorted(known.keys() & spans.keys())
    recreated = [place for place in common if spans[place].topic_id != known[place].topic_id]
    shorter = [place for place in common if spans[place].end < known[place].from_offset]
    found, why = shorter, "end before the replay's position"
    if recreated:
        found, why = recreated, "are of topics that were created again"
    if found and (recreated or options.source.fails_on_data_loss):
        names = ", ".join(f"{topic}-{partition}" for topic, partition in found[:_SHOWN])
        raise UsageError(
            f"replay {options.name} cannot continue, because partitions {why}: {names}. Begin another replay with "
            "another name and output"
        )


def _reading(spark: SparkSession, options: ReplayOptions, planned: ReplayState) -> OrderedReading:
    moved = {place: state for place, state in planned.partitions.items() if state.from_offset < state.until_offset}
    source = replace(
        options.source,
        subscription=Subscription(strategy=Strategy.ASSIGN, partitions=frozenset(moved)),
        start=Limit(offsets={place: state.from_offset for place, state in moved.items()}),
        end=Limit(offsets={place: state.until_offset for place, state in moved.items()}),
        min_tasks=max(options.source.min_tasks, spark.sparkContext.defaultParallelism),
    )
    tasks = plan_reading(source, RecordFilter())
    _require_same_topics(moved, tasks)
    return OrderedReading(
        options=source,
        tasks=tasks,
        task_of={place: state.task for place, state in moved.items()},
        reached_ms={place: state.reached_ms for place, state in moved.items()},
        drops_negative=options.negative_timestamps is NegativeTimestamps.DROP,
    )


def _require_same_topics(planned: Mapping[TopicPartition, PartitionState], tasks: Sequence[ReadTask]) -> None:
    """Check that a plan's offsets are not read from a topic that was created again since."""
    ids = {(task.topic, task.partition): task.topic_id for task in tasks if task.topic_id}
    others = sorted(place for place, topic_id in ids.items() if planned[place].topic_id not in ("", topic_id))
    if others:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in others[:_SHOWN])
        raise UsageError(f"topics were created again since it was planned: {names}")


def _done(
    planned: ReplayState, reached_ms: Mapping[TopicPartition, int | None], counts: Mapping[int, TaskCounts]
) -> ReplayState:
    partitions = {
        place: replace(state, from_offset=state.until_offset, reached_ms=reached_ms.get(place, state.reached_ms))
        for place, state in planned.partitions.items()
    }
    latest_ms = {task: state.latest_ms for task, state in planned.tasks.items() if state.latest_ms is not None}
    for partition in partitions.values():
        if partition.reached_ms is not None:
            latest_ms[partition.task] = max(latest_ms.get(partition.task, partition.reached_ms), partition.reached_ms)
    tasks = {
        task: TaskState(
            next_sequence=state.next_sequence + counts.get(task, TaskCounts()).record_count,
            latest_ms=latest_ms.get(task),
        )
        for task, state in planned.tasks.items()
    }
    return replace(planned, is_planned=False, partitions=partitions, tasks=tasks)
