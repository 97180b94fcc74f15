"""Open the source that fetches read from, and build the options of the pool, from the settings."""

from __future__ import annotations

from dataclasses import replace

from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.damage.reported_damage import reports_to
from coldlog.records.fetch.local_tail import LocalTail
from coldlog.records.fetch.pool_fetch import PoolOptions
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.local_log import open_local_log
from coldlog.runtime.open_layout import decode_limits, layout_opener
from coldlog.runtime.settings import ByteCount, Settings
from coldlog.tables.delta.as_of import find_moment_without_spark
from coldlog.tiering.read_pace import paced_opener
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.quota_config import NO_QUOTA, QuotaConfig
from coldlog.tiering.rules.read_allowances import ReadAllowances
from coldlog.tiering.shared_quota import READERS, SharedQuota


def pool_options(settings: Settings) -> PoolOptions:
    """Build the options of a pool from the settings."""
    fetch = settings.fetch
    quota = QuotaConfig(
        bytes_per_second=fetch.max_bytes_per_second,
        window_count=fetch.quota_window_num,
        window_ms=fetch.quota_window_size_seconds * 1000,
    )
    return PoolOptions(quota=quota, threads=fetch.threads, max_pending=fetch.max_pending)


def shared_allowances(settings: Settings, clock: Clock) -> ReadAllowances | None:
    """Open this process's part of the quota that all share (`fetch.share_quota`); None: it has its own."""
    rate = settings.fetch.max_bytes_per_second
    if not settings.fetch.share_quota or rate >= NO_QUOTA:
        return None
    return ReadAllowances(rate, clock, SharedQuota.below(settings.warehouse_uri, READERS, rate, clock))


def open_source(settings: Settings, *, is_paced: bool = False, is_whole_log: bool = False) -> RecordSource:
    """Open the source of these settings, as of `warehouse.as_of`. Raise `UsageError` if there is no warehouse or no
    archive. `is_paced`: its reads wait for the read quota; a pool has a queue for that. `is_whole_log`: it goes on in
    `fetch.log_directory` where the archive ends.

    Damage that it finds is reported to the next build (`warehouse.report_damage`).

    The store makes one request per attempt, because the pool repeats failed attempts, and reads only what was asked
    for.
    """
    once = replace(settings, s3=replace(settings.s3, max_attempts=1, read_ahead_bytes=ByteCount(0)))
    limits = decode_limits(settings)
    uri = settings.warehouse_uri
    as_of_ms = find_moment_without_spark(settings.warehouse.as_of, uri)
    opener = paced_opener(once) if is_paced else layout_opener(once)
    is_reported = settings.warehouse.report_damage and as_of_ms is None
    return RecordSource(
        uri,
        opener,
        limits,
        as_of_ms=as_of_ms,
        local=_local_tail(settings, limits) if is_whole_log else None,
        report=reports_to(uri).add if is_reported else None,
    )


def _local_tail(settings: Settings, limits: DecodeLimits) -> LocalTail | None:
    tier = open_local_log(settings)
    return None if tier is None else LocalTail(tier, limits)
