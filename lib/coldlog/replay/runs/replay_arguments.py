"""Add the options of replay_topics to its parser, and name their choices.

Apart from the job, so that help needs none of the packages that it imports.
"""

from __future__ import annotations

import argparse
from enum import StrEnum

from coldlog.model.states import IsolationLevel


class ReplayOrder(StrEnum):
    """Which partitions share one order: all, or those with the same number, as the tasks of Kafka Streams."""

    ALL = "all"
    TASKS = "tasks"


class NegativeTimestamps(StrEnum):
    """What to do with records with a negative timestamp: keep them in place, or drop them as Kafka Streams does."""

    KEEP = "keep"
    DROP = "drop"


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
