"""Open what a fetch reads from, and the options of its pool, from the settings."""

from __future__ import annotations

from dataclasses import replace

from coldlog.records.fetch.fetch_pool import PoolOptions
from coldlog.records.fetch.record_source import RecordSource
from coldlog.runtime.open_layout import decode_limits, layout_opener
from coldlog.runtime.settings import ByteCount, Settings
from coldlog.tiering.rules.quota_config import QuotaConfig


def pool_options(settings: Settings) -> PoolOptions:
    """The part of the settings that a pool needs."""
    own = settings.fetch
    quota = QuotaConfig(
        bytes_per_second=own.max_bytes_per_second,
        window_count=own.quota_window_num,
        window_ms=own.quota_window_size_seconds * 1000,
    )
    return PoolOptions(quota=quota, threads=own.threads, max_pending=own.max_pending)


def open_source(settings: Settings) -> RecordSource:
    """What fetches of these settings read. A `UsageError` where there is no warehouse or no archive.

    A store is asked once for each attempt, since an attempt that failed is made again here, and for no more than was
    asked for.
    """
    once = replace(settings, s3=replace(settings.s3, max_attempts=1, read_ahead_bytes=ByteCount(0)))
    limits = decode_limits(settings)
    return RecordSource(settings.warehouse_uri, layout_opener(once), limits)
