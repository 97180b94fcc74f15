"""Answer Kafka's ListOffsets from the archive: special timestamps and times, with the error codes of a broker.

    coldlog offsets orders latest-tiered
    coldlog offsets orders -2 -p 0 --json

SPEC is a name or its number: latest (-1), earliest (-2), max-timestamp (-3), earliest-local (-4), latest-tiered (-5),
earliest-pending-upload (-6), or a time. The part that is not archived is asked too if list_offsets.log_directory or
list_offsets.bootstrap_servers is set. Writes nothing but reports of damage. With --timeout-ms, what is not answered in
time is REQUEST_TIMED_OUT; without, there is no deadline.
Exit codes: 0, 1 if an answer is an error, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse

from coldlog.command.shared.questions import add_question_arguments, answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_question_arguments(parser, "SPEC", "latest, earliest, latest-tiered, -1 to -6, or a time")
    from coldlog.lookups.requests.asked_times import add_request_options

    add_request_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer by the rules of ListOffsets."""
    return answer(arguments, is_of_archive=False)
