"""Run the job replay_topics: build its options, do one run and print the result."""

from __future__ import annotations

from pathlib import Path

from coldlog.brokers.kafka_client import open_cluster
from coldlog.errors import UsageError
from coldlog.records.source.datasource import source_defaults
from coldlog.records.source.options import SourceOptions, read_options
from coldlog.replay.runs.replay import ReplayOptions, ReplaySink, ReplaySummary, replay
from coldlog.replay.runs.replay_arguments import NegativeTimestamps, ReplayOrder
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
