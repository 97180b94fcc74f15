"""Write the records of several partitions in the order of their timestamps.

The order is that of Kafka Streams: the next record is always taken from the partition whose next record has the lowest
timestamp; within a partition, offsets stay in order. With --name, a later run continues where this run ended. See
docs/how-to/replay-topics.md.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.replay.runs.replay_arguments import add_replay_options
from coldlog.runtime.job import Job, PlainJob


def first(job: PlainJob) -> None:
    from coldlog.replay.runs.replay_source import refuse_early

    refuse_early(job)


def call(job: Job) -> None:
    from coldlog.replay.runs.replay_job import replay_topics

    replay_topics(job)


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    add_replay_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_job(call, make_parser(), first=first, has_rows_in_spark=lambda _: True))
