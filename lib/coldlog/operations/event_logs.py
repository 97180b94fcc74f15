"""event_logs: where does the tier announce its segments, and what was announced there so far?

`DirectoryEventLog`   a metadata topic's log in a directory of our own (`archive.metadata_log_writer`); what the jobs
                      read with `metadata.uri`
`TopicEventLog`       the metadata topic of a running cluster, so that its brokers know the segments as their own

A topic-partition's events go to the partition of the metadata topic in which a broker looks for them, and come out of
it in their order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from coldlog.archive.local_store import LocalStore
from coldlog.archive.metadata_log import iter_metadata_records, list_metadata_partitions
from coldlog.archive.metadata_log_writer import MetadataLogWriter, writing_metadata_log
from coldlog.brokers.event_producer import EventProducer, producing
from coldlog.brokers.kafka_client import Cluster, OffsetSpec, describe_topics, iter_records, list_offsets
from coldlog.errors import ArchiveError, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.formats.metadata_partition import find_metadata_partition
from coldlog.formats.remote_log_events import Event, PartitionDeleteEvent, SegmentSnapshotEvent
from coldlog.formats.remote_log_metadata import decode_event, encode_event
from coldlog.model.ids import TopicIdPartition
from coldlog.tier.remote_segments import RemoteSegment, RemoteSegments
from coldlog.tier.segment_copy import EventLog


class ReadableEventLog(EventLog, Protocol):
    """An EventLog that knows what was announced in it."""

    def read_segments(self) -> RemoteSegments:
        """What all its events say."""


@dataclass(frozen=True, slots=True)
class KnownEventLog:
    """An EventLog that remembers: `known` is what the log held when it was opened, and what was appended since."""

    events: EventLog
    known: RemoteSegments
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, event: Event) -> None:
        """Announced, then remembered."""
        self.events.append(event)
        with self._lock:
            self.known.apply(event)

    def segments_of(self, partition: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        """A partition's segments now, deleted ones too."""
        with self._lock:
            return self.known.of(partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryEventLog:
    """An EventLog; for all threads of the process that has it open."""

    writer: MetadataLogWriter
    limits: DecodeLimits

    def append(self, event: Event) -> None:
        """Synchronized to the disk when it returns."""
        partition = find_metadata_partition(_partition_of(event), self.writer.partition_count)
        self.writer.append(partition, [encode_event(event)], event.event_timestamp_ms)

    def read_segments(self) -> RemoteSegments:
        """What all events say; damage in the log is an `ArchiveError`."""
        store = LocalStore(root=self.writer.directory, uri=self.writer.directory)
        known = RemoteSegments()
        for partition in list_metadata_partitions(store, self.writer.topic):
            for record in iter_metadata_records(store, partition, 0, self.limits):
                _apply(known, record.value)
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEventLog:
    """An EventLog over a live topic."""

    producer: EventProducer
    partition_count: int

    def append(self, event: Event) -> None:
        """Acknowledged when it returns."""
        partition = find_metadata_partition(_partition_of(event), self.partition_count)
        self.producer.append(partition, encode_event(event), event.event_timestamp_ms)

    def read_segments(self) -> RemoteSegments:
        """What the topic holds now."""
        cluster, topic = self.producer.cluster, self.producer.topic
        places = [(topic, partition) for partition in range(self.partition_count)]
        earliest = list_offsets(cluster, places, OffsetSpec.EARLIEST)
        latest = list_offsets(cluster, places, OffsetSpec.LATEST)
        known = RemoteSegments()
        for place in places:
            if earliest[place] < latest[place]:
                for records in iter_records(cluster, topic, place[1], earliest[place], latest[place]):
                    for record in records:
                        _apply(known, record.value)
        return known


@contextmanager
def directory_event_log(
    directory: str, *, topic: str, partition_count: int, limits: DecodeLimits
) -> Iterator[DirectoryEventLog]:
    """The log in a directory, open for this process alone."""
    with writing_metadata_log(directory, topic=topic, partition_count=partition_count) as writer:
        yield DirectoryEventLog(writer=writer, limits=limits)


@contextmanager
def topic_event_log(cluster: Cluster, topic: str) -> Iterator[TopicEventLog]:
    """The topic of a cluster, which must be there."""
    described = describe_topics(cluster, [topic]).get(topic)
    if described is None:
        raise UsageError(
            f"there is no topic {topic} at {cluster.bootstrap_servers}; its brokers make it when tiered storage is on"
        )
    with producing(cluster, topic) as producer:
        yield TopicEventLog(producer=producer, partition_count=len(described.partitions))


def _apply(known: RemoteSegments, value: bytes | None) -> None:
    """A value that is no event changes nothing, as for a broker."""
    try:
        event = decode_event(value or b"")
    except ArchiveError:
        known.dropped_count += 1
        return
    known.apply(event)


def _partition_of(event: Event) -> TopicIdPartition:
    match event:
        case PartitionDeleteEvent():
            return event.topic_id_partition
        case SegmentSnapshotEvent():
            raise UsageError("a snapshot of segments is no event of the metadata topic")
    return event.remote_log_segment_id.topic_id_partition
