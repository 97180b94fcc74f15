"""Publish which offsets of which builds lookups answer from.

Writes which offsets each indexed segment serves, and one row per partition in table partition_metadata.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, require_warehouse, run_job
from coldlog.runtime.job import Job


def call(job: Job) -> None:
    from coldlog.indexing.pipeline import materialize

    materialize(job)


if __name__ == "__main__":
    sys.exit(run_job(call, job_argument_parser(__file__, __doc__), first=require_warehouse, starts_late=True))
