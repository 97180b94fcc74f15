"""Print the archived records of a partition from an offset on.

Makes one fetch of the archive, as a consumer does, or as many as --max-records needs. Prints one JSON object per
record, in order of offsets. Keys, values and header values that are not UTF-8 are {"base64": ...}. If there is no
record to return, one line gives the reason (OFFSET_OUT_OF_RANGE, ...) and the exit code is 1. Runs without Spark; see
docs/how-to/fetch-records.md.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.records.fetch_arguments import add_fetch_options
from coldlog.runtime.job import PlainJob


def call(job: PlainJob) -> int:
    from coldlog.records.fetch_job import fetch

    return fetch(job)


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    add_fetch_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_plain_job(call, make_parser()))
