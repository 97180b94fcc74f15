"""Delete archived segments that have outlived their retention.

Deletes from what copy_segments has copied, by retention.ms, retention.bytes, log start offsets and leader epochs, as
Kafka does; also objects that killed runs left. Copies can go on at the same time. Runs without Spark; see
docs/how-to/expire-segments.md.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.runtime.job import PlainJob
from coldlog.tiering.job_arguments import add_expire_options


def call(job: PlainJob) -> int:
    from coldlog.tiering.expiry.expire_job import expire

    return expire(job)


def make_parser() -> argparse.ArgumentParser:
    return add_expire_options(job_argument_parser(__file__, __doc__))


if __name__ == "__main__":
    sys.exit(run_plain_job(call, make_parser()))
