"""Run the jobs lookup_offsets and list_offsets: read the requests, answer them, write or print the answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.lookups.answers import (
    STANDARD_OUTPUT,
    check_target,
    starting_offsets,
    write_json_lines,
    write_starting_offsets,
    write_table,
)
from coldlog.lookups.asked_times import asked_text, requested_time
from coldlog.lookups.expirations import note_expirations
from coldlog.lookups.lookup_settings import check_local_tier, list_offsets_options, lookup_options
from coldlog.lookups.offset_lookup import list_offsets, list_offsets_in_no_hurry
from coldlog.lookups.requests import is_file_of_requests, read_requests_file
from coldlog.lookups.requests_table import read_requests_table
from coldlog.lookups.rows import EXACTNESS_COLUMNS, answers_of_archive, requests_from_rows
from coldlog.runtime.console import counted, human_timestamp
from coldlog.runtime.job import Job
from coldlog.runtime.settings import Settings
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse

_SHOWN_ROWS = 100


def add_lookup_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of lookup_offsets."""
    group = parser.add_argument_group("requests")
    group.add_argument("--topic", help="ask for this topic")
    group.add_argument(
        "--partition", type=int, help="ask for this partition only (default: every partition of the topic)"
    )
    group.add_argument(
        "--timestamp",
        help="epoch milliseconds, ISO 8601 such as 2026-01-05T10:00:00Z (no zone: UTC), or earliest, latest, ...",
    )
    group.add_argument(
        "--requests",
        metavar="FILE",
        help="a .csv or .jsonl file, or a Delta table, with topic, partition, timestamp_ms",
    )
    answered = parser.add_argument_group("answers (default: a table on the screen)")
    answered.add_argument(
        "--output", metavar="FILE", help="write JSON lines, one per request, in the order asked; - prints them"
    )
    answered.add_argument("--output-table", metavar="DIR", help="write a Delta table; replaces an existing one")
    answered.add_argument(
        "--starting-offsets",
        metavar="FILE",
        help="write the JSON of startingOffsets for Spark's Kafka source; - prints it",
    )


def prepare_lookup_offsets(settings: Settings, arguments: argparse.Namespace) -> Callable[[Job], None]:
    """Read the requests, without Spark where possible. Return the function that answers them and writes the answers."""
    return partial(_lookup_offsets, requested=_requested(arguments))


def prepare_list_offsets(settings: Settings, arguments: argparse.Namespace) -> Callable[[Job], None]:
    """As `prepare_lookup_offsets`, but each request is answered within its timeout, and late requests are counted."""
    check_local_tier(settings)
    return partial(_list_offsets_of_requests, requested=_requested(arguments))


def _lookup_offsets(job: Job, requested: _Requested) -> None:
    warehouse, requests = _requests(job, requested)
    with job.console.stage("lookup") as stage:
        all_answers = list_offsets_in_no_hurry(warehouse, requests, lookup_options(job.settings))
        answers = answers_of_archive(all_answers)
        found = answers.num_rows - answers.column("offset").null_count
        wrong = answers.num_rows - answers.column("error").null_count
        stage.add(f"{found:,} found", f"{answers.num_rows - found - wrong:,} later than the archive")
        stage.add(*_counted_by_error(answers), *_counted_inexact(answers))
    _write_answers(job, answers, all_answers)


def _list_offsets_of_requests(job: Job, requested: _Requested) -> None:
    options = list_offsets_options(job.settings)
    warehouse, requests = _requests(job, requested)
    with job.console.stage("answers") as stage:
        answers = list_offsets(warehouse, requests, options)
        stage.add(*_counted_by_error(answers), *_counted_inexact(answers))
    _write_answers(job, answers, answers)
    # A warehouse of a past time is not written to.
    late = (
        0 if warehouse.as_of else note_expirations(warehouse, answers, job.settings.list_offsets.timeout_ms, requests)
    )
    if late:
        job.console.note(f"{counted(late, 'request')} timed out; see the view coldlog.list_offsets_expiration_rates")


def _counted_by_error(answers: pa.Table) -> list[str]:
    counts = pc.value_counts(answers.column("error").drop_null()).to_pylist()
    return [f"{row['counts']:,} {row['values']}" for row in sorted(counts, key=lambda row: -row["counts"])]


def _counted_inexact(answers: pa.Table) -> list[str]:
    count = pc.sum(pc.invert(answers.column("is_exact"))).as_py()
    return [f"{count:,} not exact: offsets were passed over, see table segments"] if count else []


