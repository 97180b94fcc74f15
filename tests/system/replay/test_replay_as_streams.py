"""Compare choices, waits and tasks with Kafka Streams' own classes.

Kafka 4.2.1's jars come from Maven into build/kafka-streams, once; a small program asks its PartitionGroup and its
PartitionGrouper everything in one start; tests/support/kafka_streams/StreamsChoice.java has the format of questions
and answers. Its RecordQueues drop negative timestamps, by the extractor LogAndSkipOnInvalidTimestamp.

Of equal heads Kafka takes the one that its java.util.PriorityQueue happens to have on top, which depends on everything
that was added and taken before. `JavaHeap` is that rule; where timestamps differ there is but one order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coldlog.model.fetch import DEFAULT_MAX_BYTES, DEFAULT_TIMEOUT_MS, FetchAnswer, FetchedRecords, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.replay.idling import Readiness, TaskIdling
from coldlog.replay.order import Head, TopicPartition
from coldlog.replay.task_replayer import ReplayedRecord, ReplayOptions, TaskReplayer
from coldlog.replay.tasks import co_partitioned_tasks
from contents.merged_logs import iter_merged
from servers.kafka_jars import find_tool, resolve_jars, run_tool
from virtual_clock import VirtualClock
from worlds.growing_archive import GrowingArchive, Uploaded

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "kafka_streams"
START_MS = 1_000_000
PLACES: list[TopicPartition] = [(topic, partition) for topic in ("a", "b", "c-d") for partition in (0, 1, 10)]
Logs = dict[TopicPartition, list[Head]]
ONE_AFTER_ANOTHER = "trace 100 a:0,b:0,c:0 ~b:0=0 ~c:0=0 +a:0=0@5 !1000 !1099 !1100 !1199 !1200 next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A replay: the questions to Kafka step by step, and the answers here. During so many first answers no partition's
    wait began while another had no records."""

    question: str
    answers: list[str]
    until_two: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The questions, and Kafka's answers in the same order."""

    distinct: Sequence[Logs]
    distinct_orders: Sequence[str]
    tied: Sequence[Logs]
    tied_orders: Sequence[str]
    traces: Sequence[Traced]
    trace_answers: Sequence[str]
    groups: Sequence[Sequence[Mapping[str, int]]]
    tasks: Sequence[str]
    one_after_another: str


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Ask Kafka everything in one start of its JVM."""
    chance = random.Random(695)
    distinct = [drawn_logs(chance, are_distinct=True) for _ in range(1500)]
    tied = [drawn_logs(chance, are_distinct=False) for _ in range(800)]
    traces = [drawn_trace(chance) for _ in range(600)]
    groups = [drawn_groups(chance) for _ in range(200)]
    questions = [
        [f"order {joined(logs)}" for logs in distinct],
        [f"order {joined(logs)}" for logs in tied],
        [each.question for each in traces],
        ["tasks " + ";".join(",".join(f"{t}={n}" for t, n in own.items()) for own in each) for each in groups],
        [ONE_AFTER_ANOTHER],
    ]
    answers = ask_kafka([line for part in questions for line in part], tmp_path_factory.mktemp("classes"))
    parts: list[list[str]] = []
    for part in questions:
        parts.append(answers[: len(part)])
        answers = answers[len(part) :]
    distinct_orders, tied_orders, trace_answers, tasks, (one_after_another,) = parts
    return Compared(
        distinct=distinct,
        distinct_orders=distinct_orders,
        tied=tied,
        tied_orders=tied_orders,
        traces=traces,
        trace_answers=trace_answers,
        groups=groups,
        tasks=tasks,
        one_after_another=one_after_another,
    )


def ask_kafka(questions: Sequence[str], classes: Path) -> list[str]:
    jars = resolve_jars(PROGRAM / "pom.xml", "kafka-streams")
    source = PROGRAM / "StreamsChoice.java"
    run_tool([find_tool("javac"), "-Xlint:all", "-Werror", "-d", str(classes), "-cp", f"{jars}/*", str(source)])
    name = f"org.apache.kafka.streams.processor.internals.{source.stem}"
    program = [find_tool("java"), "-Xmx512m", "-cp", f"{classes}:{jars}/*", name]
    answers = run_tool(program, "".join(f"{line}\n" for line in questions)).splitlines()
    assert len(answers) == len(questions)
    return answers


def drawn_logs(chance: random.Random, *, are_distinct: bool) -> Logs:
    """Draw logs with arbitrary timestamps; some distinct ones are negative."""
    places = chance.sample(PLACES, chance.randint(1, 7))
    counts = [chance.randint(0, 12) for _ in places]
    times = list(range(-sum(counts) // 6, sum(counts)))
    chance.shuffle(times)
    logs: Logs = {}
    for place, count in zip(places, counts, strict=True):
        offsets = sorted(chance.sample(range(3 * count), count))
        own = [times.pop() if are_distinct else chance.randint(0, 4) for _ in offsets]
        if chance.random() < 0.5:
            own.sort()
        logs[place] = list(zip(own, offsets, strict=True))
    return logs


def drawn_groups(chance: random.Random) -> list[dict[str, int]]:
    """Draw groups of topics with their numbers of partitions."""
    names = iter(chance.sample([f"topic-{number}" for number in range(12)], 12))
    return [
        {next(names): chance.randint(1, 6) for _ in range(chance.randint(1, 4))} for _ in range(chance.randint(1, 3))
    ]


@dataclass(slots=True, kw_only=True)
class Watched:
    """A RecordReader that notes what each fetch returned."""

    archive: GrowingArchive
    steps: list[str]

    def refresh(self) -> None:
        self.archive.refresh()

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        return self.archive.partition_ends(topic, partition)

    def fetch_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> FetchAnswer:
        answer = self.archive.fetch_records(topic, partition, offset, max_bytes, isolation_level, timeout_ms)
        assert isinstance(answer, FetchedRecords)
        heads = [(each.timestamp_ms, each.offset) for each in answer.records]
        self.steps.append("+" + joined({(topic, partition): heads}))
        return answer


def drawn_trace(chance: random.Random) -> Traced:
    """Draw a replay of a growing archive; note its questions to TaskIdling and its choices."""
    logs = {place: log for place, log in drawn_logs(chance, are_distinct=True).items() if log}
    logs = logs or {("a", 0): [(1, 1)]}
    uploads = {place: list(cut(log, chance)) for place, log in logs.items()}
    clock = VirtualClock(time_ms=START_MS)
    archive = GrowingArchive(
        clock=clock, uploads=uploads, fetch_ms=chance.choice((0, 0, 7)), refresh_ms=chance.choice((0, 0, 30))
    )
    idle_ms = chance.choice((-1, 0, 50, 400, 3_000))
    steps, answers, twos, enforced = list[str](), list[str](), list[int](), 0
    assess = TaskIdling.assess

    def watched(self: TaskIdling, lags: Mapping[TopicPartition, int | None], now_ms: int) -> Readiness:
        found = assess(self, lags, now_ms)
        steps.extend(f"~{text(place)}={'?' if lag is None else lag}" for place, lag in lags.items())
        steps.append(f"!{now_ms}")
        is_ready = found.is_ready(now_ms) and len(lags) < len(uploads)
        answers.append("w" if not is_ready else "e" if lags and idle_ms >= 0 else "r")
        if len(lags) > 1 and 0 in lags.values():
            twos.append(len(answers) - 1)
        return found

    replayer = TaskReplayer(
        Watched(archive=archive, steps=steps),
        clock,
        dict.fromkeys(uploads),
        ReplayOptions(
            max_task_idle_ms=idle_ms,
            max_bytes=chance.randint(1, 6),
            drops_negative_timestamps=True,
            max_metadata_age_ms=chance.choice((0, 100, 1_000)),
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskIdling, "assess", watched)
        for _ in range(2):
            for each in replayer:
                steps.append("next")
                answers.append(f"{each.topic}:{each.partition}:{each.record.offset}")
                enforced += answers[-2] == "e"
                clock.time_ms += chance.choice((0, 0, 20, 150))
            clock.time_ms += 10**9
    if idle_ms >= 0:
        assert replayer.counts.enforced_processing == enforced
    question = f"trace {idle_ms} {','.join(map(text, uploads))} {' '.join(steps)}"
    return Traced(question=question, answers=answers, until_two=min([*twos, len(answers)]))


def cut(log: Sequence[Head], chance: random.Random) -> Iterator[Uploaded]:
    """Cut a log into uploads that follow each other, the first at once."""
    from_ms, at = START_MS, 0
    while at < len(log):
        until = chance.randint(at + 1, len(log))
        own = tuple((offset, timestamp_ms) for timestamp_ms, offset in log[at:until])
        yield Uploaded(from_ms=from_ms, stamps=own, end_offset=own[-1][0] + 1)
        from_ms, at = from_ms + chance.randint(0, 900), until


def text(place: TopicPartition) -> str:
    return f"{place[0]}:{place[1]}"


def joined(logs: Mapping[TopicPartition, Sequence[Head]]) -> str:
    return " ".join(f"{text(place)}=" + ",".join(f"{at}@{time}" for time, at in log) for place, log in logs.items())


def without_negative(logs: Logs) -> Logs:
    return {place: [head for head in log if head[0] >= 0] for place, log in logs.items()}


def chosen(order: Sequence[tuple[TopicPartition, Head]]) -> str:
    return " ".join(f"{text(place)}:{head[1]}" for place, head in order)


def stamp(each: ReplayedRecord) -> tuple[TopicPartition, Head]:
    return (each.topic, each.partition), (each.record.timestamp_ms, each.record.offset)


@dataclass(slots=True)
class JavaHeap:
    """java.util.PriorityQueue of what has a timestamp: `offer` sifts up while lesser, `poll` puts the last one on top
    and sifts it down, to the left one of equal children."""

    heap: list[tuple[int, TopicPartition]] = field(default_factory=list)

    def offer(self, timestamp_ms: int, place: TopicPartition) -> None:
        heap, at = self.heap, len(self.heap)
        heap.append((timestamp_ms, place))
        while at and timestamp_ms < heap[(at - 1) // 2][0]:
            heap[at], at = heap[(at - 1) // 2], (at - 1) // 2
        heap[at] = (timestamp_ms, place)

    def poll(self) -> TopicPartition:
        heap = self.heap
        top, last, at = heap[0], heap.pop(), 0
        while 2 * at + 1 < len(heap):
            child = 2 * at + 1
            if child + 1 < len(heap) and heap[child + 1][0] < heap[child][0]:
                child += 1
            if last[0] <= heap[child][0]:
                break
            heap[at], at = heap[child], child
        if heap:
            heap[at] = last
        return top[1]


def as_java_would(logs: Logs) -> list[tuple[TopicPartition, Head]]:
    """Add each log at once, in order."""
    rest, heap = {place: list(log) for place, log in logs.items()}, JavaHeap()
    for place, log in rest.items():
        if log:
            heap.offer(log[0][0], place)
    order = []
    while heap.heap:
        place = heap.poll()
        order.append((place, rest[place].pop(0)))
        if rest[place]:
            heap.offer(rest[place][0][0], place)
    return order


def by_reached(order: Sequence[tuple[TopicPartition, Head]]) -> list[tuple[int, list[tuple[TopicPartition, Head]]]]:
    """Return each partition's running maximum along the order, with the records at each of its steps."""
    reached: dict[TopicPartition, int] = {}
    steps: list[tuple[int, list[tuple[TopicPartition, Head]]]] = []
    for place, head in order:
        reached[place] = max(head[0], reached.get(place, head[0]))
        if not steps or steps[-1][0] != reached[place]:
            steps.append((reached[place], []))
        steps[-1][1].append((place, head))
    return [(step, sorted(own)) for step, own in steps]


