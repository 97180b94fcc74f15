"""Run the jobs lookup_offsets and list_offsets: read the requests, answer them, write or print the answers."""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.errors import ColdlogError, UsageError
from coldlog.lookups.answers import (
    STANDARD_OUTPUT,
    check_table_target,
    check_target,
    starting_offsets,
    write_json_lines,
    write_starting_offsets,
    write_table,
)
from coldlog.lookups.damage.damaged_segments import DamagedSegment
from coldlog.lookups.damage.reported_damage import MOST_REPORTS, reported_text, unreported_text
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.lookup_settings import (
    ArchiveReads,
    PlainReads,
    check_local_tier,
    list_offsets_options,
    lookup_options,
)
from coldlog.lookups.many_requests import MOST_IN_PROCESS, ProcessEngine, answer_requests, in_no_hurry
from coldlog.lookups.questions import Answers
from coldlog.lookups.requests.asked_times import add_request_options, asked_text, request_fields, requested_time
from coldlog.lookups.requests.requests_file import (
    is_file_of_requests,
    no_requests_text,
    read_requests_file,
    require_table_of_requests,
)
from coldlog.lookups.requests.rows import EXACTNESS_COLUMNS, TimedQuestions, answers_of_archive, requests_from_rows
from coldlog.model.list_offsets import TIMEOUT_SINCE_VERSION, ErrorCode
from coldlog.model.states import LookupEngine
from coldlog.runtime.console import Console, counted, human_timestamp
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings import Settings
from coldlog.tables.definitions.list_offsets_expirations import LIST_OFFSETS_EXPIRATIONS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.locations import table_location
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.run_rows import RunBesideWriters, now_ms, run_beside_writers
from coldlog.tables.known_topics import unpublished_topic

if TYPE_CHECKING:
    from coldlog.tables.delta.warehouse import Warehouse

_SHOWN_ROWS = 100


