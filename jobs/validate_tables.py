"""validate_tables: are the tables what they must be?

Checks every table against its suite in conf/expectations: what has changed since it was last validated, or everything
with --full. Results go to the table validation_results and, as pages, to validation.data_docs_uri. A critical
expectation that is not met fails the job; a warning is shown. To be run behind materialize_metadata.
"""

from __future__ import annotations

import sys

from coldlog.indexing.pipeline import validate
from coldlog.launch.entry_point import job_argument_parser, run_job

if __name__ == "__main__":
    parser = job_argument_parser(__doc__)
    parser.add_argument("--full", action="store_true", help="validate everything, whatever was validated before")
    sys.exit(run_job(validate, parser))
