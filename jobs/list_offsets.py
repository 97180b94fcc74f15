"""Answer requests of Kafka's ListOffsets from the archive.

Takes one partition or millions of requests: timestamps and special timestamps (--timestamp earliest, latest-tiered,
max-timestamp, ...), and current leader epoch, isolation level, timeout and version from options or from the columns of
--requests. An answer has error code and name, offset, timestamp, leader epoch, where the offset was found, and the
offset from which the part that is not archived must be searched. That part is searched too if
list_offsets.log_directory or list_offsets.bootstrap_servers is set. A request that is not answered within
remote.list.offsets.request.timeout.ms is answered with REQUEST_TIMED_OUT and counted.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.lookups.lookup_jobs import LookupJob, add_list_offsets_options
from coldlog.tiering.read_pace import ForkedReads


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    add_list_offsets_options(parser)
    return parser


if __name__ == "__main__":
    job = LookupJob(of_list_offsets=True, reads=ForkedReads())
    sys.exit(run_job(job.with_spark, make_parser(), first=job.in_process))
