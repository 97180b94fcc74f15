"""Publish which offsets of which builds lookups answer from.

Writes which offsets each indexed segment serves, and one row per partition in table partition_metadata.
"""

from __future__ import annotations

import sys

from coldlog.indexing.pipeline import materialize
from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    sys.exit(run_job(materialize, job_argument_parser(__file__, __doc__)))
