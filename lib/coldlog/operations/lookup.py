"""lookup: how does the job lookup_offsets take requests and hand over answers?"""

from __future__ import annotations

import argparse
from functools import partial

import pyarrow as pa
from pyspark.sql import functions as F

from coldlog.archive.open_archive import open_archive
from coldlog.console import human_timestamp
from coldlog.errors import UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.job import Job
from coldlog.lookups.answers import starting_offsets, write_json_lines, write_starting_offsets, write_table
from coldlog.lookups.batch_lookup import BatchReader
from coldlog.lookups.offset_lookup import LookupOptions, find_offsets_for_timestamps
from coldlog.lookups.requests import read_requests, requests_from_rows
from coldlog.settings import Settings
from coldlog.tables.partition_metadata import PARTITION_METADATA
from coldlog.tables.warehouse import Warehouse
from coldlog.timestamps import timestamp_from_text

_SHOWN_ROWS = 100


def add_lookup_options(parser: argparse.ArgumentParser) -> None:
    """The options of lookup_offsets."""
    asked = parser.add_argument_group("requests")
    asked.add_argument("--topic", help="ask for this topic")
    asked.add_argument(
        "--partition", type=int, help="ask for this partition only (default: every partition of the topic)"
    )
    asked.add_argument(
        "--timestamp", help="epoch milliseconds, or ISO 8601 such as 2026-01-05T10:00:00Z (no zone: UTC)"
    )
    asked.add_argument(
        "--requests",
        metavar="FILE",
        help="a .csv or .jsonl file, or a Delta table, with topic, partition, timestamp_ms",
    )
    answered = parser.add_argument_group("answers (default: a table on the screen)")
    answered.add_argument("--output", metavar="FILE", help="write JSON lines, one a request, in the order asked")
    answered.add_argument("--output-table", metavar="DIR", help="write a Delta table, replacing what is there")
    answered.add_argument(
        "--starting-offsets",
        metavar="FILE",
        help="write the JSON of startingOffsets for Spark's Kafka source; - prints it",
    )


def lookup_offsets(job: Job) -> None:
    """Reads the requests, asks the tables once for all of them, writes the answers."""
    warehouse = Warehouse(spark=job.spark, uri=job.settings.warehouse_uri, as_of=job.settings.warehouse.as_of)
    with job.console.stage("requests") as stage:
        requests = _requests(job, warehouse)
        stage.add(f"{requests.num_rows:,} asked")
    with job.console.stage("lookup") as stage:
        answers = find_offsets_for_timestamps(warehouse, requests, lookup_options(job.settings))
        found = answers.num_rows - answers.column("offset").null_count
        wrong = answers.num_rows - answers.column("error").null_count
        stage.add(
            f"{found:,} found", f"{answers.num_rows - found - wrong:,} later than the archive", f"{wrong:,} errors"
        )
    _hand_over(job, answers)


def lookup_options(settings: Settings) -> LookupOptions:
    """What the settings say of how requests are answered."""
    limits = DecodeLimits(
        max_batch_bytes=settings.index.max_batch_bytes, max_decompressed_bytes=settings.index.max_decompressed_bytes
    )
    batches = None
    if settings.archive.uri is not None:
        open_layout = partial(open_archive, settings.archive.uri, settings.archive.layout)
        batches = BatchReader(open_layout=open_layout, limits=limits)
    return LookupOptions(
        isolation_level=settings.lookup.isolation_level,
        broker_compatible=settings.lookup.broker_compatible,
        batches=batches,
    )


def _requests(job: Job, warehouse: Warehouse) -> pa.Table:
    arguments = job.arguments
    if arguments.requests:
        if arguments.topic or arguments.timestamp or arguments.partition is not None:
            raise UsageError("give --requests, or --topic with --timestamp, not both")
        return read_requests(arguments.requests, job.spark)
    if not arguments.topic or not arguments.timestamp:
        raise UsageError("nothing is asked: give --topic and --timestamp, or --requests")
    timestamp_ms = timestamp_from_text(arguments.timestamp)
    if arguments.partition is not None:
        return requests_from_rows([(arguments.topic, arguments.partition, timestamp_ms)])
    known = warehouse.read(PARTITION_METADATA).where(F.col("is_current") & (F.col("topic") == F.lit(arguments.topic)))
    partitions = [row["partition"] for row in known.select("partition").orderBy("partition").collect()]
    if not partitions:
        raise UsageError(f"the warehouse {warehouse.uri} knows no topic {arguments.topic!r}")
    return requests_from_rows([(arguments.topic, partition, timestamp_ms) for partition in partitions])


def _hand_over(job: Job, answers: pa.Table) -> None:
    arguments = job.arguments
    if arguments.output:
        write_json_lines(answers, arguments.output)
        job.console.note(f"answers in {arguments.output}")
    if arguments.output_table:
        write_table(answers, arguments.output_table, job.spark)
        job.console.note(f"answers in the table {arguments.output_table}")
    if arguments.starting_offsets == "-":
        job.console.result(starting_offsets(answers))
    elif arguments.starting_offsets:
        write_starting_offsets(answers, arguments.starting_offsets)
        job.console.note(f"starting offsets in {arguments.starting_offsets}")
    if not (arguments.output or arguments.output_table or arguments.starting_offsets):
        _show(job, answers)


def _show(job: Job, answers: pa.Table) -> None:
    job.console.table(
        ["topic", "partition", "asked", "offset", "timestamp", "leader epoch", "error"],
        [
            (
                row["topic"],
                row["partition"],
                human_timestamp(row["timestamp_ms"]),
                row["offset"],
                human_timestamp(row["offset_timestamp_ms"]),
                row["leader_epoch"],
                row["error"] or ("" if row["offset"] is not None else "none: later than the archive"),
            )
            for row in answers.slice(0, _SHOWN_ROWS).to_pylist()
        ],
    )
    if answers.num_rows > _SHOWN_ROWS:
        job.console.result(f"... and {answers.num_rows - _SHOWN_ROWS:,} more; --output FILE writes them all")
