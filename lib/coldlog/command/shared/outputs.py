"""Write rows to standard output: as a table for people, as JSON lines or CSV for programs.

JSON and CSV have the columns of coldlog's tables, with times in epoch milliseconds. A table shows fewer columns, and
times as ISO 8601 in UTC.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TextIO

from coldlog.errors import ColdlogError
from coldlog.runtime.console import plain_table

Row = Mapping[str, object]
Shown = Mapping[str, Callable[[Row], object]]
"""The headers of a table, and what a row has under each."""


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add --json and --csv."""
    group = parser.add_argument_group("output (default: a table)").add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="one JSON object per line; times are epoch milliseconds")
    group.add_argument("--csv", action="store_true", help="comma-separated values, with a line of names")


def write_rows(arguments: argparse.Namespace, names: Sequence[str], rows: Iterable[Row], shown: Shown) -> None:
    """Write rows with the columns `names`, or as a table of `shown`."""
    output = standard_output()
    if arguments.json:
        for row in rows:
            output.write(json_line({name: row[name] for name in names}))
    elif arguments.csv:
        written = csv.writer(output, lineterminator="\n")
        written.writerow(names)
        written.writerows([_csv_value(row[name]) for name in names] for row in rows)
    else:
        cells = [[show(row) for show in shown.values()] for row in rows]
        output.write(plain_table(list(shown), cells) + "\n")


def json_line(row: Mapping[str, object]) -> str:
    """Return the row as a line of JSON."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def standard_output() -> TextIO:
    """Return standard output, which writes what its encoding does not have as an escape."""
    if sys.stdout is None:
        raise ColdlogError("standard output is closed")
    if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return sys.stdout


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
