"""Index the archive, end to end, and show what is in it.

Runs scan_segments, build_indexes, materialize_metadata and reconcile_archive in one session, then prints a table of the
partitions and a few lookups. If nothing has changed since the last run, it ends at once, without Spark. If a few
partitions have changed and nothing else, it works on these only.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from coldlog.launch.entry_point import job_argument_parser, require_archive, run_job
from coldlog.runtime.job import Job, PlainJob

if TYPE_CHECKING:
    from coldlog.indexing.scan.touched import Touched


def main() -> int:
    found: list[Touched] = []

    def first(job: PlainJob) -> int | None:
        require_archive(job)
        from coldlog.indexing.preflight import end_unchanged_run

        outcome = end_unchanged_run(job, is_full_listing=job.arguments.full_listing)
        if outcome.touched is not None:
            found.append(outcome.touched)
        return outcome.exit_code

    def call(job: Job) -> None:
        from coldlog.indexing.pipeline import run_pipeline

        run_pipeline(job, found[0] if found else None, is_full_listing=job.arguments.full_listing)

    parser = job_argument_parser(__file__, __doc__)
    parser.add_argument(
        "--full-listing",
        action="store_true",
        help="list every partition directory in the archive: also those that are not due (scan.full_listing_hours) or "
        "in an S3 Inventory report (scan.inventory_uri)",
    )
    return run_job(call, parser, first=first, starts_late=True)


if __name__ == "__main__":
    sys.exit(main())
