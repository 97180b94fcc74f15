"""Run the job replay_topics: build its options, do one run and print the result."""

from __future__ import annotations

from coldlog.brokers.kafka_client import open_cluster
from coldlog.replay.runs.replay import ReplayOptions, ReplaySink, ReplaySummary, replay
from coldlog.replay.runs.replay_arguments import NegativeTimestamps, ReplayOrder
from coldlog.replay.runs.replay_sinks import DeltaSink, JsonLinesSink, TopicSink
from coldlog.replay.runs.replay_source import absolute_place, check_output_options, replayed_source
from coldlog.replay.runs.replay_state import ReplayStates
from coldlog.runtime.console import counted
from coldlog.runtime.job import Job
from coldlog.tables.delta.run_rows import run_beside_writers
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.system_clock import SystemClock

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
        source=replayed_source(job.settings, job.arguments),
        name=arguments.name,
        order=ReplayOrder(arguments.order),
        max_task_idle_ms=job.settings.replay.max_task_idle_ms if idle_ms is None else idle_ms,
        negative_timestamps=NegativeTimestamps(arguments.negative_timestamps),
    )


def _sink(job: Job) -> ReplaySink:
    arguments = job.arguments
    check_output_options(arguments)
    if arguments.output_table is not None:
        return DeltaSink(spark=job.spark, uri=absolute_place(arguments.output_table))
    if arguments.output is not None:
        return JsonLinesSink(spark=job.spark, uri=absolute_place(arguments.output))
    metadata = job.settings.metadata
    cluster = open_cluster(arguments.bootstrap_servers, metadata.timeout_ms, metadata.client_config)
    return TopicSink(cluster=cluster, topic=arguments.output_topic, to_partition=arguments.output_partition)


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
