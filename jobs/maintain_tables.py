"""maintain_tables: are the tables as small and as fast to read as they can be?

Puts small files together, removes files that no version of the last days needs (maintenance.vacuum_after_hours), drops
index rows of segments that were deleted long ago (maintenance.deleted_after_hours), writes checkpoints, and says what
that saved. No answer changes.
"""

from __future__ import annotations

import sys

from coldlog.indexing.pipeline import maintain
from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    sys.exit(run_job(maintain, job_argument_parser(__doc__)))
