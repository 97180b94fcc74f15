"""Show every setting, its value, and where the value comes from.

    coldlog config show
    coldlog config show archive --json

Give the beginning of a key to see only those. Credentials are not settings: they are refused, and never shown.
"""

from __future__ import annotations

import argparse
from difflib import get_close_matches

from coldlog.command.shared.outputs import Shown, add_output_options, write_rows
from coldlog.command.shared.settings_options import add_settings_options, read_settings
from coldlog.errors import UsageError
from coldlog.runtime.installation import COMMAND


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("action", choices=("show",), metavar="show", help="show the settings")
    parser.add_argument("prefix", nargs="?", default="", metavar="KEY", help="only keys that begin so")
    add_output_options(parser)
    add_settings_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the settings."""
    settings = read_settings(arguments)
    rows = [
        {"setting": key, "value": _text(value), "from": settings.origin(key)}
        for key, value in settings.items()
        if key.startswith(arguments.prefix)
    ]
    if not rows:
        prefix = arguments.prefix
        near = get_close_matches(prefix, [key for key, _ in settings.items()], n=1, cutoff=0.0)[0]
        raise UsageError(f"no setting begins with {prefix}: did you mean {near}? `{COMMAND} config show` lists all")
    shown: Shown = {
        "setting": lambda row: row["setting"],
        "value": lambda row: row["value"],
        "from": lambda row: row["from"],
    }
    write_rows(arguments, list(shown), rows, shown)
    return 0


def _text(value: object) -> str | None:
    """Return the value as it is written after --set."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
