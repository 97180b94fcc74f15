"""fetch_records: which records does a partition have from an offset on?

One fetch of the archive, as a consumer makes it, or as many as --max-records takes: a JSON object a record, in order of
offsets. Keys, values and header values that are not UTF-8 are {"base64": ...}. Where there is nothing to be had, one
line says why (OFFSET_OUT_OF_RANGE, ...), with exit code 1. Without Spark; see docs/how-to/fetch-records.md.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.records.fetch_job import add_fetch_options, fetch

if __name__ == "__main__":
    parser = job_argument_parser(__doc__)
    add_fetch_options(parser)
    sys.exit(run_plain_job(fetch, parser))
