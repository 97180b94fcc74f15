"""Find where the reading of each partition begins and ends, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from coldlog.errors import UsageError
from coldlog.lookups.damage.reported_damage import reports_to, wait_for_reports
from coldlog.lookups.list_offsets import LookupOptions, open_lookup
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.records.local_log import open_log_directory
from coldlog.records.source.archived_log import ArchivedLogs, list_source_files
from coldlog.records.source.local_logs import LocalLogs
from coldlog.records.source.offset_ranges import OffsetResolver, PartitionSpan
from coldlog.records.source.options import SourceOptions, TopicPartition
from coldlog.runtime.open_layout import decode_limits
from coldlog.tiering.read_pace import paced_opener


def find_spans(options: SourceOptions) -> dict[TopicPartition, PartitionSpan]:
    """Return where the reading of each partition that is asked for begins and ends."""
    with resolving(options) as (_, _, resolver):
        return resolver.find_spans()


def require_ends(spans: Mapping[TopicPartition, PartitionSpan]) -> None:
    """Raise `UsageError` if records after the end of a reading are lost."""
    for _, span in sorted(spans.items()):
        if span.lost_end is not None:
            raise UsageError(span.lost_end)


@contextmanager
def resolving(options: SourceOptions) -> Iterator[tuple[ArchivedLogs, LocalLogs | None, OffsetResolver]]:
    """Open the tables as they are now, and the log directory that goes on where they end."""
    tier = open_log_directory(options.settings)
    files = list_source_files(options.warehouse_uri, options.as_of_ms)
    logs = ArchivedLogs(files)
    batches = BatchReader(open_layout=paced_opener(options.settings), limits=decode_limits(options.settings))
    is_reported = reports_damage(options)
    report = reports_to(options.warehouse_uri).add if is_reported else None
    index, lookup = open_lookup(files.lookups, LookupOptions(batches=batches), report)
    local = None if tier is None else LocalLogs(tier)
    try:
        yield logs, local, OffsetResolver(options, logs, index, lookup, local=local)
    finally:
        index.close()
        logs.close()
        if is_reported:
            wait_for_reports()  # the process ends with the planning


def reports_damage(options: SourceOptions) -> bool:
    return options.settings.warehouse.report_damage and options.as_of_ms is None
