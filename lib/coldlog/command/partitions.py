"""List the archived partitions: offsets, newest record, sizes, gaps.

    coldlog partitions
    coldlog partitions orders --json

Deleted incarnations of a topic are listed with --all.
"""

from __future__ import annotations

import argparse

from coldlog.command.outputs import Shown, write_rows
from coldlog.command.table_rows import Rows, add_listing_arguments, prepare, read_table, wanted

_SHOWN: Shown = {
    "topic": lambda row: row["topic"],
    "partition": lambda row: row["partition"],
    "segments": lambda row: row["segment_count"],
    "served": lambda row: row["served_segment_count"],
    "offsets": lambda row: _range(row["earliest_offset"], row["latest_tiered_offset"]),
    "newest record": lambda row: _time(row["max_timestamp_ms"]),
    "records": lambda row: row["record_count"],
    "log bytes": lambda row: _bytes(row["size_bytes"]),
    "gaps": lambda row: row["gap_count"],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--all", action="store_true", help="also incarnations of topics that were created again")
    add_listing_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the partitions."""
    from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA

    settings = prepare(arguments)
    names = [column.name for column in PARTITION_METADATA.columns]
    values = wanted(arguments) if arguments.all else {**wanted(arguments), "is_current": True}
    rows: Rows = read_table(settings, PARTITION_METADATA, names, values)
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["topic_id"]))
    write_rows(arguments, names, rows, _SHOWN)
    return 0


def _range(first: object, last: object) -> str:
    return "" if first is None else f"{first}..{last}"


def _time(timestamp_ms: object) -> str:
    from coldlog.runtime.console import human_timestamp

    return human_timestamp(timestamp_ms if isinstance(timestamp_ms, int) else None)


def _bytes(size_bytes: object) -> str:
    from coldlog.runtime.console import human_bytes

    return human_bytes(size_bytes) if isinstance(size_bytes, int) else ""