def test_order_without_ties_is_that_of_kafka_streams(compared: Compared) -> None:
    chance = random.Random(8)
    for logs, kafkas in zip(compared.distinct, compared.distinct_orders, strict=True):
        kept = without_negative(logs)
        assert chosen(list(iter_merged(kept))) == kafkas
        uploads = {place: [uploaded(log)] for place, log in logs.items()}
        archive = GrowingArchive(clock=VirtualClock(time_ms=START_MS), uploads=uploads)
        options = ReplayOptions(max_bytes=chance.randint(1, 9), drops_negative_timestamps=True)
        replayer = TaskReplayer(archive, archive.clock, dict.fromkeys(uploads), options)
        assert chosen([stamp(each) for each in replayer]) == kafkas
        dropped = sum(map(len, logs.values())) - sum(map(len, kept.values()))
        assert replayer.counts.negative_timestamps == dropped
    assert sum(len(order.split()) for order in compared.distinct_orders) > 20_000
    assert sum(without_negative(logs) != logs for logs in compared.distinct) > 1_000


def uploaded(log: Sequence[Head]) -> Uploaded:
    end_offset = log[-1][1] + 1 if log else 0
    return Uploaded(from_ms=START_MS, stamps=tuple((at, time) for time, at in log), end_offset=end_offset)