@dataclass(frozen=True, slots=True)
class _Everywhere:
    """Ask for this timestamp in every partition of a topic."""

    topic: str
    timestamp_ms: int


_Requested: TypeAlias = pa.Table | _Everywhere | str
"""Requests, or a topic or the path of a Delta table for which Spark has to read the requests."""


def _requested(arguments: argparse.Namespace) -> _Requested:
    for target in filter(None, (arguments.output, arguments.starting_offsets)):
        check_target(target)
    if arguments.requests:
        if arguments.topic or arguments.timestamp or arguments.partition is not None:
            raise UsageError("give --requests, or --topic with --timestamp, not both")
        path = str(arguments.requests)
        return read_requests_file(path) if is_file_of_requests(path) else path
    if not arguments.topic or not arguments.timestamp:
        raise UsageError("no request is given: give --topic and --timestamp, or --requests")
    try:
        arguments.topic.encode()
    except UnicodeEncodeError as not_utf8:
        raise UsageError(f"--topic {arguments.topic!r}: not UTF-8") from not_utf8
    timestamp_ms = requested_time(arguments.timestamp, "--timestamp")
    if arguments.partition is not None and not 0 <= arguments.partition < 2**31:
        raise UsageError(f"--partition {arguments.partition}: expected 0 to {2**31 - 1}")
    if arguments.partition is None:
        return _Everywhere(topic=arguments.topic, timestamp_ms=timestamp_ms)
    return requests_from_rows([(arguments.topic, arguments.partition, timestamp_ms)])


def _requests(job: Job, requested: _Requested) -> tuple[Warehouse, pa.Table]:
    warehouse = Warehouse(spark=job.spark, uri=job.settings.warehouse_uri, as_of=job.settings.warehouse.as_of)
    with job.console.stage("requests") as stage:
        if isinstance(requested, str):
            requested = read_requests_table(requested, job.spark)
        elif isinstance(requested, _Everywhere):
            requested = _requests_everywhere(warehouse, requested)
        stage.add(f"{requested.num_rows:,} asked")
    return warehouse, requested


def _requests_everywhere(warehouse: Warehouse, requested: _Everywhere) -> pa.Table:
    known = warehouse.read(PARTITION_METADATA).where(F.col("is_current") & (F.col("topic") == F.lit(requested.topic)))
    partitions = [row["partition"] for row in known.select("partition").orderBy("partition").collect()]
    if not partitions:
        raise UsageError(f"the warehouse {warehouse.uri} does not know the topic {requested.topic!r}")
    return requests_from_rows([(requested.topic, partition, requested.timestamp_ms) for partition in partitions])


def _write_answers(job: Job, answers: pa.Table, all_answers: pa.Table) -> None:
    """Write or print the answers. `all_answers` have the columns of ListOffsets, for --starting-offsets."""
    arguments = job.arguments
    if arguments.output:
        write_json_lines(answers, arguments.output)
        if arguments.output != STANDARD_OUTPUT:
            job.console.note(f"answers are in {arguments.output}")
    if arguments.output_table:
        write_table(answers, arguments.output_table, job.spark)
        job.console.note(f"answers are in the table {arguments.output_table}")
    if arguments.starting_offsets == "-":
        job.console.result(starting_offsets(all_answers))
    elif arguments.starting_offsets:
        write_starting_offsets(all_answers, arguments.starting_offsets)
        job.console.note(f"starting offsets are in {arguments.starting_offsets}")
    if not (arguments.output or arguments.output_table or arguments.starting_offsets):
        _show(job, answers)


def _show(job: Job, answers: pa.Table) -> None:
    shown = answers.slice(0, _SHOWN_ROWS).to_pylist()
    more = [name for name in ("route", "local_start_offset") if name in answers.column_names]
    if _counted_inexact(answers):
        more += EXACTNESS_COLUMNS
    job.console.table(
        ["topic", "partition", "asked", "offset", "timestamp", "leader epoch", "error", *more],
        [
            (
                row["topic"],
                row["partition"],
                asked_text(row["timestamp_ms"]),
                row["offset"],
                human_timestamp(row["offset_timestamp_ms"]),
                row["leader_epoch"],
                row["error"] or ("" if row["offset"] is not None else "none: later than the archive"),
                *(row[name] for name in more),
            )
            for row in shown
        ],
    )
    if answers.num_rows > _SHOWN_ROWS:
        job.console.result(f"... and {answers.num_rows - _SHOWN_ROWS:,} more; --output FILE writes them all")
