"""Find the first offset at or after a timestamp.

Reads the tables; asks no broker and reads no archive. Requests are given on the command line (--topic, --timestamp, and
--partition for one partition instead of all) or in a file or Delta table (--requests). Answers are printed, or written
to a JSON lines file (--output), to a Delta table (--output-table), or as startingOffsets for Spark's Kafka source
(--starting-offsets).
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, run_prepared_job
from coldlog.lookups.lookup_jobs import add_lookup_options, prepare_lookup_offsets

if __name__ == "__main__":
    parser = job_argument_parser(__file__, __doc__)
    add_lookup_options(parser)
    sys.exit(run_prepared_job(prepare_lookup_offsets, parser))
