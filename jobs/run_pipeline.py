"""Index the archive, end to end, and show what is in it.

Runs scan_segments, build_indexes, materialize_metadata and reconcile_archive in one session, then prints a table of the
partitions and a few lookups. If nothing has changed since the last run, it ends at once, without Spark.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, require_archive, run_job
from coldlog.runtime.job import Job, PlainJob


def first(job: PlainJob) -> int | None:
    require_archive(job)
    from coldlog.indexing.preflight import end_unchanged_run

    return end_unchanged_run(job)


def call(job: Job) -> None:
    from coldlog.indexing.pipeline import run_pipeline

    run_pipeline(job)


if __name__ == "__main__":
    sys.exit(run_job(call, job_argument_parser(__file__, __doc__), first=first))
