"""Read the settings of a command from its options: --warehouse, --env, --config and --set, as the jobs have them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """Add --warehouse, --env, --config and --set."""
    group = parser.add_argument_group("settings")
    group.add_argument("-w", "--warehouse", metavar="URI", help="short for --set warehouse.uri=URI")
    group.add_argument("--env", default="local", metavar="NAME", help="read conf/NAME.toml (default: local)")
    group.add_argument("--config", metavar="FILE", help="read settings from FILE too (default: COLDLOG_CONFIG)")
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set one setting; can be repeated"
    )


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Load the settings."""
    from coldlog.runtime.settings_sources import load_settings

    assignments = list(arguments.set)
    if arguments.warehouse is not None:
        assignments.append(f"warehouse.uri={arguments.warehouse}")
    return load_settings(arguments.env, assignments, config=arguments.config)
