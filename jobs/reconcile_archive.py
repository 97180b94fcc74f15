"""reconcile_archive: is everything in the archive as it was announced?

Compares, for every segment, what Kafka's metadata topic announced with what scan_segments listed and build_indexes
read, notes what differs in the table discrepancies, and shows the worst of coldlog.archive_problems: discrepancies,
segments in quarantine, gaps between the offsets that are served.
"""

from __future__ import annotations

import sys

from coldlog.indexing.pipeline import reconcile_archive
from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    parser = job_argument_parser(__doc__)
    parser.add_argument(
        "--fail-on", choices=("error", "warning"), help="exit 1 if a problem is of this severity, or of a worse one"
    )
    sys.exit(run_job(reconcile_archive, parser))
