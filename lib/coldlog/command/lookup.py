"""Find the first offset at or after a time, from the archive's tables.

    coldlog lookup orders 2023-11-15T10:00Z
    coldlog lookup orders 2 hours ago -p 0 --json
    coldlog lookup --requests asked.csv --csv

Writes nothing but reports of damage (warehouse.report_damage). The answer is exact if the column exact says so. Without
-p, every partition of the topic is asked.
Exit codes: 0, 1 if an answer is an error, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse

from coldlog.command.shared.questions import add_question_arguments, answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_question_arguments(
        parser, "TIME", "epoch milliseconds, 2023-11-15T10:00Z (no zone: UTC), '2 hours ago', or earliest, latest, ..."
    )


def run(arguments: argparse.Namespace) -> int:
    """Answer; a time that is later than the archive is not an error."""
    return answer(arguments, is_of_archive=True)
