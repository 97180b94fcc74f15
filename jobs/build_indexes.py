"""Read the pending segments and fill the index tables.

Pending segments are those that scan_segments listed and no build has indexed yet. A segment whose bytes are wrong goes
to table quarantine. The job fails if more than one segment is quarantined and their share is above
build.max_quarantined_share.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, require_archive, require_warehouse, run_job
from coldlog.runtime.job import Job, PlainJob


def first(job: PlainJob) -> None:
    require_archive(job)
    require_warehouse(job)


def call(job: Job) -> None:
    from coldlog.indexing.pipeline import build

    build(job)


if __name__ == "__main__":
    sys.exit(run_job(call, job_argument_parser(__file__, __doc__), first=first, starts_late=True))
