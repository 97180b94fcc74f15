"""expire_segments: which segments of the tier have outlived their retention? Deletes them.

Of what copy_segments has tiered: by retention.ms, retention.bytes, log start offsets and leader epochs, as Kafka does;
and what killed runs have left. Without Spark, beside copies that go on; see docs/how-to/expire-segments.md.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.tiering.expiry.expire_job import add_expire_options, expire

if __name__ == "__main__":
    sys.exit(run_plain_job(expire, add_expire_options(job_argument_parser(__doc__))))
