"""replay_job: how is the job replay_topics told what to replay, and what does it say?"""

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
    """The options of replay_topics; those of the first two groups mean what they mean to `spark.read`."""
    what = parser.add_argument_group("partitions (one of these)")
    chosen = what.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--topics", metavar="A,B", help="all partitions of these topics")
    chosen.add_argument("--topic-pattern", metavar="REGEX", help="of the topics in which the pattern is found")
    chosen.add_argument("--assign", metavar="JSON", help='single partitions: {"orders": [0, 1]}')
    where = parser.add_argument_group("records (default: all that is archived)")
    where.add_argument("--starting-offsets", metavar="JSON", help='earliest, or by partition: {"orders": {"0": 23}}')
    where.add_argument("--ending-offsets", metavar="JSON", help="latest, or by partition; exclusive")
    where.add_argument("--starting-timestamp", metavar="MS", help="from the first record as late as this")
    where.add_argument("--ending-timestamp", metavar="MS", help="up to before the first record as late as this")
    where.add_argument("--fail-on-data-loss", choices=["true", "false"], help="refuse to pass over what is gone")
    where.add_argument("--isolation-level", choices=[each.value for each in IsolationLevel])
    how = parser.add_argument_group("order")
    how.add_argument(
        "--order",
        choices=[each.value for each in ReplayOrder],
        default=ReplayOrder.ALL.value,
        help="all: one order of all partitions; tasks: one of each partition number, as tasks of Kafka Streams have it "
        "(default: %(default)s)",
    )
    how.add_argument(
        "--max-task-idle-ms",
        type=int,
        default=0,
        metavar="MS",
        help="so long a run waits for partitions that have nothing new while others have; 0, -1: not (default: 0)",
    )
    how.add_argument(
        "--negative-timestamps",
        choices=[each.value for each in NegativeTimestamps],
        default=NegativeTimestamps.KEEP.value,
        help="drop: leave such records out, as Kafka Streams does (default: %(default)s)",
    )
    how.add_argument("--name", help="go on where the last run of this name ended (default: replay once)")
    to = parser.add_argument_group("output (one of these)")
    sink = to.add_mutually_exclusive_group(required=True)
    sink.add_argument("--output-table", metavar="DIR", help="a Delta table, with a sequence without gaps")
    sink.add_argument("--output", metavar="DIR", help="JSON lines, a folder a run")
    sink.add_argument("--output-topic", metavar="TOPIC", help="a topic of the brokers of --bootstrap-servers")
    to.add_argument("--bootstrap-servers", metavar="HOST:PORT,...", help="for --output-topic")
    to.add_argument("--output-partition", type=int, help="for --output-topic: one partition for all records")


def replay_topics(job: Job, clock: Clock | None = None) -> None:
    """One run, and its line."""
    own = job.arguments
    options = ReplayOptions(
        source=_source(job),
        name=own.name,
        order=ReplayOrder(own.order),
        max_task_idle_ms=own.max_task_idle_ms,
        negative_timestamps=NegativeTimestamps(own.negative_timestamps),
    )
    sink, states = _sink(job), ReplayStates.of_warehouse(job.settings.warehouse_uri)
    with job.console.stage("replay") as stage:
        summary = replay(job.spark, options, sink, states, clock or SystemClock())
        stage.add(*_facts(summary, options))
    job.console.result(f"{counted(summary.record_count, 'record')} in {sink.name}")


def _source(job: Job) -> SourceOptions:
    given = {name: getattr(job.arguments, argument) for argument, name in _SOURCE_OPTIONS.items()}
    told = {name.lower(): value for name, value in given.items() if value is not None}
    return read_options({**source_defaults(job.settings), **told})


def _sink(job: Job) -> ReplaySink:
    own = job.arguments
    if own.output_topic is None and (own.bootstrap_servers is not None or own.output_partition is not None):
        raise UsageError("--bootstrap-servers and --output-partition belong to --output-topic")
    if own.output_table is not None:
        return DeltaSink(spark=job.spark, uri=_absolute(own.output_table))
    if own.output is not None:
        return JsonLinesSink(spark=job.spark, uri=_absolute(own.output))
    if own.bootstrap_servers is None:
        raise UsageError("--output-topic needs --bootstrap-servers")
    metadata = job.settings.metadata
    cluster = open_cluster(own.bootstrap_servers, metadata.timeout_ms, metadata.client_config)
    return TopicSink(cluster=cluster, topic=own.output_topic, to_partition=own.output_partition)


def _absolute(place: str) -> str:
    """The same wherever the next run is started."""
    return place if ":" in place.partition("/")[0] else str(Path(place).absolute())


def _facts(summary: ReplaySummary, options: ReplayOptions) -> list[str]:
    if not summary.partition_count:
        return ["nothing new"]
    facts = [counted(summary.record_count, "record"), counted(summary.partition_count, "partition")]
    if options.order is ReplayOrder.TASKS:
        facts.append(counted(len(summary.counts), "task"))
    if summary.is_repeated:
        facts.append(f"run {summary.run} done again, which had not ended")
    if summary.negative_count:
        what = "dropped" if options.negative_timestamps is NegativeTimestamps.DROP else "kept in place"
        facts.append(f"{summary.negative_count:,} with negative timestamps {what}")
    if summary.enforced:
        told = ", ".join(f"{topic}-{partition}" for topic, partition in summary.enforced[:_SHOWN])
        facts.append(f"enforced_processing: {len(summary.enforced)} waited for in vain ({told})")
    if summary.late_count:
        facts.append(f"{summary.late_count:,} late, by {summary.greatest_lateness_ms:,} ms at most")
    return facts