def add_list_offsets_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of list_offsets."""
    add_lookup_options(parser)
    add_request_options(parser)


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
    parser.add_argument(
        "--record-run",
        action="store_true",
        help="give this run a row in job_runs: for schedulers, not for questions",
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


class LookupJob:
    """lookup_offsets, or `of_list_offsets` list_offsets, whose requests have a timeout and are counted if late.

    `reads` opens the archive of the settings. `in_process` reads the requests and answers them without
    Spark. Where it returns None, `with_spark` must go on.
    """

    def __init__(self, *, of_list_offsets: bool = False, reads: ArchiveReads | None = None) -> None:
        self._of_list_offsets = of_list_offsets
        self._reads = reads or PlainReads()
        self._requested: _Requested | None = None
        self._late: list[dict[str, object]] = []
        self._run = RunBesideWriters()

    def in_process(self, job: PlainJob) -> int | None:
        """Check the arguments and answer; None if Spark is asked for, or needed."""
        with self._recorded(job.settings, job.arguments, job.console):
            exit_code = self._in_process(job)
            self._run.goes_on = exit_code is None
            return exit_code

    def with_spark(self, job: Job) -> None:
        """Answer with Spark's tasks; if that is done, append only the counts that `in_process` could not append."""
        with self._recorded(job.settings, job.arguments, job.console):
            self._with_spark(job)

    def _recorded(
        self, settings: Settings, arguments: argparse.Namespace, console: Console
    ) -> AbstractContextManager[RunBesideWriters]:
        """Record the run in `job_runs` if that is asked for."""
        if not arguments.record_run:
            return nullcontext(self._run)
        name = "list_offsets" if self._of_list_offsets else "lookup_offsets"
        return run_beside_writers(settings, console, name, self._run)

    def _in_process(self, job: PlainJob) -> int | None:
        settings, arguments, console = job.settings, job.arguments, job.console
        if self._of_list_offsets:
            check_local_tier(settings)
        self._requested = requested = _requested(arguments, settings)
        if settings.lookup.engine is LookupEngine.SPARK or arguments.output_table or isinstance(requested, str):
            return None
        engine = ProcessEngine(settings.warehouse_uri, settings.warehouse.as_of)
        if isinstance(requested, _Everywhere):
            requested = _requests_everywhere(requested, engine.list_partitions(requested.topic), settings)
        if requested.num_rows > MOST_IN_PROCESS:
            return None
        with console.stage("requests") as stage:
            stage.add(f"{requested.num_rows:,} asked")
        if not requested.num_rows:
            console.warn(no_requests_text(arguments.requests))
        self._reads.begin(settings)
        self._answer(settings, arguments, console, requested, engine.answer)
        if self._late and settings.warehouse.as_of is None:
            table = LIST_OFFSETS_EXPIRATIONS
            if commit_rows(table_location(engine.uri, table.name), table, RowChange(added=self._late)) is None:
                return None
        return 0

    def _with_spark(self, job: Job) -> None:
        from coldlog.lookups.offset_lookup import answer_batch  # few requests do not wait for Spark's modules
        from coldlog.tables.delta.warehouse import Warehouse

        settings = job.settings
        warehouse = Warehouse(spark=job.spark, uri=settings.warehouse_uri, as_of=settings.warehouse.as_of)
        if not self._late:
            with job.console.stage("requests") as stage:
                requests = _requests(self._requested, warehouse, settings)
                stage.add(f"{requests.num_rows:,} asked")
            if not requests.num_rows:
                job.console.warn(no_requests_text(job.arguments.requests))
            answer = partial(answer_batch, warehouse)
            write = partial(write_table, spark=job.spark)
            self._answer(settings, job.arguments, job.console, requests, answer, write)
        if self._late and warehouse.as_of is None:
            warehouse.append(LIST_OFFSETS_EXPIRATIONS, warehouse.local(LIST_OFFSETS_EXPIRATIONS, self._late))

    def _answer(
        self,
        settings: Settings,
        arguments: argparse.Namespace,
        console: Console,
        requests: pa.Table,
        answer: Callable[[TimedQuestions, LookupOptions], Answers],
        write: Callable[[pa.Table, str], None] | None = None,
    ) -> None:
        if self._of_list_offsets:
            options = list_offsets_options(settings, self._reads.opener)
        else:
            options = in_no_hurry(lookup_options(settings, self._reads.opener))
        damages: set[DamagedSegment] = set()

        def answer_and_note(timed: TimedQuestions, options: LookupOptions) -> Answers:
            found = answer(timed, options)
            damages.update(found.damages)
            return found

        with console.stage("answers" if self._of_list_offsets else "lookup") as stage:
            all_answers = answer_requests(requests, options, answer_and_note)
            answers = all_answers if self._of_list_offsets else answers_of_archive(all_answers)
            if not self._of_list_offsets:
                found = answers.num_rows - answers.column("offset").null_count
                wrong = answers.num_rows - answers.column("error").null_count
                stage.add(f"{found:,} found", f"{answers.num_rows - found - wrong:,} later than the archive")
            stage.add(*_counted_by_error(answers), *_counted_inexact(answers))
        if write is not None and arguments.output_table:
            write(answers, arguments.output_table)
            console.note(f"answers are in the table {arguments.output_table}")
        _write_answers(arguments, console, answers, all_answers)
        self._run.figures.update(_figures(answers), **self._reads.figures(settings))
        if damages and settings.warehouse.report_damage and settings.warehouse.as_of is None:
            _report(settings.warehouse_uri, damages, console)
        if self._of_list_offsets:
            self._late = _expiration_rows(answers, settings.list_offsets.timeout_ms, requests)
        if late := sum(int(str(row["request_count"])) for row in self._late):
            console.warn(f"{counted(late, 'request')} timed out; see the view coldlog.list_offsets_expiration_rates")


def _expiration_rows(answers: pa.Table, default_timeout_ms: int, requests: pa.Table) -> list[dict[str, object]]:
    """Make the rows of list_offsets_expirations: one for each partition with answers REQUEST_TIMED_OUT.

    `answers` are those of `list_offsets` to `requests`.
    """
    is_late = pc.equal(answers["error_code"], ErrorCode.REQUEST_TIMED_OUT.value)
    timeouts = requests["timeout_ms"]
    has_timeout = pc.and_(pc.greater(timeouts, 0), pc.greater_equal(requests["version"], TIMEOUT_SINCE_VERSION))
    timeouts = pc.if_else(has_timeout, timeouts, pa.scalar(default_timeout_ms, pa.int32())).cast(pa.int64())
    late = answers.select(["topic", "partition"]).append_column("timeout_ms", timeouts).filter(is_late)
    counted = late.group_by(["topic", "partition"]).aggregate([("timeout_ms", "count"), ("timeout_ms", "max")])
    run_id, now_ms = uuid.uuid4().hex, time.time_ns() // 1_000_000
    return [
        {
            "run_id": run_id,
            "expired_ms": now_ms,
            "topic": row["topic"],
            "partition": row["partition"],
            "request_count": row["timeout_ms_count"],
            "timeout_ms": row["timeout_ms_max"],
        }
        for row in counted.to_pylist()
    ]


