"""Show every setting, its value and its origin.

Does not start Spark.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.runtime.job import PlainJob


def show_settings(job: PlainJob) -> None:
    """Print one row per setting."""
    rows = [(key, value, job.settings.origin(key)) for key, value in job.settings.items()]
    job.console.table(["setting", "value", "from"], rows)


if __name__ == "__main__":
    sys.exit(run_plain_job(show_settings, job_argument_parser(__file__, __doc__)))
