"""Build a metadata topic with keys, as proposed by KIP-1266, and compact it as Kafka's cleaner does.

No broker writes such a topic yet. `KeyedLog` is the log of one metadata partition: the cleaner compacts all segments
except the active one, retention removes the oldest segments. `Draft` has the keys, message versions and tombstones of
both drafts (see `remote_log_keys`). `write_lives` writes the events of many segments in a random order that is possible
for brokers.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from random import Random

from builders.metadata_events import SEGMENT, UPDATE
from builders.segment_builder import Batch, Record, build_segment
from coldlog.formats.kafka.remote_log.remote_log_events import (
    Event,
    SegmentMetadataEvent,
    SegmentUpdateEvent,
    UnknownTags,
)
from coldlog.formats.kafka.remote_log.remote_log_metadata import encode_event
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition, uuid_bytes, uuid_text
from coldlog.model.states import RemoteLogSegmentState

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState


class Draft(Enum):
    """The draft that defines the keys of the records."""

    KEY_A_STATE = "apache/kafka pull request 22774"
    KEY_FOR_UPDATES = "apache/kafka pull request 22459"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRecord:
    """A record of the topic."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class KeyedLog:
    """The log of one metadata partition; its last segment is the active one."""

    records: list[KeyedRecord] = field(default_factory=list)
    segment_starts: list[int] = field(default_factory=lambda: [0])
    next_offset: int = 0
    _seen_tombstones: set[int] = field(default_factory=set)

    def append(self, key: bytes | None, value: bytes | None) -> None:
        """Append a record."""
        self.records.append(KeyedRecord(offset=self.next_offset, key=key, value=value))
        self.next_offset += 1

    def roll(self) -> None:
        """Begin a new active segment; Kafka does so before a record for which the old one is too full."""
        if self.next_offset > self.segment_starts[-1]:
            self.segment_starts.append(self.next_offset)

    def compact(self, *, is_long_after: bool = False) -> None:
        """Run the cleaner once; a tombstone is removed long after the first run that found it."""
        active = self.segment_starts[-1]
        newest = {record.key: record.offset for record in self.records if record.offset < active}
        expired = self._seen_tombstones if is_long_after else set()
        self.records = [
            record
            for record in self.records
            if record.offset >= active
            or (record.key is not None and newest[record.key] == record.offset and record.offset not in expired)
        ]
        self._seen_tombstones = {each.offset for each in self.records if each.value is None and each.offset < active}

    def remove_oldest_segment(self) -> None:
        """Remove the oldest segments, as retention does."""
        if len(self.segment_starts) > 1:
            del self.segment_starts[0]
            self.records = [record for record in self.records if record.offset >= self.segment_starts[0]]

    def write(self, directory: Path, partition: int = 0) -> Path:
        """The files of the log, with one record per batch."""
        folder = directory / f"__remote_log_metadata-{partition}"
        folder.mkdir(parents=True)
        for start, end in itertools.pairwise((*self.segment_starts, self.next_offset)):
            held = [record for record in self.records if start <= record.offset < end]
            batches = [
                Batch(
                    base_offset=record.offset,
                    records=(Record(timestamp_ms=1_000 + record.offset, key=record.key, value=record.value),),
                )
                for record in held
            ]
            (folder / f"{start:020d}.log").write_bytes(build_segment(batches))
        return directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A copy of a segment by a leader."""

    first: SegmentMetadataEvent
    leader_epoch: int = 0

    @property
    def segment_id(self) -> str:
        """The id of the copied segment."""
        return self.first.remote_log_segment_id.segment_id

    def event(self, state: RemoteLogSegmentState, draft: Draft) -> SegmentMetadataEvent | SegmentUpdateEvent:
        """The event of a state in this draft."""
        epoch, end_offset = struct.pack(">i", self.leader_epoch), struct.pack(">q", self.first.end_offset)
        is_new = draft is Draft.KEY_FOR_UPDATES
        if state is STARTED:
            tags = UnknownTags(event=((1, epoch),))
            return replace(self.first, version=1, unknown_tags=tags) if is_new else self.first
        update = replace(UPDATE, remote_log_segment_id=self.first.remote_log_segment_id, state=state)
        tags = UnknownTags(event=((0, epoch), (1, end_offset)))
        return replace(update, version=1, unknown_tags=tags) if is_new else update

    def key(self, state: RemoteLogSegmentState, draft: Draft) -> bytes:
        """The key of this event's record."""
        segment_id = self.first.remote_log_segment_id
        of_partition = segment_id.topic_id_partition
        if draft is Draft.KEY_A_STATE:
            partition = struct.pack(">i", of_partition.partition)
            return uuid_bytes(of_partition.topic_id) + partition + uuid_bytes(segment_id.segment_id) + bytes((state,))
        place = f"{of_partition.topic_id}:{of_partition.topic}:{of_partition.partition}"
        suffix = "" if state is STARTED else ":UPDATE"
        return f"{place}:{self.first.end_offset}:{self.leader_epoch}{suffix}".encode()

    def tombstone_keys(self, draft: Draft) -> list[bytes]:
        """The keys for which tombstones are written after the deletion has finished, in the order of the draft."""
        if draft is Draft.KEY_A_STATE:
            return [self.key(state, draft) for state in RemoteLogSegmentState]
        return [self.key(FINISHED, draft), self.key(STARTED, draft)]