def test_ties_are_broken_by_kafkas_heap_there_and_by_name_here(compared: Compared) -> None:
    differ = 0
    for logs, kafkas in zip(compared.tied, compared.tied_orders, strict=True):
        as_java = as_java_would(logs)
        assert chosen(as_java) == kafkas
        ours = list(iter_merged(logs))
        differ += ours != as_java
        # Only records with equal timestamps change places.
        assert by_reached(ours) == by_reached(as_java)
    assert differ > 300


def test_replay_chooses_as_kafka_streams_when_each_partition_may_be_skipped(
    compared: Compared,
) -> None:
    seen, as_group = Counter[str](), Counter[str]()
    for trace, answer in zip(compared.traces, compared.trace_answers, strict=True):
        kafkas = answer.split()
        assert [each if ":" in each else each[0] for each in kafkas] == trace.answers, trace.question
        for number, each in enumerate(kafkas):
            seen["chosen" if ":" in each else each[0]] += 1
            if ":" in each or number >= trace.until_two:
                continue
            # While there is only one partition to wait for, Kafka's whole group agrees.
            assert each[1] == each[0], trace.question
            as_group[each[0]] += 1
    assert min(seen[each] for each in ("chosen", "w", "r", "e")) > 3_000
    assert min(as_group[each] for each in ("w", "r", "e")) > 500


def test_waits_for_partitions_run_together_here_and_one_after_another_in_kafka_streams(compared: Compared) -> None:
    # What may be at 1000, 1099, 1100, 1199 and 1200 ms: as if b and c were alone; there c's time begins at 1100.
    assert compared.one_after_another.split() == ["ww", "ww", "ew", "ew", "ee", "a:0:0"]
    idling, lags = TaskIdling(100), {("b", 0): 0, ("c", 0): 0}
    found = [idling.assess(lags, now_ms).is_ready(now_ms) for now_ms in (1000, 1099, 1100, 1199, 1200)]
    assert found == [False, False, True, True, True]


def test_groups_of_topics_make_the_tasks_that_they_make_in_kafka_streams(compared: Compared) -> None:
    for groups, kafkas in zip(compared.groups, compared.tasks, strict=True):
        counts = {topic: count for own in groups for topic, count in own.items()}
        tasks = co_partitioned_tasks([list(own) for own in groups], counts)
        assert " ".join(f"{name}=" + ",".join(sorted(map(text, own))) for name, own in tasks.items()) == kafkas
