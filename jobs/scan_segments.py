"""scan_segments: which segments does the archive hold now?

Lists the archive into the table segments. With --set log_start_offsets.uri=FILE.csv it takes over log start offsets
too.
"""

from __future__ import annotations

import sys

from coldlog.indexing.pipeline import scan
from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    sys.exit(run_job(scan, job_argument_parser(__doc__)))
