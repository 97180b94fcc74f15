"""List the archive into table segments.

Also reads Kafka's metadata topic if it is configured. With --set log_start_offsets.uri=FILE.csv it also takes log start
offsets.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, require_archive, run_job
from coldlog.runtime.job import Job


def call(job: Job) -> None:
    from coldlog.indexing.pipeline import scan

    scan(job)


if __name__ == "__main__":
    sys.exit(run_job(call, job_argument_parser(__file__, __doc__), first=require_archive, starts_late=True))
