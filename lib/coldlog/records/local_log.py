"""Open what has the records that are not archived yet: `fetch.log_directory`, or `fetch.bootstrap_servers`."""

from __future__ import annotations

import os

from coldlog.errors import UsageError
from coldlog.lookups.local.local_tier import LocalLog
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.runtime.open_layout import decode_limits
from coldlog.runtime.settings import Settings


def open_log_directory(settings: Settings) -> LogDirectoryTier | None:
    """Return the log directory of the settings; None if there is none. Raise `UsageError` if it cannot be reached, and
    beside `warehouse.as_of`."""
    directory = settings.fetch.log_directory
    if directory is None:
        return None
    _refuse_past(settings, "fetch.log_directory")
    if not os.path.isdir(directory):
        raise UsageError(f"fetch.log_directory: {directory} is not a directory that can be reached; correct it")
    return LogDirectoryTier(directory=directory, limits=decode_limits(settings))


def open_local_log(settings: Settings) -> LocalLog | None:
    """As `open_log_directory`, or the brokers of the settings; `UsageError` for both."""
    servers = settings.fetch.bootstrap_servers
    if servers is None:
        return open_log_directory(settings)
    if settings.fetch.log_directory is not None:
        raise UsageError("give fetch.log_directory or fetch.bootstrap_servers, not both")
    _refuse_past(settings, "fetch.bootstrap_servers")
    # Imported here, because few readers ask brokers.
    from coldlog.brokers.kafka_client import open_cluster
    from coldlog.lookups.local.live_broker_tier import LiveBrokerTier

    cluster = open_cluster(servers, settings.metadata.timeout_ms, settings.metadata.client_config)
    return LiveBrokerTier(cluster=cluster, limits=decode_limits(settings))


def _refuse_past(settings: Settings, key: str) -> None:
    if settings.warehouse.as_of is not None:
        raise UsageError(
            f"warehouse.as_of reads the index of a past time, but {key} is always of now: unset one of them"
        )
