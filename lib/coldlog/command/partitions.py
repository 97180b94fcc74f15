"""List the archived partitions: offsets, newest record, sizes, gaps, holes.

    coldlog partitions
    coldlog partitions orders --json

A gap is a place between segments where offsets are missing, a hole one inside a damaged log (`hole_count` of --json
and --csv). Deleted incarnations of a topic are listed with --all.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from coldlog.command.shared.listings import add_listing_arguments, prepare, wanted, write_listing
from coldlog.command.shared.outputs import Shown
from coldlog.tables.table_rows import Rows, read_table

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings

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
    "holes": lambda row: row["hole_count"],
}
_KEY = ("topic", "partition", "topic_id")
_SERVED = ("served_from_offset", "served_to_offset")


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
    _count_holes(settings, values, rows)
    write_listing(arguments, settings, [*names, "hole_count"], rows, _SHOWN)
    return 0


def _count_holes(settings: Settings, values: dict[str, object], rows: Rows) -> None:
    """Set `hole_count` of each partition: the places in served logs that are damaged and lost offsets."""
    from coldlog.tables.definitions.segments import SEGMENTS

    places = {name: value for name, value in values.items() if name != "is_current"}
    counts: Counter[tuple[object, ...]] = Counter()
    for segment in read_table(settings, SEGMENTS, (*_KEY, *_SERVED, "served_holes"), places) if rows else ():
        first, last = (segment[name] for name in _SERVED)
        for hole in segment["served_holes"] or () if first is not None else ():
            end = last if hole["to_offset"] is None else min(hole["to_offset"], last)
            counts[tuple(segment[name] for name in _KEY)] += max(hole["from_offset"], first) <= end
    for row in rows:
        row["hole_count"] = counts[tuple(row[name] for name in _KEY)]


def _range(first: object, last: object) -> str:
    return "" if first is None else f"{first}..{last}"


def _time(timestamp_ms: object) -> str:
    from coldlog.runtime.console import human_timestamp

    return human_timestamp(timestamp_ms if isinstance(timestamp_ms, int) else None)


def _bytes(size_bytes: object) -> str:
    from coldlog.runtime.console import human_bytes

    return human_bytes(size_bytes) if isinstance(size_bytes, int) else ""
