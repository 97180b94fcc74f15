"""fetch_job: how does the job fetch_records ask, and what does it print?

Records go to standard output, a JSON object a line; where they end to standard error. The read quota of the settings is
kept by waiting as long as a refused fetch is told to. Any other failure ends the job (exit code 1), behind the records
that came before it.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import replace

from coldlog.errors import ColdlogError, UsageError
from coldlog.model.fetch import (
    DEFAULT_MAX_BYTES,
    FetchedRecord,
    FetchedRecords,
    FetchErrorCode,
    FetchRequest,
)
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.fetch_pool import FetchPool
from coldlog.records.fetch.opened_source import open_source, pool_options
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slices import range_text
from coldlog.records.record_lines import content, headers
from coldlog.runtime.job import PlainJob
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.system_clock import SystemClock


def add_fetch_options(parser: argparse.ArgumentParser) -> None:
    """The options of fetch_records."""
    asked = parser.add_argument_group("fetch")
    asked.add_argument("--topic", required=True)
    asked.add_argument("--partition", type=int, required=True)
    asked.add_argument("--offset", type=int, help="from here on (default: where the archived log begins)")
    asked.add_argument(
        "--max-bytes",
        type=int,
        default=DEFAULT_MAX_BYTES,
        help="of the log, for each fetch; one batch comes in any case (default: %(default)s)",
    )
    asked.add_argument("--max-records", type=int, help="fetch on until there are so many, or no more (default: once)")
    asked.add_argument(
        "--isolation-level",
        choices=[each.value for each in IsolationLevel],
        default=IsolationLevel.READ_UNCOMMITTED.value,
        help="read_committed leaves out aborted records, and stops at open transactions (default: %(default)s)",
    )


def fetch(job: PlainJob, clock: Clock | None = None) -> int:
    """Prints what was asked for."""
    clock = clock or SystemClock()
    with closing(open_source(job.settings)) as source, FetchPool(source, pool_options(job.settings), clock) as pool:
        request, left = _request(job, source), job.arguments.max_records
        while True:
            answer = _fetch(pool, request, clock)
            records = answer.records[:left]
            for record in records:
                job.console.result(json.dumps(_row(record), ensure_ascii=False))
            is_cut = len(records) < len(answer.records)
            next_offset = records[-1].offset + 1 if is_cut and records else answer.next_offset
            left = None if left is None else left - len(records)
            if not left or next_offset == request.offset:
                break
            request = replace(request, offset=next_offset)
    job.console.note(f"next offset {next_offset}; {range_text(answer.ends)}")
    return 0


def _request(job: PlainJob, source: RecordSource) -> FetchRequest:
    own = job.arguments
    if own.max_records is not None and own.max_records < 1:
        raise UsageError(f"--max-records {own.max_records}: expected a whole number from 1")
    offset = own.offset
    if offset is None:
        ends = source.partition_ends(own.topic, own.partition)
        offset = 0 if ends is None else ends.log_start_offset
    return FetchRequest(
        topic=own.topic,
        partition=own.partition,
        offset=offset,
        max_bytes=own.max_bytes,
        isolation_level=IsolationLevel(own.isolation_level),
        timeout_ms=job.settings.fetch.timeout_ms,
    )


def _fetch(pool: FetchPool, request: FetchRequest, clock: Clock) -> FetchedRecords:
    """Comes back when told to, if the quota is used up."""
    while True:
        answer = pool.fetch_records(request)
        if isinstance(answer, FetchedRecords):
            return answer
        if answer.error is not FetchErrorCode.THROTTLING_QUOTA_EXCEEDED:
            raise ColdlogError(str(answer))
        clock.wait_ms(answer.throttle_ms)


def _row(record: FetchedRecord) -> dict[str, object]:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": record.timestamp_type.value,
        "leader_epoch": record.leader_epoch,
        "key": content(record.key),
        "value": content(record.value),
        "headers": headers(record.headers),
    }
