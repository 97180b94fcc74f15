"""build_indexes: what do the pending segments hold?

Reads every segment that scan_segments listed and no build has indexed yet, and fills the index tables. Segments whose
bytes are wrong go to the table quarantine; the job fails when there is more than one
and their share is above build.max_quarantined_share.
"""

from __future__ import annotations

import sys

from coldlog.indexing.pipeline import build
from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    sys.exit(run_job(build, job_argument_parser(__doc__)))
