"""materialize_metadata: what may lookups see from now on?

Publishes which offsets each indexed segment serves, and a row a partition in the table partition_metadata.
"""

from __future__ import annotations

import sys

from coldlog.indexing.pipeline import materialize
from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    sys.exit(run_job(materialize, job_argument_parser(__doc__)))
