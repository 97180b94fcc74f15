"""Compare the archive with what Kafka's metadata topic announced.

For every segment, compares the events of the topic with what scan_segments listed and build_indexes read, and writes
the differences to table discrepancies. Prints the worst rows of coldlog.archive_problems: discrepancies, segments in
quarantine, gaps between served offsets.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, require_warehouse, run_job
from coldlog.runtime.job import Job


def call(job: Job) -> int:
    from coldlog.indexing.pipeline import reconcile_archive

    return reconcile_archive(job)


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning"),
        help="exit with 1 if there is a problem of this severity or a worse one",
    )
    return parser


if __name__ == "__main__":
    sys.exit(run_job(call, make_parser(), first=require_warehouse))