def _report(uri: str, damages: set[DamagedSegment], console: Console) -> None:
    """Report damaged segments to the next build. The answers do not depend on it, so a failure is a warning."""
    # Imported here, because few runs find damage.
    from coldlog.tables.damage_reports import add_damage_reports

    moment_ms, by_segment = now_ms(), dict[tuple[str, int, int, str], DamagedSegment]()
    for each in sorted(damages, key=lambda damage: damage.position):
        by_segment.setdefault((each.topic, each.partition, each.start_offset, each.segment_id), each)
    reported = sorted(by_segment)[:MOST_REPORTS]
    try:
        add_damage_reports(uri, [by_segment[key].row(moment_ms) for key in reported])
    except ColdlogError as failed:
        console.warn(unreported_text(failed.text_with_notes))
    else:
        console.warn(reported_text(len(reported)))


def _figures(answers: pa.Table) -> dict[str, object]:
    """What the run's row of `job_runs` says."""
    errors = {row["values"]: row["counts"] for row in pc.value_counts(answers.column("error").drop_null()).to_pylist()}
    errors.pop(ErrorCode.NONE.name, None)
    found = answers.num_rows - answers.column("offset").null_count
    return {"requests": answers.num_rows, "found": found, "errors": errors}


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
    fields: tuple[object, ...]


_Requested: TypeAlias = pa.Table | _Everywhere | str
"""Requests, or a topic or the path of a Delta table for which Spark has to read the requests."""


def _check_targets(arguments: argparse.Namespace, settings: Settings) -> None:
    for target in filter(None, (arguments.output, arguments.starting_offsets)):
        check_target(target)
    if arguments.output_table:
        check_table_target(arguments.output_table, settings)


def _requested(arguments: argparse.Namespace, settings: Settings) -> _Requested:
    _check_targets(arguments, settings)
    fields = request_fields(arguments)
    if arguments.requests:
        if arguments.topic or arguments.timestamp or arguments.partition is not None:
            raise UsageError("give --requests, or --topic with --timestamp, not both")
        return _requests_of(str(arguments.requests), settings)
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
        return _Everywhere(topic=arguments.topic, timestamp_ms=timestamp_ms, fields=fields)
    return requests_from_rows([(arguments.topic, arguments.partition, timestamp_ms, *fields)])


def _requests_of(path: str, settings: Settings) -> pa.Table | str:
    """Read a file of requests; return the path of a table, which Spark reads."""
    if is_file_of_requests(path):
        return read_requests_file(path)
    require_table_of_requests(path, settings)
    return path


def _requests(requested: _Requested | None, warehouse: Warehouse, settings: Settings) -> pa.Table:
    if isinstance(requested, str):
        from coldlog.lookups.requests.requests_table import read_requests_table

        return read_requests_table(requested, warehouse.spark)
    if not isinstance(requested, _Everywhere):
        return requested
    known = warehouse.read(PARTITION_METADATA)
    known = known.where(known["is_current"] & (known["topic"] == requested.topic)).select("partition")
    partitions = [row["partition"] for row in known.orderBy("partition").collect()]
    return _requests_everywhere(requested, partitions, settings)


def _requests_everywhere(requested: _Everywhere, partitions: Sequence[int], settings: Settings) -> pa.Table:
    if not partitions:
        raise unpublished_topic(settings, requested.topic)
    asked, fields = requested, requested.fields
    return requests_from_rows([(asked.topic, partition, asked.timestamp_ms, *fields) for partition in partitions])


def _write_answers(arguments: argparse.Namespace, console: Console, answers: pa.Table, all_answers: pa.Table) -> None:
    """Write or print the answers. `all_answers` have the columns of ListOffsets, for --starting-offsets."""
    if arguments.output:
        write_json_lines(answers, arguments.output)
        if arguments.output != STANDARD_OUTPUT:
            console.note(f"answers are in {arguments.output}")
    if arguments.starting_offsets == "-":
        console.result(starting_offsets(all_answers))
    elif arguments.starting_offsets:
        write_starting_offsets(all_answers, arguments.starting_offsets)
        console.note(f"starting offsets are in {arguments.starting_offsets}")
    if not (arguments.output or arguments.output_table or arguments.starting_offsets):
        _show(console, answers)


def _show(console: Console, answers: pa.Table) -> None:
    shown = answers.slice(0, _SHOWN_ROWS).to_pylist()
    more = [name for name in ("route", "local_start_offset") if name in answers.column_names]
    if _counted_inexact(answers):
        more += EXACTNESS_COLUMNS
    console.table(
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
        console.result(f"... and {answers.num_rows - _SHOWN_ROWS:,} more; --output FILE writes them all")
