"""Give listings their arguments, and write their rows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coldlog.command.shared.outputs import Shown, add_output_options, write_rows
from coldlog.command.shared.settings_options import add_settings_options, read_settings
from coldlog.tables.table_rows import Rows

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings


def add_listing_arguments(parser: argparse.ArgumentParser, *, has_partition: bool = True) -> None:
    """Add topic, --partition and the options of output and settings."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="only this topic (default: all)")
    if has_partition:
        parser.add_argument("-p", "--partition", type=int, metavar="N", help="only this partition")
    add_output_options(parser)
    add_settings_options(parser)


def prepare(arguments: argparse.Namespace) -> Settings:
    """Load the settings, and keep pandas out of the process."""
    from coldlog.runtime.spark.without_pandas import keep_pandas_out

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
    from coldlog.tables.known_topics import find_unknown

    wrong = None
    partition = getattr(arguments, "partition", None)
    if not rows and not is_known and (arguments.topic is not None or partition is not None):
        wrong = find_unknown(settings, arguments.topic, partition)
    if wrong is None or arguments.csv:
        write_rows(arguments, names, rows, shown)
    if wrong is not None:
        raise wrong


def wanted(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the values that the rows must have."""
    asked = {"topic": arguments.topic, "partition": getattr(arguments, "partition", None)}
    return {name: value for name, value in asked.items() if value is not None}
