"""List the segments of the archive: offsets, times, state, and why one is not served.

    coldlog segments orders -p 0
    coldlog segments --status quarantined
    coldlog segments orders --csv

A segment that is not served says why, and one with damaged places which offsets are lost there (`served_holes` of the
table).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from coldlog.command.shared.listings import add_listing_arguments, prepare, wanted, write_listing
from coldlog.command.shared.outputs import Shown
from coldlog.tables.table_rows import read_table

_NAMES = (
    "topic", "partition", "topic_id", "start_offset", "segment_id", "end_offset", "min_timestamp_ms",
    "max_timestamp_ms", "size_bytes", "record_count", "state", "index_status", "index_depth", "served_from_offset",
    "served_to_offset", "not_served_reason", "is_listed",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--status",
        choices=("pending", "indexed", "quarantined", "incomplete", "gone", "orphan"),
        help="only segments with this index_status",
    )
    parser.add_argument("--not-served", action="store_true", help="only segments that answer for no offset")
    add_listing_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the segments."""
    from coldlog.runtime.console import human_timestamp
    from coldlog.tables.definitions.segments import SEGMENTS

    settings = prepare(arguments)
    values = wanted(arguments)
    if arguments.status is not None:
        values["index_status"] = arguments.status
    rows = read_table(settings, SEGMENTS, (*_NAMES, "served_holes"), values)
    if arguments.not_served:
        rows = [row for row in rows if row["served_from_offset"] is None]
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["start_offset"], row["segment_id"]))
    shown: Shown = {
        "topic": lambda row: row["topic"],
        "partition": lambda row: row["partition"],
        "start": lambda row: row["start_offset"],
        "end": lambda row: row["end_offset"],
        "newest record": lambda row: human_timestamp(row["max_timestamp_ms"]),  # type: ignore[arg-type]  # of the table
        "records": lambda row: row["record_count"],
        "status": lambda row: row["index_status"],
        "served": lambda row: _served(row["served_from_offset"], row["served_to_offset"]),
        "not served": lambda row: row["not_served_reason"] or _lost(row),
        "segment": lambda row: row["segment_id"],
    }
    write_listing(arguments, settings, _NAMES, rows, shown)
    return 0


def _lost(row: Mapping[str, Any]) -> str:
    """Return the served offsets that are lost in damaged places."""
    first, last = row["served_from_offset"], row["served_to_offset"]
    lost = []
    for hole in row["served_holes"] or () if first is not None else ():
        begin, end = (
            max(hole["from_offset"], first),
            last if hole["to_offset"] is None else min(hole["to_offset"], last),
        )
        lost += [f"{begin}..{end}"] if begin <= end else []
    return ", ".join(lost)


def _served(first: object, last: object) -> str:
    return "" if first is None else f"{first}..{last}"
