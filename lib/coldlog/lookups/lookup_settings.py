"""Read from the settings how requests are answered, and from what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from coldlog.errors import UsageError
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.local.local_tier import LocalTier
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.runtime.open_layout import decode_limits, layout_opener
from coldlog.runtime.settings import Settings

if TYPE_CHECKING:
    from coldlog.archive.layouts.layout import ArchiveLayout

ArchiveOpener = Callable[[Settings], "Callable[[], ArchiveLayout]"]


class ArchiveReads(Protocol):
    """How a job reads the archive."""

    def opener(self, settings: Settings) -> Callable[[], ArchiveLayout]:
        """Return what opens the archive of the settings. It can be pickled."""

    def begin(self, settings: Settings) -> None:
        """Prepare for the reads of processes that this one forks."""

    def figures(self, settings: Settings) -> dict[str, object]:
        """Return what was read, for `job_runs`; nothing if that is not known."""


class PlainReads:
    """Reads that nothing limits or counts."""

    def opener(self, settings: Settings) -> Callable[[], ArchiveLayout]:
        """As `layout_opener`."""
        return layout_opener(settings)

    def begin(self, _: Settings) -> None:
        """Do nothing."""

    def figures(self, _: Settings) -> dict[str, object]:
        """Return nothing."""
        return {}


def lookup_options(settings: Settings, opener: ArchiveOpener = layout_opener) -> LookupOptions:
    """Read from the settings how requests are answered. `opener` returns what opens the archive of the settings."""
    batches = None
    if settings.archive.uri is not None:
        batches = BatchReader(open_layout=opener(settings), limits=decode_limits(settings))
    return LookupOptions(
        isolation_level=settings.lookup.isolation_level,
        broker_compatible=settings.lookup.broker_compatible,
        on_gap=settings.lookup.on_gap,
        batches=batches,
        timeout_ms=settings.list_offsets.timeout_ms,
        most_reads_at_once=settings.list_offsets.max_partitions_at_once,
        report_damage=settings.warehouse.report_damage,
    )


def list_offsets_options(settings: Settings, opener: ArchiveOpener = layout_opener) -> LookupOptions:
    """As `lookup_options`, with the local tier."""
    return replace(lookup_options(settings, opener), local=_local_tier(settings))


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
