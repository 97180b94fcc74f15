"""Index segments again at a greater depth.

For an archive that was indexed with index.depth=sidecar or batch. Reads the logs of the segments that are indexed at a
lesser depth than --depth, and publishes what it finds. Answers do not change while it runs. It also finds damage in
logs that no build has read so far. If the job is killed, start it again: finished segments are not read again.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, require_archive, require_warehouse, run_job
from coldlog.runtime.job import Job, PlainJob


def first(job: PlainJob) -> None:
    from coldlog.indexing.deepened_part import read_deepened_part, require_known_topics

    read_deepened_part(job.settings, job.arguments)
    require_archive(job)
    require_warehouse(job)
    if job.arguments.topics:  # topics of build.deepen may be archived later
        require_known_topics(job.settings, job.arguments.topics)


def call(job: Job) -> None:
    from coldlog.indexing.pipeline import deepen

    deepen(job)


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    parser.add_argument(
        "--topics", metavar="A,B", help="names or patterns with * and ?, separated by commas (default: build.deepen)"
    )
    parser.add_argument(
        "--from", dest="since", metavar="TIME", help="only segments that may have a record at or after TIME"
    )
    parser.add_argument(
        "--to", dest="until", metavar="TIME", help="only segments that may have a record at or before TIME"
    )
    parser.add_argument(
        "--depth", choices=("batch", "record"), default="record", help="index.depth to reach (default: record)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(run_job(call, make_parser(), first=first))
