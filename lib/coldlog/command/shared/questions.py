"""What lookup and offsets share: read requests, answer them with OffsetReader, write the answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from coldlog.command.shared.outputs import add_output_options, write_rows
from coldlog.command.shared.settings_options import add_settings_options, read_settings
from coldlog.errors import UsageError
from coldlog.runtime.installation import keep_compiled_kernels
from coldlog.tables.known_topics import find_unknown, unpublished_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from coldlog.lookups.list_offsets import LookupOptions
    from coldlog.reader import OffsetReader
    from coldlog.runtime.settings import Settings


_DIGITS_OF_SECONDS = 10
"""Of seconds since the epoch from 2001 to 2286."""


_LOCAL_REQUIRED = (
    "LOCAL_REQUIRED: only the broker knows this. latest-tiered is the last archived offset; `coldlog offsets` also "
    "asks list_offsets.log_directory or list_offsets.bootstrap_servers"
)


def add_question_arguments(parser: argparse.ArgumentParser, time: str, time_help: str) -> None:
    """Add topic, time, --partition and --requests."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the topic")
    parser.add_argument("time", nargs="*", metavar=time, help=time_help)
    parser.add_argument(
        "-p", "--partition", type=int, action="append", metavar="N", help="this partition (default: all); repeatable"
    )
    parser.add_argument(
        "--requests", metavar="FILE", help="a .csv or .jsonl file with topic, partition, timestamp_ms, ..."
    )
    add_output_options(parser)
    add_settings_options(parser)


def open_reader(settings: Settings, options: LookupOptions) -> OffsetReader:
    """Open the tables of the settings, as of `warehouse.as_of`."""
    from coldlog.reader import OffsetReader
    from coldlog.tables.delta.as_of import find_moment_without_spark

    uri = settings.warehouse_uri
    return OffsetReader(uri, options, as_of_ms=find_moment_without_spark(settings.warehouse.as_of, uri))


def requests_of(arguments: argparse.Namespace, settings: Settings, reader: OffsetReader) -> pa.Table:
    """Return the requests of the arguments, or of the file that they name."""
    from coldlog.lookups.requests.requests_file import is_file_of_requests, no_requests_text, read_requests_file
    from coldlog.lookups.requests.rows import requests_from_rows

    if arguments.requests is not None:
        if not is_file_of_requests(arguments.requests):
            raise UsageError(
                f"--requests {arguments.requests}: expected a .csv or .jsonl file; the jobs also read a Delta table"
            )
        requests = read_requests_file(arguments.requests)
        if not requests.num_rows:
            print(f"coldlog: {no_requests_text(arguments.requests)}", file=sys.stderr)
        return requests
    partitions = asked_partitions(arguments)
    if not partitions:
        partitions = known_partitions(settings, reader, arguments.topic)
    elif settings.list_offsets.log_directory is None and settings.list_offsets.bootstrap_servers is None:
        known = reader.partitions(arguments.topic)
        unknown = None if any(each in known for each in partitions) else partitions[0]
        # If one of them is known, the others are answers that are errors.
        if unknown is not None and (error := find_unknown(settings, arguments.topic, unknown)) is not None:
            raise error
    asked, fields = arguments, arguments.fields
    return requests_from_rows([(asked.topic, partition, asked.timestamp_ms, *fields) for partition in partitions])


def asked_partitions(arguments: argparse.Namespace) -> list[int]:
    """Return the partitions that -p names, each once."""
    return list(dict.fromkeys(arguments.partition or ()))


def known_partitions(settings: Settings, reader: OffsetReader, topic: str, later: Iterable[int] = ()) -> list[int]:
    """Return the partitions of a topic, with `later` ones that are not archived; `UsageError` if there is none."""
    partitions = sorted({*reader.partitions(topic), *later})
    if not partitions:
        raise unpublished_topic(settings, topic)
    return partitions


