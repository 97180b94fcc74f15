"""Test replay_topics: the order is that of a heap, and each record is in the table once, whatever stops a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.brokers.kafka_client import Cluster, open_cluster
from coldlog.errors import RetriableError, UsageError
from coldlog.records.source.offset_ranges import PartitionSpan
from coldlog.records.source.options import SourceOptions, read_options
from coldlog.records.source.spans import find_spans
from coldlog.replay.order import Head
from coldlog.replay.runs import replay_order, replay_sinks
from coldlog.replay.runs.replay import (
    ReplayOptions,
    ReplaySink,
    ReplaySummary,
    SinkRun,
    replay,
)
from coldlog.replay.runs.replay_arguments import NegativeTimestamps, ReplayOrder
from coldlog.replay.runs.replay_sinks import DeltaSink, JsonLinesSink, TopicSink
from coldlog.replay.runs.replay_state import ReplayStates, TaskState
from contents.merged_logs import iter_merged
from contents.record_rows import consumed
from virtual_clock import VirtualClock
from worlds.golden_warehouse import golden_partitions
from worlds.staged_archive import FIRST, FUTURE, SECOND, START_MS, TASKS, Logs, Place, show_stage

ROW = ("task", "sequence", "topic", "partition", "offset")


@dataclass(slots=True)
class CollectingSink:
    """A sink that keeps the places of all records, for tests of what is replayed rather than of where it is kept."""

    places: list[tuple[Any, ...]] = field(default_factory=list)
    name: str = "a list"

    def require_ready(self, run: SinkRun) -> None:
        """It always is."""

    def written(self, run: SinkRun) -> DataFrame | None:
        """It takes each run again."""

    def write(self, run: SinkRun, records: DataFrame) -> None:
        self.places += sorted_places(records.select(*ROW).toArrow())


def sorted_places(records: pa.Table) -> list[tuple[Any, ...]]:
    """Return each record's place, by task and sequence."""
    return sorted(zip(*(records[name].to_pylist() for name in ROW), strict=True))


def places_in(uri: str) -> list[tuple[Any, ...]]:
    """Return the place of each record of a table, read without Spark."""
    return sorted_places(DeltaTable(uri).to_pyarrow_table(columns=list(ROW)))


class GrowingClock(VirtualClock):
    """A clock during whose first wait the archive grows."""

    def __init__(self, replayed: Replayed) -> None:
        super().__init__()
        self._replayed = replayed
        self.grows: tuple[int, int] | None = None
        """At that time to that stage."""

    def wait_ms(self, duration_ms: int) -> None:
        super().wait_ms(duration_ms)
        if self.grows is not None and self.monotonic_ms() >= self.grows[0]:
            self._replayed.come_to(self.grows[1])
            self.grows = None


class Replayed:
    """An archive at some stage, and a table into which some of its topics are replayed."""

    def __init__(self, spark: SparkSession, folder: Path, stages: list[Path]) -> None:
        self.spark, self.folder, self.stages = spark, folder, stages
        self.come_to(0)
        self.topics = "next"
        self.clock = GrowingClock(self)
        self.sink = DeltaSink(spark=spark, uri=str(folder / "sink"))

    def come_to(self, stage: int) -> None:
        """Switch to the archive of this stage."""
        show_stage(self.folder / "now", self.stages[stage])

    def states(self) -> ReplayStates:
        return ReplayStates.of_warehouse(str(self.folder / "states"))

    def run(
        self,
        sink: ReplaySink | None = None,
        *,
        name: str | None = "nightly",
        given: dict[str, str] | None = None,
        **own: Any,
    ) -> ReplaySummary:
        settings = {
            "warehouse.uri": str(self.folder / "now/warehouse"),
            "archive.uri": str(self.folder / "now/archive"),
        }
        source = read_options({**settings, "subscribepattern": f"^{self.topics}", **(given or {})})
        options = ReplayOptions(source=source, name=name, **own)
        return replay(self.spark, options, sink or self.sink, self.states(), self.clock)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows of the table, by task and sequence."""
        return places_in(self.sink.uri)


def merged(logs: Logs, begin: dict[Place, int] | None = None) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset in the order of the heap."""
    begun = begin or {}
    heads: dict[Place, list[Head]] = {
        place: [(at, offset) for offset, at in enumerate(timestamps_ms) if offset >= begun.get(place, 0)]
        for place, timestamps_ms in logs.items()
    }
    return [(*place, offset) for place, (_, offset) in iter_merged(heads)]


