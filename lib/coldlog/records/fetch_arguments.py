"""Add the options of fetch_records to its parser.

Apart from the job, so that help needs none of the packages that it imports.
"""

from __future__ import annotations

import argparse

from coldlog.model.fetch import DEFAULT_MAX_BYTES
from coldlog.model.states import IsolationLevel


def add_fetch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of fetch_records."""
    group = parser.add_argument_group("fetch")
    group.add_argument("--topic", required=True)
    group.add_argument("--partition", type=int, required=True)
    group.add_argument("--offset", type=int, help="first offset (default: where the archived log begins)")
    group.add_argument(
        "--max-bytes",
        type=int,
        default=DEFAULT_MAX_BYTES,
        help="bytes of the log per fetch, but at least one batch (default: %(default)s)",
    )
    group.add_argument("--max-records", type=int, help="fetch until there are so many, or no more (default: one fetch)")
    group.add_argument(
        "--isolation-level",
        choices=[level.value for level in IsolationLevel],
        default=IsolationLevel.READ_UNCOMMITTED.value,
        help="read_committed skips aborted records and stops at open transactions (default: %(default)s)",
    )
