"""List the archived topics: partitions, segments, records, sizes, newest record.

    coldlog topics
    coldlog topics --json

Deleted incarnations of a topic are not counted.
"""

from __future__ import annotations

import argparse
from itertools import groupby

from coldlog.command.shared.listings import add_listing_arguments, prepare, wanted, write_listing
from coldlog.command.shared.outputs import Shown
from coldlog.tables.table_rows import Rows, read_table

_SUMS = ("segment_count", "record_count", "size_bytes", "gap_count")
_NAMES = ("topic", "topic_id", "partition_count", *_SUMS, "max_timestamp_ms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_listing_arguments(parser, has_partition=False)


def run(arguments: argparse.Namespace) -> int:
    """List the topics."""
    from coldlog.runtime.console import human_bytes, human_timestamp
    from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA

    settings = prepare(arguments)
    columns = ("topic", "topic_id", *_SUMS, "max_timestamp_ms")
    partitions = read_table(settings, PARTITION_METADATA, columns, {**wanted(arguments), "is_current": True})
    shown: Shown = {
        "topic": lambda row: row["topic"],
        "partitions": lambda row: row["partition_count"],
        "segments": lambda row: row["segment_count"],
        "records": lambda row: row["record_count"],
        "log bytes": lambda row: human_bytes(int(str(row["size_bytes"]))),
        "newest record": lambda row: human_timestamp(row["max_timestamp_ms"]),  # type: ignore[arg-type]  # of the table
        "gaps": lambda row: row["gap_count"],
    }
    write_listing(arguments, settings, _NAMES, _topics(partitions), shown)
    return 0


def _topics(partitions: Rows) -> Rows:
    """Add up the partitions of each topic."""
    partitions.sort(key=lambda row: str(row["topic"]))
    topics: Rows = []
    for topic, group in groupby(partitions, key=lambda row: row["topic"]):
        rows = list(group)
        times = [row["max_timestamp_ms"] for row in rows if row["max_timestamp_ms"] is not None]
        sums = {name: sum(row[name] or 0 for row in rows) for name in _SUMS}
        ids = {"topic": topic, "topic_id": rows[0]["topic_id"], "partition_count": len(rows)}
        topics.append({**ids, **sums, "max_timestamp_ms": max(times, default=None)})
    return topics
