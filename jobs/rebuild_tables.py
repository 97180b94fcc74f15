"""Make the tables of a damaged warehouse anew from the archive.

Moves the tables to a new place beside the warehouse, WAREHOUSE.replaced-TIME, and runs the pipeline. What the archive
cannot give stays: log start offsets, events, committed offsets, progress of replays and of the tier. If such a table is
damaged, the job stops before it changes anything. The history of runs stays if it is not damaged. If the job is killed,
start it again, or run run_pipeline once it has begun to build. See docs/how-to/rebuild-tables.md.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, require_archive, run_job
from coldlog.launch.spark_options import require_conditional_puts
from coldlog.runtime.job import Job, PlainJob
from coldlog.upkeep.rebuild import add_options, set_tables_aside


def set_aside(job: PlainJob) -> None:
    # Before anything is moved.
    require_archive(job)
    require_conditional_puts(job.settings.warehouse_uri)
    set_tables_aside(job)


def call(job: Job) -> None:
    from coldlog.indexing.pipeline import run_pipeline

    run_pipeline(job)


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    add_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_job(call, make_parser(), first=set_aside, starts_late=True))
