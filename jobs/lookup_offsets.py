"""lookup_offsets: which offset is the first at or after a time?

Asks the tables, not a broker and not the archive. Requests come from the command line (--topic, --timestamp, and
--partition unless all partitions are meant) or from a file or Delta table (--requests). Answers go to the screen, to a
JSON lines file (--output), to a Delta table (--output-table), or become the startingOffsets of Spark's Kafka source.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, run_prepared_job
from coldlog.lookups.lookup_jobs import add_lookup_options, prepare_lookup_offsets

if __name__ == "__main__":
    parser = job_argument_parser(__doc__)
    add_lookup_options(parser)
    sys.exit(run_prepared_job(prepare_lookup_offsets, parser))
