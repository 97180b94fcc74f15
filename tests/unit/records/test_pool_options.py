"""Test that the limits of the settings are those of a pool of fetches."""

from __future__ import annotations

from coldlog.records.fetch.opened_source import pool_options
from coldlog.records.fetch.pool_fetch import PoolOptions
from coldlog.runtime.settings_sources import settings_of
from coldlog.tiering.rules.quota_config import QuotaConfig


def test_every_limit_of_the_settings_reaches_a_pool() -> None:
    values = {
        "remote.log.reader.threads": "3",
        "remote.log.reader.max.pending.tasks": "5",
        "remote.log.manager.fetch.max.bytes.per.second": "10MiB",
        "remote.log.manager.fetch.quota.window.num": "13",
        "remote.log.manager.fetch.quota.window.size.seconds": "2",
    }
    assert pool_options(settings_of(values, "a test")) == PoolOptions(
        threads=3,
        max_pending=5,
        quota=QuotaConfig(bytes_per_second=10 << 20, window_count=13, window_ms=2_000),
    )
    assert pool_options(settings_of({}, "a test")) == PoolOptions()
