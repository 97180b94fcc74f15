"""Repeat the settings of a command line in a command that is advised."""

from __future__ import annotations

import argparse
import shlex


def with_given_settings(command: str, arguments: argparse.Namespace) -> str:
    """Return the command with the --env, --config and --set of the arguments, and their --warehouse as --set.

    Options of Spark are left out: they may hold passwords, and are long.
    """
    given = vars(arguments)  # a job that a program calls may have none of them
    words = []
    if given.get("env", "local") != "local":
        words += ["--env", given["env"]]
    if given.get("config") is not None:
        words += ["--config", given["config"]]
    assignments = [each for each in given.get("set", ()) if not each.startswith("spark.")]
    if given.get("warehouse") is not None:
        assignments.append(f"warehouse.uri={given['warehouse']}")
    for assignment in assignments:
        words += ["--set", assignment]
    return f"{command} {shlex.join(words)}" if words else command
