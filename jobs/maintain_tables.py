"""Compact the tables and remove old files and index rows.

Compacts small files, removes files that no version of the last days needs (maintenance.vacuum_after_hours), drops index
rows of segments that were deleted long ago (maintenance.deleted_after_hours), writes checkpoints, and prints what that
saved. Answers do not change. With --verify it only reads: every file of every table, and lists what is damaged.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.driver_jvm import has_large_tables
from coldlog.launch.entry_point import job_argument_parser, require_warehouse, run_job
from coldlog.runtime.job import Job, PlainJob
from coldlog.upkeep.verify import verify_if_asked


def first(job: PlainJob) -> int | None:
    exit_code = verify_if_asked(job)
    if exit_code is None:
        require_warehouse(job)
    return exit_code


def call(job: Job) -> None:
    from coldlog.indexing.pipeline import maintain

    maintain(job)


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    parser.add_argument(
        "--verify", action="store_true", help="read all tables, list what is damaged, and exit with 1 if something is"
    )
    return parser


def main() -> int:
    return run_job(call, make_parser(), first=first, has_rows_in_spark=has_large_tables, starts_late=True)


if __name__ == "__main__":
    sys.exit(main())
