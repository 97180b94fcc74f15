"""Append segment events to the remote log metadata, and read the events so far.

`DirectoryEventLog`   a log in the format of the metadata topic, in a directory (`archive.metadata_log_writer`); the
                      jobs read it with `metadata.uri`
`TopicEventLog`       the metadata topic of a running cluster; its brokers then know the segments as their own

The events of a topic-partition are written to the partition of the metadata topic in which a broker looks for them.
They are read in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from coldlog.archive.metadata_log_reader import LogPosition, read_new_records
from coldlog.archive.metadata_log_writer import MetadataLogWriter, writing_metadata_log
from coldlog.archive.stores.local_store import LocalStore
from coldlog.brokers.event_producer import EventProducer, producing
from coldlog.brokers.kafka_client import Cluster, OffsetSpec, describe_topics, iter_records, list_offsets
from coldlog.errors import ArchiveError, UsageError
from coldlog.formats.kafka.remote_log.remote_log_events import Event, PartitionDeleteEvent, SegmentSnapshotEvent
from coldlog.formats.kafka.remote_log.remote_log_metadata import decode_event, encode_event
from coldlog.formats.limits import DecodeLimits
from coldlog.model.ids import TopicIdPartition
from coldlog.tiering.rules.metadata_partition import find_metadata_partition
from coldlog.tiering.rules.remote_segments import RemoteSegment, RemoteSegments


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPlace:
    """The position of an event: partition of the metadata topic, and offset in it."""

    partition: int
    offset: int


LoggedValue = tuple[EventPlace, bytes | None]


class EventReader(Protocol):
    """Read a log incrementally: each call returns the records that are new."""

    @property
    def is_complete(self) -> bool:
        """True if nothing had been removed from the log before it was read."""

    def read_new(self, partition: int | None = None) -> Iterator[LoggedValue]:
        """Yield the new records of one partition, or of all. Raise `ArchiveError` if the log is damaged."""


class ReadableEventLog(Protocol):
    """An EventLog that can also be read."""

    def append(self, event: Event) -> EventPlace:
        """Append as an EventLog does, and return where the event is."""

    def open_reader(self) -> EventReader:
        """Return a reader that starts at the beginning."""


class KnownEventLog:
    """An EventLog that knows the segments of all events: those read at the start, those appended here, and those that
    other processes appended before the last `refresh`. Threads may share it."""

    def __init__(self, events: ReadableEventLog) -> None:
        self._events = events
        self._reader = events.open_reader()
        self._known = RemoteSegments()
        self._next_offsets: dict[int, int] = {}
        self._unreadable_count = 0
        self._lock = threading.Lock()
        self.refresh()

    @property
    def is_complete(self) -> bool:
        """True if nothing had been removed from the log before it was read, and all of it could be read."""
        return self._reader.is_complete and not self._unreadable_count

    def append(self, event: Event) -> None:
        """Append the event, then apply it after the events that other processes appended before it."""
        place = self._events.append(event)
        with self._lock:
            expected = self._next_offsets.get(place.partition, 0)
            if place.offset == expected:
                self._known.apply(event)
                self._next_offsets[place.partition] = expected + 1
            elif place.offset > expected:
                self._read_new(place.partition)

    def refresh(self) -> None:
        """Apply the events that other processes appended since."""
        with self._lock:
            self._read_new(None)

    def segments_of(self, partition: TopicIdPartition) -> tuple[RemoteSegment, ...]:
        """Return a partition's segments, also the deleted ones."""
        with self._lock:
            return self._known.of(partition)

    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """Return the partitions that have a segment."""
        with self._lock:
            return self._known.partitions()

    def current_topic_ids(self) -> dict[tuple[str, int], str]:
        """Return the topic id of each topic-partition: of a topic that was created again, the one that was copied
        last."""
        with self._lock:
            return self._known.current_topic_ids()

    @property
    def dropped_count(self) -> int:
        """Return how many events were dropped because they cannot be read or Kafka's rules do not allow them."""
        with self._lock:
            return self._known.dropped_count + self._unreadable_count

    def _read_new(self, partition: int | None) -> None:
        for place, value in self._reader.read_new(partition):
            # Skip what `append` has applied.
            if place.offset >= self._next_offsets.get(place.partition, 0):
                self._apply(value)
                self._next_offsets[place.partition] = place.offset + 1

    def _apply(self, value: bytes | None) -> None:
        """Apply a value; drop one that is not an event, as a broker does."""
        try:
            event = decode_event(value or b"")
        except ArchiveError:
            self._unreadable_count += 1
            return
        self._known.apply(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryEventLog:
    """An EventLog in a directory. Threads may share it; other processes may append too."""

    writer: MetadataLogWriter
    limits: DecodeLimits

    def append(self, event: Event) -> EventPlace:
        """Append the event; it is synced to disk on return."""
        partition = find_metadata_partition(_partition_of(event), self.writer.partition_count)
        offset = self.writer.append(partition, [encode_event(event)], event.event_timestamp_ms)
        return EventPlace(partition=partition, offset=offset)

    def open_reader(self) -> EventReader:
        """Return a reader of the log's files."""
        return DirectoryEventReader(writer=self.writer, limits=self.limits)


@dataclass(slots=True, kw_only=True)
class DirectoryEventReader:
    """An EventReader of a directory."""

    writer: MetadataLogWriter
    limits: DecodeLimits
    _positions: dict[int, LogPosition] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if the first file of each partition begins at offset 0."""
        return all(position.is_from_beginning for position in self._positions.values())

    def read_new(self, partition: int | None = None) -> Iterator[LoggedValue]:
        """Yield the records that were appended since the last call."""
        store = LocalStore(root=self.writer.directory, uri=self.writer.directory)
        partitions = range(self.writer.partition_count) if partition is None else (partition,)
        for number in partitions:
            since = self._positions.get(number, LogPosition())
            records, at = read_new_records(store, self.writer.topic, number, since, self.limits)
            for record in records:
                yield EventPlace(partition=number, offset=record.offset), record.value
            self._positions[number] = at


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEventLog:
    """An EventLog over a live topic."""

    producer: EventProducer
    partition_count: int

    def append(self, event: Event) -> EventPlace:
        """Append the event; the brokers have acknowledged it on return."""
        partition = find_metadata_partition(_partition_of(event), self.partition_count)
        offset = self.producer.append(partition, encode_event(event), event.event_timestamp_ms)
        return EventPlace(partition=partition, offset=offset)

    def open_reader(self) -> EventReader:
        """Return a reader of the topic."""
        return TopicEventReader(
            cluster=self.producer.cluster, topic=self.producer.topic, partition_count=self.partition_count
        )


@dataclass(slots=True, kw_only=True)
class TopicEventReader:
    """An EventReader of a topic. If offsets are missing, the topic was compacted, and it is not complete."""

    cluster: Cluster
    topic: str
    partition_count: int
    is_complete: bool = True
    _positions: dict[int, int] = field(default_factory=dict)

    def read_new(self, partition: int | None = None) -> Iterator[LoggedValue]:
        """Yield the new records up to the end that each partition has at the call."""
        numbers = range(self.partition_count) if partition is None else (partition,)
        places = [(self.topic, number) for number in numbers]
        unread = [place for place in places if place[1] not in self._positions]
        for place, earliest in list_offsets(self.cluster, unread, OffsetSpec.EARLIEST).items() if unread else ():
            self._positions[place[1]] = earliest
            self.is_complete = self.is_complete and earliest == 0
        latest = list_offsets(self.cluster, places, OffsetSpec.LATEST)
        for _, number in places:
            since, end = self._positions[number], latest[self.topic, number]
            if since < end:
                for records in iter_records(self.cluster, self.topic, number, since, end):
                    for record in records:
                        self.is_complete = self.is_complete and record.offset == since
                        since = record.offset + 1
                        yield EventPlace(partition=number, offset=record.offset), record.value
                self._positions[number] = end


@contextmanager
def directory_event_log(
    directory: str, *, topic: str, partition_count: int, limits: DecodeLimits
) -> Iterator[DirectoryEventLog]:
    """Open the log in a directory. Other processes may append to it at the same time."""
    with writing_metadata_log(directory, topic=topic, partition_count=partition_count) as writer:
        yield DirectoryEventLog(writer=writer, limits=limits)


@contextmanager
def topic_event_log(cluster: Cluster, topic: str) -> Iterator[TopicEventLog]:
    """Open the metadata topic of a cluster; raise `UsageError` if it does not exist."""
    described = describe_topics(cluster, [topic]).get(topic)
    if described is None:
        raise UsageError(
            f"topic {topic} does not exist at {cluster.bootstrap_servers}; a broker with tiered storage creates it"
        )
    with producing(cluster, topic) as producer:
        yield TopicEventLog(producer=producer, partition_count=len(described.partitions))


def _partition_of(event: Event) -> TopicIdPartition:
    match event:
        case PartitionDeleteEvent():
            return event.topic_id_partition
        case SegmentSnapshotEvent():
            raise UsageError("a snapshot of segments is not an event of the metadata topic")
    return event.remote_log_segment_id.topic_id_partition