def numbered(order: Sequence[tuple[str, int, int]], *, task: int = 0, first: int = 0) -> list[tuple[Any, ...]]:
    return [(task, number, *place) for number, place in enumerate(order, start=first)]


@pytest.fixture
def replayed(spark: SparkSession, tmp_path: Path, stages: list[Path]) -> Replayed:
    return Replayed(spark, tmp_path, stages)


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small buckets, as for a large archive."""
    monkeypatch.setattr(replay_order, "_BUCKET_BYTES", 64 << 10)


@pytest.mark.parametrize(
    ("isolation_level", "topics", "bucket_bytes", "least"),
    # All transactions of the sample are in these topics.
    [("read_uncommitted", "", 512 << 10, 50_000), ("read_committed", "payments|from-librdkafka", 64 << 10, 4_000)],
)
def test_topics_of_a_broker_are_replayed_in_the_order_of_the_heap(
    golden_uri: str,
    golden_archive: Path,
    spark: SparkSession,
    tmp_path: Path,
    isolation_level: str,
    topics: str,
    bucket_bytes: int,
    least: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_order, "_BUCKET_BYTES", bucket_bytes)
    # One partition has timestamps that do not fit Spark, and of open transactions the broker knew more.
    places = [
        (str(each["topic"]), int(str(each["partition"])))
        for each in golden_partitions()
        if int(str(each["archive_end"])) >= int(str(each["log_start"])) and each["topic"] != "edge-times"
        if re.match(topics, str(each["topic"]))
    ]
    assigned: dict[str, list[int]] = {}
    for topic, partition in places:
        assigned.setdefault(topic, []).append(partition)
    settings = {"warehouse.uri": golden_uri, "archive.uri": str(golden_archive), "assign": json.dumps(assigned)}
    source = read_options({**settings, "kafka.isolation.level": isolation_level})
    sink = DeltaSink(spark=spark, uri=str(tmp_path / "sink"))
    states = ReplayStates.of_warehouse(golden_uri)
    summary = replay(spark, ReplayOptions(source=source), sink, states, VirtualClock())
    found = places_in(sink.uri)
    ends = dict.fromkeys(places, -1)
    for *_, topic, partition, offset in found:
        ends[topic, partition] = max(ends[topic, partition], offset)
    heads: dict[Place, list[Head]] = {
        place: [
            (int(each["ts"]), int(each["o"]))
            for each in consumed(*place)
            if (each["rc"] or isolation_level == "read_uncommitted") and each["o"] <= ends[place]
        ]
        for place in places
    }
    assert found == numbered([(*place, offset) for place, (_, offset) in iter_merged(heads)])
    assert summary.record_count == len(found) > least
    assert states.read("nightly") is None


@pytest.mark.usefixtures("small_buckets")
def test_far_future_and_equal_timestamps_keep_their_places(replayed: Replayed) -> None:
    replayed.topics = "future"
    summary = replayed.run()
    assert replayed.rows() == numbered(merged(FUTURE))
    assert (summary.run, summary.negative_count, summary.late_count) == (1, 2, 0)
    contents = DeltaTable(replayed.sink.uri).to_pyarrow_table(filters=[("partition", "=", 11)])
    assert set(contents["value"].to_pylist()) == {b"v%d" % at for at in FUTURE["future-odd", 11]}


def test_negative_timestamps_are_dropped_as_by_kafka_streams(replayed: Replayed) -> None:
    collected = CollectingSink()
    replayed.topics = "negative"
    summary = replayed.run(collected, negative_timestamps=NegativeTimestamps.DROP)
    assert collected.places == numbered([("negative", 1, 0), ("negative", 0, 1), ("negative", 0, 3)])
    assert (summary.negative_count, summary.record_count) == (3, 3)


def test_each_task_has_its_own_order(replayed: Replayed) -> None:
    collected = CollectingSink()
    replayed.topics = "task"
    replayed.run(collected, order=ReplayOrder.TASKS)
    for task in range(2):
        own = {place: times for place, times in TASKS.items() if place[1] == task}
        assert [row for row in collected.places if row[0] == task] == numbered(merged(own), task=task)
    with pytest.raises(UsageError, match="began with order tasks, .*, and cannot continue with order all"):
        replayed.run(collected, order=ReplayOrder.ALL)


def order_behind_the_first() -> list[tuple[str, int, int]]:
    """Return the records that the second stage adds, ordered by running maxima that began in the first."""
    reached = {place: np.maximum.accumulate(times).tolist() for place, times in SECOND.items()}
    return merged(reached, {("next", 0): 30, ("next", 1): 1})


def test_next_run_continues_and_reports_late_records(replayed: Replayed) -> None:
    replayed.run()
    begun = replayed.rows()
    assert begun == numbered(merged(FIRST))
    assert replayed.run().record_count == 0
    assert DeltaTable(replayed.sink.uri).version() == 0, "nothing new, no commit"
    replayed.come_to(1)
    summary = replayed.run()
    # Partition 1 had come to 100 s: ten of partition 0, and the one of partition 4, should have been before.
    assert (summary.run, summary.late_count) == (2, 11)
    assert summary.greatest_lateness_ms == START_MS + 100_000 - 7
    assert replayed.rows() == begun + numbered(order_behind_the_first(), first=len(begun))


class KilledError(Exception):
    """Raised where the process would have been killed."""


class DyingSink(DeltaSink):
    """A sink that is killed before its commit."""

    def write(self, run: SinkRun, records: DataFrame) -> None:
        raise KilledError


class DyingBehind(DeltaSink):
    """A sink that is killed after its commit."""

    def write(self, run: SinkRun, records: DataFrame) -> None:
        super().write(run, records)
        raise KilledError


@pytest.mark.parametrize("dying", [DyingSink, DyingBehind])
def test_killed_run_is_repeated_from_its_plan_and_no_record_is_written_twice(
    replayed: Replayed, dying: type[DeltaSink]
) -> None:
    own = replayed.sink
    with pytest.raises(KilledError):
        replayed.run(dying(spark=own.spark, uri=own.uri))
    replayed.come_to(1)
    summary = replayed.run()
    assert (summary.run, summary.is_repeated, summary.record_count) == (1, True, 31)
    begun = replayed.rows()
    assert begun == numbered(merged(FIRST)), "what was archived meanwhile is not of this run"
    second = replayed.run()
    assert (second.run, second.is_repeated) == (2, False)
    assert replayed.rows() == begun + numbered(order_behind_the_first(), first=len(begun))


def test_run_does_not_continue_in_a_table_that_was_deleted(replayed: Replayed) -> None:
    replayed.topics = "quiet"
    for stage in range(3):
        replayed.come_to(stage)
        replayed.run(negative_timestamps=NegativeTimestamps.DROP)
    assert replayed.rows() == numbered([("quiet", 0, 0), ("quiet", 0, 2)]), "a run without records is one"
    own = Path(replayed.sink.uri)
    kept = own.rename(own.with_name("kept"))
    replayed.come_to(3)
    with pytest.raises(UsageError, match="sink does not have run 3, which this replay wrote before"):
        replayed.run(negative_timestamps=NegativeTimestamps.DROP)
    assert not own.exists()
    kept.rename(own)
    assert replayed.run(negative_timestamps=NegativeTimestamps.DROP).run == 4, "what was refused was not planned"
    assert [row[-1] for row in replayed.rows()] == [0, 2, 3]


def test_only_one_of_two_runs_at_the_same_time_counts(replayed: Replayed) -> None:
    class Overtaken(DeltaSink):
        def write(self, run: SinkRun, records: DataFrame) -> None:
            super().write(run, records)
            replayed.run()

    own = replayed.sink
    with pytest.raises(RetriableError, match="another job has changed replay nightly"):
        replayed.run(Overtaken(spark=own.spark, uri=own.uri))
    assert replayed.rows() == numbered(merged(FIRST))


def test_a_first_run_that_another_job_has_repeated_meanwhile_is_not_taken_for_a_table_of_others(
    replayed: Replayed,
) -> None:
    class Overtaken(DeltaSink):
        def require_ready(self, run: SinkRun) -> None:
            replayed.run()
            super().require_ready(run)

    own = replayed.sink
    with pytest.raises(KilledError):
        replayed.run(DyingSink(spark=own.spark, uri=own.uri))
    with pytest.raises(RetriableError, match="another job has changed replay nightly"):
        replayed.run(Overtaken(spark=own.spark, uri=own.uri))
    assert replayed.rows() == numbered(merged(FIRST))


def test_run_waits_max_task_idle_ms_for_partitions_that_are_caught_up(replayed: Replayed) -> None:
    collected = CollectingSink()
    replayed.topics = "wait"
    replayed.run(collected, max_task_idle_ms=60_000)
    assert replayed.clock.waits == [], "no wait if all partitions have records"
    replayed.come_to(1)
    replayed.clock.grows = replayed.clock.monotonic_ms() + 3_000, 2
    waited = replayed.run(collected, max_task_idle_ms=60_000)
    assert (waited.enforced, waited.record_count) == ((), 2)
    assert sum(replayed.clock.waits) == 3_000
    assert [row[2:] for row in collected.places[-2:]] == [("wait", 1, 10), ("wait", 0, 10)]
    replayed.come_to(3)
    replayed.clock.waits.clear()
    enforced = replayed.run(collected, max_task_idle_ms=60_000)
    assert (enforced.enforced, enforced.record_count) == ((("wait", 1),), 1)
    assert sum(replayed.clock.waits) == 60_000
    with pytest.raises(UsageError, match="max.task.idle.ms = -2"):
        replayed.run(collected, max_task_idle_ms=-2)


def test_time_to_read_the_tables_does_not_count_as_waiting(replayed: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    collected = CollectingSink()
    replayed.topics = "wait"
    replayed.run(collected)
    replayed.come_to(1)

    def find_slowly(options: SourceOptions) -> dict[Place, PartitionSpan]:
        replayed.clock.time_ms += 45_000
        return find_spans(options)

    monkeypatch.setattr("coldlog.replay.runs.replay.find_spans", find_slowly)
    replayed.clock.grows = replayed.clock.monotonic_ms(), 2
    waited = replayed.run(collected, max_task_idle_ms=2_500)
    assert (waited.enforced, waited.record_count, replayed.clock.waits) == ((), 2, [1_000])
    replayed.come_to(3)
    replayed.clock.waits.clear()
    enforced = replayed.run(collected, max_task_idle_ms=2_500)
    assert (enforced.enforced, replayed.clock.waits) == ((("wait", 1),), [1_000, 1_000, 500])


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [(None, None, None), (b"k", b"v", [("a", b"b"), ("c", None)]), (b"k", None, [("c", b"")])],
)
def test_record_that_cannot_be_sent_is_reported_before_any_is_sent(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]] | None,
) -> None:
    sent: list[str] = []

    class Producer:
        def send(self, *, about: str, **_: object) -> None:
            sent.append(about)

    @contextmanager
    def producing(_: Cluster, __: str) -> Iterator[Producer]:
        yield Producer()

    monkeypatch.setattr(replay_sinks, "producing_records", producing)
    rows = [
        (0, 0, b"k", b"v", "odd", 3, 7, 0, None),
        (0, 1, key, value, "odd", 3, 8, 0, headers),
        (0, 2, None, None, "odd", 3, 9, 0, None),
    ]
    is_fit = key is not None and all(value is not None for _, value in headers or ())
    schema = (
        "task INT, sequence BIGINT, key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
        "timestamp_ms BIGINT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    records = (
        spark.createDataFrame(rows[: 2 if is_fit else 3], schema)
        .withColumn("timestamp", F.timestamp_millis("timestamp_ms"))
        .drop("timestamp_ms")
    )
    sink = TopicSink(cluster=open_cluster("127.0.0.1:1", 1_000, None), topic="into")
    run = SinkRun(replay_id="", number=1, partitions=frozenset({3}), negative_count=0, is_first=True, is_repeated=False)
    if is_fit:
        sink.write(run, records)
    else:
        with pytest.raises(UsageError, match="the record of odd-3 at offset 8 cannot be sent to topic into"):
            sink.write(run, records)
    assert sent == (["odd-3 at offset 7", "odd-3 at offset 8"] if is_fit else [])


def test_json_lines_are_in_order_over_their_files_and_replace_those_of_the_same_run(replayed: Replayed) -> None:
    replayed.topics = "task"
    sink = JsonLinesSink(spark=replayed.spark, uri=str(replayed.folder / "lines"))
    replayed.run(sink)

    def lines() -> list[dict[str, Any]]:
        files = sorted((replayed.folder / "lines" / "run=000001").glob("part-*"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    written = lines()
    assert [tuple(line[name] for name in ROW) for line in written] == numbered(merged(TASKS))
    at = TASKS["task-a", 0][0]
    (first,) = (line for line in written if (line["topic"], line["partition"], line["offset"]) == ("task-a", 0, 0))
    assert (first["timestamp_ms"], first["timestamp_type"]) == (at, "CreateTime")
    assert (first["value"], first["key"], first["headers"]) == (f"v{at}", None, [])
    with pytest.raises(UsageError, match="is not empty, and this replay did not write it"):
        replayed.run(sink, name="another")
    # As if it had been killed after its last file.
    state = replayed.states().read("nightly")
    assert state is not None
    begun = {place: replace(own, from_offset=0, reached_ms=None) for place, own in state.partitions.items()}
    replayed.states().change(
        "nightly", state, replace(state, is_planned=True, partitions=begun, tasks={0: TaskState()})
    )
    assert replayed.run(sink).is_repeated
    assert lines() == written


def test_unsuitable_outputs_are_refused_before_anything_is_written(replayed: Replayed) -> None:
    once = DeltaSink(spark=replayed.spark, uri=replayed.sink.uri)
    replayed.run(once, name=None)
    with pytest.raises(UsageError, match="is a table already"):
        replayed.run(once, name=None)
    lines = JsonLinesSink(spark=replayed.spark, uri=str(replayed.folder / "lines"))
    replayed.run(lines)
    with pytest.raises(UsageError, match="replay nightly writes to JSON lines .*, not to table"):
        replayed.run()
    with pytest.raises(UsageError, match="is not empty"):
        replayed.run(lines, name=None)
    assert replayed.rows() == numbered(merged(FIRST))


def test_ending_offset_that_is_not_archived_yet_is_reached_by_a_later_run(replayed: Replayed) -> None:
    collected = CollectingSink()
    replayed.topics = "wait"
    given = {"endingoffsets": '{"wait": {"0": 12, "1": 10}}'}
    assert replayed.run(collected, given=given).record_count == 20
    replayed.come_to(3)
    assert replayed.run(collected, given=given, max_task_idle_ms=5_000).record_count == 2
    assert replayed.clock.waits == [], "partition 1 has come to its end, and is not waited for"
    assert replayed.run(collected, given=given).record_count == 0
    assert replayed.run(collected).record_count == 1, "without an end, the rest"


def test_replay_begins_and_ends_at_the_given_times(replayed: Replayed) -> None:
    collected = CollectingSink()
    replayed.topics = "task"
    begin_ms, end_ms = START_MS + 150, START_MS + 500
    given = {"startingtimestamp": str(begin_ms), "endingtimestamp": str(end_ms)}

    def first(times: Sequence[int], least_ms: int) -> int:
        return next((offset for offset, at in enumerate(times) if at >= least_ms), len(times))

    begin = {place: first(times, begin_ms) for place, times in TASKS.items()}
    until = {place: times[: first(times, end_ms)] for place, times in TASKS.items()}
    order = merged(until, begin)
    assert 0 < len(order) < sum(len(times) for times in TASKS.values()) / 2
    replayed.run(collected, given=given)
    assert collected.places == numbered(order)
    assert replayed.run(collected, given=given).record_count == 0
    rest = {place: len(until[place]) for place in TASKS}
    assert replayed.run(collected).record_count == sum(
        len(times) - max(begin[at], rest[at]) for at, times in TASKS.items()
    )


def test_replay_with_a_starting_time_after_the_archive_waits_for_records(replayed: Replayed) -> None:
    collected = CollectingSink()
    replayed.topics = "wait"
    given = {"startingtimestamp": str(START_MS + 950)}
    assert replayed.run(collected, given=given).record_count == 0
    replayed.come_to(3)
    replayed.run(collected, given=given)
    assert collected.places == numbered([("wait", 0, 10), ("wait", 0, 11)])


def test_run_that_cannot_be_planned_does_not_block_later_runs(replayed: Replayed) -> None:
    collected = CollectingSink()
    with pytest.raises(UsageError, match="startingOffsets must name every partition"):
        replayed.run(collected, given={"startingoffsets": '{"next": {"0": 5}}'})
    with pytest.raises(UsageError, match="starting offset 50 of next-0 is after the archive's end 30"):
        replayed.run(collected, given={"startingoffsets": '{"next": {"0": 50, "1": 0}}'})
    assert replayed.run(collected, given={"startingoffsets": '{"next": {"0": 25, "1": 1}}'}).record_count == 5
    replayed.come_to(1)
    assert replayed.run(collected).record_count == 12, "partitions 0 and 1 go on, and 4 is new"


def test_topic_that_was_created_again_is_not_continued(replayed: Replayed) -> None:
    collected = CollectingSink()
    replayed.run(collected)
    state = replayed.states().read("nightly")
    assert state is not None
    other = {place: replace(own, topic_id="another") for place, own in state.partitions.items()}
    replayed.states().change("nightly", state, replace(state, partitions=other))
    replayed.come_to(1)
    with pytest.raises(
        UsageError,
        match="replay nightly cannot continue, because partitions are of topics that were created again: next-0",
    ):
        replayed.run(collected)


def test_run_that_was_killed_is_not_repeated_in_a_topic_that_was_created_again(replayed: Replayed) -> None:
    own = replayed.sink
    with pytest.raises(KilledError):
        replayed.run(DyingSink(spark=own.spark, uri=own.uri))
    planned = replayed.states().read("nightly")
    assert planned is not None
    other = {place: replace(each, topic_id="another") for place, each in planned.partitions.items()}
    replayed.states().change("nightly", planned, replace(planned, partitions=other))
    message = "run 1 of replay nightly did not end and cannot be repeated: topics were created again .*: next-0, next-1"
    with pytest.raises(UsageError, match=message):
        replayed.run()
    assert not Path(own.uri).exists()
    unknown = {place: replace(each, topic_id="") for place, each in planned.partitions.items()}
    replayed.states().change("nightly", replace(planned, partitions=other), replace(planned, partitions=unknown))
    assert replayed.run().is_repeated
