"""Run the job replay_topics: build its options, do one run and print the result."""

from __future__ import annotations

import argparse
from pathlib import Path

from coldlog.brokers.kafka_client import open_cluster
from coldlog.errors import UsageError
from coldlog.model.states import IsolationLevel
from coldlog.records.source.datasource import source_defaults
from coldlog.records.source.options import SourceOptions, read_options
from coldlog.replay.runs.replay import (
    NegativeTimestamps,
    ReplayOptions,
    ReplayOrder,
    ReplaySink,
    ReplaySummary,
    replay,
)
from coldlog.replay.runs.replay_sinks import DeltaSink, JsonLinesSink, TopicSink
from coldlog.replay.runs.replay_state import ReplayStates
from coldlog.runtime.console import counted
from coldlog.runtime.job import Job
from coldlog.tables.delta.run_rows import run_beside_writers
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.system_clock import SystemClock

_SOURCE_OPTIONS = {
    "topics": "subscribe",
    "topic_pattern": "subscribePattern",
    "assign": "assign",
    "starting_offsets": "startingOffsets",
    "ending_offsets": "endingOffsets",
    "starting_timestamp": "startingTimestamp",
    "ending_timestamp": "endingTimestamp",
    "fail_on_data_loss": "failOnDataLoss",
    "isolation_level": "kafka.isolation.level",
}
_SHOWN = 5


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of replay_topics. Those of the first two groups have the same meaning as for `spark.read`."""
    partitions = parser.add_argument_group("partitions (one of these)")
    chosen = partitions.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--topics", metavar="A,B", help="all partitions of these topics")
    chosen.add_argument("--topic-pattern", metavar="REGEX", help="all partitions of topics that match the pattern")
    chosen.add_argument("--assign", metavar="JSON", help='single partitions: {"orders": [0, 1]}')
    records = parser.add_argument_group("records (default: all that is archived)")
    records.add_argument("--starting-offsets", metavar="JSON", help='earliest, or by partition: {"orders": {"0": 23}}')
    records.add_argument("--ending-offsets", metavar="JSON", help="latest, or by partition; exclusive")
    records.add_argument("--starting-timestamp", metavar="MS", help="first record at or after this time")
    records.add_argument("--ending-timestamp", metavar="MS", help="end before the first record at or after this time")
    records.add_argument("--fail-on-data-loss", choices=["true", "false"], help="true: refuse if records are missing")
    records.add_argument("--isolation-level", choices=[level.value for level in IsolationLevel])
    order = parser.add_argument_group("order")
    order.add_argument(
        "--order",
        choices=[choice.value for choice in ReplayOrder],
        default=ReplayOrder.ALL.value,
        help="all: one order of all partitions; tasks: one order per partition number, as the tasks of Kafka Streams "
        "(default: %(default)s)",
    )
    order.add_argument(
        "--max-task-idle-ms",
        type=int,
        metavar="MS",
        help="wait so long for partitions that have no new records while others have; 0, -1: do not wait (default: "
        "max.task.idle.ms of the settings)",
    )
    order.add_argument(
        "--negative-timestamps",
        choices=[choice.value for choice in NegativeTimestamps],
        default=NegativeTimestamps.KEEP.value,
        help="drop: skip such records, as Kafka Streams does (default: %(default)s)",
    )
    order.add_argument("--name", help="continue where the last run of this name ended (default: replay once)")
    output = parser.add_argument_group("output (one of these)")
    sink = output.add_mutually_exclusive_group(required=True)
    sink.add_argument("--output-table", metavar="DIR", help="a Delta table, with sequence numbers without gaps")
    sink.add_argument("--output", metavar="DIR", help="JSON lines, one folder per run")
    sink.add_argument("--output-topic", metavar="TOPIC", help="a topic of the brokers of --bootstrap-servers")
    output.add_argument("--bootstrap-servers", metavar="HOST:PORT,...", help="for --output-topic")
    output.add_argument("--output-partition", type=int, help="for --output-topic: one partition for all records")


def replay_topics(job: Job, clock: Clock | None = None) -> None:
    """Do one run and print its result."""
    options = replay_options(job)
    sink, states = _sink(job), ReplayStates.of_warehouse(job.settings.warehouse_uri)
    with (
        run_beside_writers(job.settings, job.console, "replay_topics") as run,
        job.console.stage("replay") as stage,
    ):
        summary = replay(job.spark, options, sink, states, clock or SystemClock())
        run.figures = summary.figures
        stage.add(*_facts(summary, options))
    job.console.result(f"{counted(summary.record_count, 'record')} in {sink.name}")


def replay_options(job: Job) -> ReplayOptions:
    """Build the options of a replay from the arguments and the settings."""
    arguments, idle_ms = job.arguments, job.arguments.max_task_idle_ms
    return ReplayOptions(
        source=_source(job),
        name=arguments.name,
        order=ReplayOrder(arguments.order),
        max_task_idle_ms=job.settings.replay.max_task_idle_ms if idle_ms is None else idle_ms,
        negative_timestamps=NegativeTimestamps(arguments.negative_timestamps),
    )


def _source(job: Job) -> SourceOptions:
    given = {name: getattr(job.arguments, argument) for argument, name in _SOURCE_OPTIONS.items()}
    options = {name.lower(): value for name, value in given.items() if value is not None}
    return read_options({**source_defaults(job.settings), **options})


def _sink(job: Job) -> ReplaySink:
    arguments = job.arguments
    has_topic_options = arguments.bootstrap_servers is not None or arguments.output_partition is not None
    if arguments.output_topic is None and has_topic_options:
        raise UsageError("--bootstrap-servers and --output-partition are only for --output-topic")
    if arguments.output_table is not None:
        return DeltaSink(spark=job.spark, uri=_absolute(arguments.output_table))
    if arguments.output is not None:
        return JsonLinesSink(spark=job.spark, uri=_absolute(arguments.output))
    if arguments.bootstrap_servers is None:
        raise UsageError("--output-topic needs --bootstrap-servers")
    metadata = job.settings.metadata
    cluster = open_cluster(arguments.bootstrap_servers, metadata.timeout_ms, metadata.client_config)
    return TopicSink(cluster=cluster, topic=arguments.output_topic, to_partition=arguments.output_partition)


def _absolute(place: str) -> str:
    """Make a path absolute, so that it is the same wherever the next run is started."""
    return place if ":" in place.partition("/")[0] else str(Path(place).absolute())


def _facts(summary: ReplaySummary, options: ReplayOptions) -> list[str]:
    if not summary.partition_count:
        return ["no new records"]
    facts = [counted(summary.record_count, "record"), counted(summary.partition_count, "partition")]
    if options.order is ReplayOrder.TASKS:
        facts.append(counted(len(summary.counts), "task"))
    if summary.is_repeated:
        facts.append(f"run {summary.run} repeated, because it had not ended")
    if summary.negative_count:
        result = "dropped" if options.negative_timestamps is NegativeTimestamps.DROP else "kept in place"
        facts.append(f"{summary.negative_count:,} with negative timestamps {result}")
    if summary.enforced:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in summary.enforced[:_SHOWN])
        facts.append(f"enforced_processing: waited in vain for {len(summary.enforced)} partitions ({names})")
    if summary.late_count:
        facts.append(f"{summary.late_count:,} late, by at most {summary.greatest_lateness_ms:,} ms")
    return facts
