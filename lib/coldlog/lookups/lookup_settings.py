"""Read from the settings how requests are answered, and from what."""

from __future__ import annotations

from dataclasses import replace

from coldlog.errors import UsageError
from coldlog.lookups.batch_lookup import BatchReader
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.local.local_tier import LocalTier
from coldlog.runtime.open_layout import decode_limits, layout_opener
from coldlog.runtime.settings import Settings


def lookup_options(settings: Settings) -> LookupOptions:
    """Read from the settings how requests are answered."""
    batches = None
    if settings.archive.uri is not None:
        batches = BatchReader(open_layout=layout_opener(settings), limits=decode_limits(settings))
    return LookupOptions(
        isolation_level=settings.lookup.isolation_level,
        broker_compatible=settings.lookup.broker_compatible,
        on_gap=settings.lookup.on_gap,
        batches=batches,
        timeout_ms=settings.list_offsets.timeout_ms,
        most_reads_at_once=settings.list_offsets.max_partitions_at_once,
    )


def list_offsets_options(settings: Settings) -> LookupOptions:
    """As `lookup_options`, with the local tier."""
    return replace(lookup_options(settings), local=_local_tier(settings))


def _local_tier(settings: Settings) -> LocalTier | None:
    directory, servers = settings.list_offsets.log_directory, settings.list_offsets.bootstrap_servers
    # Imported here, because few requests are for a local tier, and its modules take longer than a question.
    if servers is not None:
        from coldlog.brokers.kafka_client import open_cluster
        from coldlog.lookups.local.live_broker_tier import LiveBrokerTier

        cluster = open_cluster(servers, settings.metadata.timeout_ms, settings.metadata.client_config)
        return LiveBrokerTier(cluster=cluster)
    if directory is None:
        return None
    from coldlog.lookups.local.log_directory_tier import LogDirectoryTier

    return LogDirectoryTier(directory=directory, limits=decode_limits(settings))


def check_local_tier(settings: Settings) -> None:
    """Raise `UsageError` for a local tier that the settings do not allow."""
    local = settings.list_offsets
    if local.log_directory is not None and local.bootstrap_servers is not None:
        raise UsageError("give list_offsets.log_directory or list_offsets.bootstrap_servers, not both")
    if (local.log_directory or local.bootstrap_servers) and settings.warehouse.as_of is not None:
        raise UsageError(
            "warehouse.as_of reads the index of a past time, but a local tier is always of now: unset warehouse.as_of, "
            "or list_offsets.log_directory and list_offsets.bootstrap_servers"
        )
