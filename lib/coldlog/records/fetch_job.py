"""Run the job fetch_records: fetch records of one partition and print them.

Records are printed to standard output, one JSON object per line; the next offset is printed to standard error. If a
fetch is refused because of the read quota, the job waits as long as the answer says and asks again. Any other failure
ends the job (exit code 1), after the records that it printed before.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

from coldlog.errors import ColdlogError, UsageError
from coldlog.lookups.damage.reported_damage import reports_to
from coldlog.model.fetch import (
    FetchedRecords,
    FetchErrorCode,
    FetchRequest,
)
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.fetch_pool import FetchPool
from coldlog.records.fetch.opened_source import open_source, pool_options, shared_allowances
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slices import range_text
from coldlog.records.record_lines import record_row
from coldlog.runtime.job import PlainJob
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.system_clock import SystemClock


def fetch(job: PlainJob, clock: Clock | None = None) -> int:
    """Print the records that were asked for."""
    clock = clock or SystemClock()
    allowances = shared_allowances(job.settings, clock)
    reports_to(job.settings.warehouse_uri).tell = job.console.warn
    with (
        closing(open_source(job.settings, is_whole_log=True)) as source,
        FetchPool(source, pool_options(job.settings), clock, allowances=allowances) as pool,
    ):
        request, remaining = _request(job, source), job.arguments.max_records
        while True:
            answer = _fetch(pool, request, clock)
            records = answer.records[:remaining]
            for record in records:
                job.console.result(json.dumps(record_row(record), ensure_ascii=False))
            is_cut = len(records) < len(answer.records)
            next_offset = records[-1].offset + 1 if is_cut and records else answer.next_offset
            remaining = None if remaining is None else remaining - len(records)
            if not remaining or next_offset == request.offset:
                break
            request = replace(request, offset=next_offset)
    job.console.note(f"next offset {next_offset}; {range_text(answer.ends)}")
    return 0


def _request(job: PlainJob, source: RecordSource) -> FetchRequest:
    arguments = job.arguments
    if arguments.max_records is not None and arguments.max_records < 1:
        raise UsageError(f"--max-records {arguments.max_records}: expected a whole number from 1")
    offset = arguments.offset
    if offset is None:
        ends = source.partition_ends(arguments.topic, arguments.partition)
        offset = 0 if ends is None else ends.log_start_offset
    return FetchRequest(
        topic=arguments.topic,
        partition=arguments.partition,
        offset=offset,
        max_bytes=arguments.max_bytes,
        isolation_level=IsolationLevel(arguments.isolation_level),
        timeout_ms=job.settings.fetch.timeout_ms,
    )


def _fetch(pool: FetchPool, request: FetchRequest, clock: Clock) -> FetchedRecords:
    """Fetch; if the quota is used up, wait as long as the answer says and fetch again."""
    while True:
        answer = pool.fetch_records(request)
        if isinstance(answer, FetchedRecords):
            return answer
        if answer.error is not FetchErrorCode.THROTTLING_QUOTA_EXCEEDED:
            raise ColdlogError(str(answer))
        clock.wait_ms(answer.throttle_ms)