def check_question(arguments: argparse.Namespace) -> None:
    """Read the time, before a table is opened; `UsageError` for arguments that are no question."""
    from coldlog.lookups.requests.asked_times import request_fields

    arguments.fields = request_fields(arguments)
    if arguments.requests is not None:
        if arguments.topic is not None or arguments.partition:
            raise UsageError("give --requests, or TOPIC and a time, not both")
        return
    if arguments.topic is None or not arguments.time:
        raise UsageError("give TOPIC and a time, or --requests FILE")
    for number in arguments.partition or ():
        if not 0 <= number < 2**31:
            raise UsageError(f"--partition {number}: expected 0 to {2**31 - 1}")
    try:
        arguments.topic.encode()
    except UnicodeEncodeError as not_utf8:
        raise UsageError(f"topic {arguments.topic!r}: not UTF-8") from not_utf8
    arguments.timestamp_ms = _read_time(arguments.time)
    if len(str(arguments.timestamp_ms)) == _DIGITS_OF_SECONDS and arguments.time == [str(arguments.timestamp_ms)]:
        print(
            f"coldlog: {arguments.timestamp_ms} ms since the epoch is in 1970; if these are seconds, give "
            f"{arguments.timestamp_ms}000",
            file=sys.stderr,
        )


def _read_time(words: Sequence[str]) -> int:
    """Read the time; if a partition stands before it, where other tools take it, `UsageError` says how to give it."""
    from coldlog.lookups.requests.asked_times import requested_time

    number, time = words[0], " ".join(words[1:])
    try:
        return requested_time(" ".join(words), "time")
    except UsageError as no_time:
        try:
            requested_time(time if number.isdecimal() else "", "time")
        except UsageError:
            raise no_time from None
        raise UsageError(f"give the partition as an option: {time} -p {number}") from None


def answer(arguments: argparse.Namespace, *, is_of_archive: bool) -> int:
    """Answer the question of the arguments; return 1 if an answer is an error."""
    from coldlog.runtime.spark.without_pandas import keep_pandas_out

    check_question(arguments)
    settings = read_settings(arguments)
    keep_compiled_kernels()
    keep_pandas_out()
    from coldlog.lookups.lookup_settings import check_local_tier, list_offsets_options, lookup_options
    from coldlog.lookups.requests.rows import answers_of_archive
    from coldlog.tiering.read_pace import paced_opener

    if not is_of_archive:
        check_local_tier(settings)
    options_of = lookup_options if is_of_archive else list_offsets_options
    options = options_of(settings, paced_opener)
    with open_reader(settings, options) as reader:
        timeout_ms = getattr(arguments, "timeout_ms", None)
        answers = reader.answer_table(requests_of(arguments, settings, reader), timeout_ms=timeout_ms)
    return write_answers(arguments, answers_of_archive(answers) if is_of_archive else answers)


def write_answers(arguments: argparse.Namespace, answers: pa.Table) -> int:
    """Write the answers, one row per request."""
    from coldlog.lookups.requests.asked_times import asked_text
    from coldlog.runtime.console import human_timestamp

    def asked(row: object) -> str:
        return asked_text(row["timestamp_ms"])  # type: ignore[index]  # a row of the answers

    rows = answers.to_pylist()
    shown = {
        "topic": lambda row: row["topic"],
        "partition": lambda row: row["partition"],
        "asked": asked,
        "offset": lambda row: row["offset"],
        "timestamp": lambda row: human_timestamp(row["offset_timestamp_ms"]),
        "leader epoch": lambda row: row["leader_epoch"],
        "exact": lambda row: row["is_exact"],
        "error": _error_text,
    }
    if "route" in answers.column_names:
        shown |= {"route": lambda row: row["route"], "local start": lambda row: row["local_start_offset"]}
    if any(row["is_exact"] is False for row in rows):
        shown |= {"passed from": lambda row: row["passed_over_from_offset"]}
        shown |= {"passed to": lambda row: row["passed_over_to_offset"]}
    write_rows(arguments, answers.column_names, rows, shown)
    if any(row["error"] == "LOCAL_REQUIRED" for row in rows) and not (arguments.json or arguments.csv):
        print(f"coldlog: {_LOCAL_REQUIRED}", file=sys.stderr)
    return int(any(row["error"] not in (None, "NONE") for row in rows))


def _error_text(row: object) -> str:
    error, offset = row["error"], row["offset"]  # type: ignore[index]  # a row of the answers
    if error is None and offset is None:
        return "none: later than the archive"
    return "" if error in (None, "NONE") else str(error)
