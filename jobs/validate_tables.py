"""Check the tables against their expectations.

Checks every table against its suite in conf/expectations: the rows that changed since the last validation, or with
--full all rows. Writes the results to table validation_results and, as pages, to validation.data_docs_uri. The job
fails if a critical expectation is not met; a warning is only shown. Run it after materialize_metadata.
"""

from __future__ import annotations

import argparse
import sys

from coldlog.launch.driver_jvm import has_large_tables
from coldlog.launch.entry_point import job_argument_parser, require_warehouse, run_job
from coldlog.runtime.job import Job


def call(job: Job) -> None:
    from coldlog.indexing.pipeline import validate

    validate(job)


def make_parser() -> argparse.ArgumentParser:
    parser = job_argument_parser(__file__, __doc__)
    parser.add_argument("--full", action="store_true", help="validate all rows, also those validated before")
    return parser


if __name__ == "__main__":
    sys.exit(run_job(call, make_parser(), first=require_warehouse, has_rows_in_spark=has_large_tables))
