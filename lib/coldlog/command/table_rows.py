"""Read rows of the warehouse's tables for a listing, without Spark."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coldlog.command.outputs import Shown, add_output_options, write_rows
from coldlog.command.settings_options import add_settings_options, read_settings

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings
    from coldlog.tables.definitions.definition import TableDefinition

Rows = list[dict[str, Any]]


def add_listing_arguments(parser: argparse.ArgumentParser, *, has_partition: bool = True) -> None:
    """Add topic, --partition and the options of output and settings."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="only this topic (default: all)")
    if has_partition:
        parser.add_argument("-p", "--partition", type=int, metavar="N", help="only this partition")
    add_output_options(parser)
    add_settings_options(parser)


def prepare(arguments: argparse.Namespace) -> Settings:
    """Load the settings, and keep pandas out of the process."""
    from coldlog.command.without_pandas import keep_pandas_out

    settings = read_settings(arguments)
    keep_pandas_out()
    return settings


def write_listing(
    arguments: argparse.Namespace,
    settings: Settings,
    names: Sequence[str],
    rows: Rows,
    shown: Shown,
    *,
    is_known: bool = False,
) -> None:
    """Write the rows. If there are none, and the topic or partition is unknown, raise `UsageError`.

    `is_known`: it is in a table that is not searched here. CSV has its line of names in any case.
    """
    from coldlog.command.known_topics import find_unknown

    wrong = None
    if not rows and not is_known and arguments.topic is not None:
        wrong = find_unknown(settings, arguments.topic, getattr(arguments, "partition", None))
    if wrong is None or arguments.csv:
        write_rows(arguments, names, rows, shown)
    if wrong is not None:
        raise wrong


def wanted(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the values that the rows must have."""
    asked = {"topic": arguments.topic, "partition": getattr(arguments, "partition", None)}
    return {name: value for name, value in asked.items() if value is not None}


def read_table(
    settings: Settings, table: TableDefinition, columns: Sequence[str], values: Mapping[str, object] | None = None
) -> Rows:
    """Return the rows that have these values; files that cannot have one are not read.

    A table that an older release did not have is empty if the others are there.
    """
    from coldlog.tables.delta.as_of import find_moment_without_spark
    from coldlog.tables.delta.locations import table_location
    from coldlog.tables.delta.table_files import list_table_files, read_file_rows

    values = values or {}
    uri = settings.warehouse_uri
    moment_ms = find_moment_without_spark(settings.warehouse.as_of, uri)
    near = {name: (value, value) for name, value in values.items() if name in table.skipping_columns}
    files = list_table_files(table_location(uri, table.name), table, list(near), as_of_ms=moment_ms)
    rows = read_file_rows(files, list(dict.fromkeys([*columns, *values])), files.ranges.may_hold(near).tolist())
    # An older release had fewer columns.
    complete = (dict.fromkeys(columns) | row for row in rows)
    return [row for row in complete if all(row[name] == value for name, value in values.items())]