Step = tuple[Upload, RemoteLogSegmentState | bytes]
"""An upload and its next state, or the key of a tombstone."""


def write_lives(random: Random, draft: Draft, partition_count: int = 3) -> tuple[list[Event], KeyedLog]:
    """All events that brokers wrote, and their topic after rolls and runs of the cleaner."""
    waiting = [list(_partition_steps(random, draft, number)) for number in range(partition_count)]
    events: list[Event] = []
    log = KeyedLog()
    while any(waiting):
        steps = random.choice([steps for steps in waiting if steps])
        upload, what = steps.pop(0)
        for _ in range(random.choice((1, 1, 1, 2))):  # A producer that got no answer sends again.
            if isinstance(what, bytes):
                log.append(what, None)
            else:
                event = upload.event(what, draft)
                events.append(event)
                log.append(upload.key(what, draft), encode_event(event))
        if random.random() < 0.2:
            log.roll()
        if random.random() < 0.1:
            log.compact(is_long_after=random.random() < 0.5)
    return events, log


def _partition_steps(random: Random, draft: Draft, number: int) -> Iterator[Step]:
    """Copies one after another; sometimes the oldest segment is deleted."""
    partition = TopicIdPartition(topic=f"topic-{number}", topic_id=uuid_text(bytes(15) + bytes((number,))), partition=0)
    kept: list[Upload] = []
    late: list[Step] = []
    for start in range(0, 10 * random.randint(1, 6), 10):
        if random.random() < 0.3:
            failed = _upload(random, partition, start, leader_epoch=0)
            yield failed, STARTED
            if random.random() < 0.5:  # The leader cleans up what it left.
                late += yield from _deletion_steps(random, draft, failed)
        upload = _upload(random, partition, start, leader_epoch=random.choice((0, 1)))
        yield upload, STARTED
        yield from late
        late = []
        if random.random() < 0.9:
            yield upload, FINISHED
            kept.append(upload)
        while kept and random.random() < 0.35:
            late += yield from _deletion_steps(random, draft, kept.pop(0))
    yield from late


def _deletion_steps(random: Random, draft: Draft, upload: Upload) -> Generator[Step, None, list[Step]]:
    """Write the tombstones; the last one may be late, and then it is returned, or missing."""
    yield upload, DELETING
    if random.random() < 0.2:
        return []
    yield upload, DELETED
    *soon, last = upload.tombstone_keys(draft)
    for key in soon:
        yield upload, key
    return [(upload, last)] if random.random() < 0.5 else []


def _upload(random: Random, partition: TopicIdPartition, start: int, leader_epoch: int) -> Upload:
    segment_id = RemoteLogSegmentId(topic_id_partition=partition, segment_id=uuid_text(random.randbytes(16)))
    first = replace(
        SEGMENT,
        remote_log_segment_id=segment_id,
        start_offset=start,
        end_offset=start + 9,
        segment_leader_epochs=((leader_epoch, start),),
        txn_index_empty=random.choice((None, True)),
        size_bytes=random.randint(1, 9_999),
    )
    return Upload(first=first, leader_epoch=leader_epoch)
