"""Open what a run reads besides the archive: the metadata topic, and the brokers that know log starts.

A run that finds nothing new imports this, so it must not import what builds an index.
"""

from __future__ import annotations

from coldlog.archive.layouts.layout import NoArchiveError
from coldlog.archive.open_archive import open_store
from coldlog.brokers.kafka_client import Cluster, open_cluster
from coldlog.errors import UsageError
from coldlog.indexing.events.event_sources import LogSegmentsSource, TableSource
from coldlog.indexing.events.live_topic import TopicSource
from coldlog.indexing.scan.log_starts import ask_log_start_offsets
from coldlog.runtime.open_layout import decode_limits, s3_options
from coldlog.runtime.settings import MetadataSource, Settings
from coldlog.tiering.expiry.supplied_log_starts import LiveLogStarts


def ask_live_log_starts(settings: Settings) -> LiveLogStarts | None:
    """Ask the brokers that `log_start_offsets.bootstrap_servers` names; None if it names none."""
    servers = settings.log_start_offsets.bootstrap_servers
    return None if servers is None else ask_log_start_offsets(settings.warehouse_uri, _cluster(settings, servers))


def _cluster(settings: Settings, bootstrap_servers: str) -> Cluster:
    return open_cluster(bootstrap_servers, settings.metadata.timeout_ms, settings.metadata.client_config)


def open_event_source(settings: Settings) -> LogSegmentsSource | TableSource | TopicSource | None:
    """Open the source that `metadata.*` names; None if neither `metadata.uri` nor a live topic is set."""
    metadata = settings.metadata
    if metadata.source is MetadataSource.TOPIC:
        if metadata.bootstrap_servers is None:
            raise UsageError("metadata.source = topic needs brokers: give --set metadata.bootstrap_servers=host:port")
        return TopicSource(cluster=_cluster(settings, metadata.bootstrap_servers), topic=metadata.topic)
    if metadata.uri is None:
        return None
    if metadata.source is MetadataSource.TABLE:
        return TableSource(uri=metadata.uri)
    try:
        store = open_store(metadata.uri, s3_options(settings))
    except NoArchiveError as missing:
        raise UsageError(f"{missing}; correct metadata.uri") from missing
    return LogSegmentsSource(store=store, topic=metadata.topic, limits=decode_limits(settings))
