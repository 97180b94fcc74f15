"""copy_segments: which closed segments of log directories are not in the archive yet? Copies them.

Tiers for brokers that do not: the closed, committed segments of copy.log_directories go to archive.uri as
LocalTieredStorage has them, and are announced at metadata.uri. Without Spark; see docs/how-to/copy-segments.md.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.tiering.copying.copy_job import add_copy_options, copy

if __name__ == "__main__":
    sys.exit(run_plain_job(copy, add_copy_options(job_argument_parser(__doc__))))
