"""Add the options of copy_segments and expire_segments to their parsers.

Apart from the jobs, so that help needs none of the packages that they import.
"""

from __future__ import annotations

import argparse


def add_copy_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--all`."""
    parser.add_argument(
        "--all",
        action="store_true",
        help="with a schedule: process all partitions that no other run holds, also those not due",
    )
    return parser


def add_expire_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--dry-run`, `--all` and `--pass-future-timestamps`."""
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be deleted and why, but delete nothing"
    )
    parser.add_argument(
        "--all", action="store_true", help="process all partitions that no other run holds, also those not due"
    )
    parser.add_argument(
        "--pass-future-timestamps",
        action="append_const",
        dest="set",
        const="expire.pass_future_timestamps=true",
        help="also delete a segment with a timestamp in the future if the segments after it are expired by time",
    )
    return parser
