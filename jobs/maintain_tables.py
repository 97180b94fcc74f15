"""Compact the tables and remove old files and index rows.

Compacts small files, removes files that no version of the last days needs (maintenance.vacuum_after_hours), drops index
rows of segments that were deleted long ago (maintenance.deleted_after_hours), writes checkpoints, and prints what that
saved. Answers do not change.
"""

from __future__ import annotations

import sys

from coldlog.indexing.pipeline import maintain
from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    sys.exit(run_job(maintain, job_argument_parser(__file__, __doc__)))
