"""show_settings: which settings are in force, and where does each come from?

Starts Spark as every job does and writes and reads a small Delta table, so that it also shows whether the machine is
fit; the table is temporary.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version

from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.runtime.console import counted
from coldlog.runtime.job import Job


def show_settings(job: Job) -> None:
    """Print a row a setting."""
    with job.console.stage("delta") as stage, tempfile.TemporaryDirectory() as directory:
        job.spark.range(3).write.format("delta").save(f"{directory}/table")
        stage.add(
            f"Delta {version('delta-spark')}",
            counted(job.spark.read.format("delta").load(f"{directory}/table").count(), "row"),
        )
    rows = [(key, value, job.settings.origin(key)) for key, value in job.settings.items()]
    job.console.table(["setting", "value", "from"], rows)


if __name__ == "__main__":
    sys.exit(run_job(show_settings, job_argument_parser(__doc__)))
