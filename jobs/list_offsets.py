"""list_offsets: what does each request of ListOffsets get?

Kafka's own request, for one partition or for millions: timestamps and special ones (--timestamp earliest,
latest-tiered, max-timestamp, ...), current leader epoch, isolation level, timeout and version from the columns of
--requests. Answers say error code and name, offset, timestamp, leader epoch, where it was sought, and where a search of
what is not archived begins. That part is asked too where list_offsets.log_directory or list_offsets.bootstrap_servers
is set. What is not answered within remote.list.offsets.request.timeout.ms is REQUEST_TIMED_OUT, and counted.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, run_prepared_job
from coldlog.lookups.lookup_jobs import add_lookup_options, prepare_list_offsets

if __name__ == "__main__":
    parser = job_argument_parser(__doc__)
    add_lookup_options(parser)
    sys.exit(run_prepared_job(prepare_list_offsets, parser))
