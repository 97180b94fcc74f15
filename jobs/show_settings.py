"""Show every setting, its value and its origin.

Starts Spark like every job, and writes and reads a small temporary Delta table. So it also checks that this machine can
run jobs.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version

from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.runtime.console import counted
from coldlog.runtime.job import Job


def show_settings(job: Job) -> None:
    """Print one row per setting."""
    with job.console.stage("delta") as stage, tempfile.TemporaryDirectory() as directory:
        job.spark.range(3).write.format("delta").save(f"{directory}/table")
        stage.add(
            f"Delta {version('delta-spark')}",
            counted(job.spark.read.format("delta").load(f"{directory}/table").count(), "row"),
        )
    rows = [(key, value, job.settings.origin(key)) for key, value in job.settings.items()]
    job.console.table(["setting", "value", "from"], rows)


if __name__ == "__main__":
    sys.exit(run_job(show_settings, job_argument_parser(__file__, __doc__)))
