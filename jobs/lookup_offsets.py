"""Find the first offset at or after a timestamp.

Asks no broker. Reads the tables, and at depths batch and sidecar also a part of the archive. Requests are given on the
command line (--topic, --timestamp, and --partition for one partition instead of all) or in a file or Delta table
(--requests). Answers are printed, or written to a JSON lines file (--output), to a Delta table (--output-table), or as
startingOffsets for Spark's Kafka source (--starting-offsets).
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.lookups.lookup_jobs import LookupJob, add_lookup_options
from coldlog.tiering.read_pace import ForkedReads


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    add_lookup_options(parser)
    return parser


if __name__ == "__main__":
    job = LookupJob(reads=ForkedReads())
    sys.exit(run_job(job.with_spark, make_parser(), first=job.in_process))
