"""Copy closed segments of log directories that are not in the archive yet.

For brokers that do not tier themselves: the closed, committed segments of copy.log_directories are copied to
archive.uri in the layout of LocalTieredStorage, and announced at metadata.uri. Runs without Spark; see
docs/how-to/copy-segments.md.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.runtime.job import PlainJob
from coldlog.tiering.job_arguments import add_copy_options


def call(job: PlainJob) -> int:
    from coldlog.tiering.copying.copy_job import copy

    return copy(job)


def make_parser() -> argparse.ArgumentParser:
    return add_copy_options(job_argument_parser(__file__, __doc__))


if __name__ == "__main__":
    sys.exit(run_plain_job(call, make_parser()))
