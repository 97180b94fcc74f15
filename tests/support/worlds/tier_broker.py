"""tier_broker: a broker's tier and its metadata topic, of small topics, as a test lets it go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, WrittenSegment, write_archive
from builders.metadata_topic import finished, values_of, write_topic
from builders.segment_builder import Batch, Record, Segment, abort_marker
from coldlog.formats.kafka.remote_log.remote_log_events import Event

OFFSETS = 6
"""Of each segment."""
_FIRST_MS = 1_700_000_000_000


def segment(start: int) -> Segment:
    """Plain records, and a transaction that is aborted."""
    plain = Batch(base_offset=start, records=tuple(Record(timestamp_ms=1_000 + start + at) for at in range(3)))
    wrote = Batch(
        base_offset=start + 3,
        records=tuple(Record(timestamp_ms=900 + start + at) for at in range(2)),
        is_transactional=True,
        producer_id=7,
        producer_epoch=0,
        base_sequence=start,
    )
    end = start + OFFSETS - 1
    marker = abort_marker(offset=end, timestamp_ms=1_000 + end, producer_id=7, producer_epoch=0, leader_epoch=0)
    return Segment(batches=(plain, wrote, marker))


def directory(archive: Path, name: str) -> Path:
    """The directory of a partition, as orders-0."""
    (found,) = (archive / ARCHIVE_FOLDER).glob(f"{name}-*")
    return found


def remove_first_segment(archive: Path, name: str) -> None:
    stem = min(directory(archive, name).glob("*.log")).stem
    for file in directory(archive, name).glob(f"{stem}.*"):
        file.unlink()


class Broker:
    """A tier of topics with one partition each, the events that the metadata topic has, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.archive, self.topic, self.now_ms = folder / "archive", folder / "rlmm", _FIRST_MS
        self.values: list[bytes | None] = []

    def again(self) -> Broker:
        """A broker that goes on from here, over the same folder."""
        broker = Broker(self.archive.parent)
        broker.now_ms, broker.values = self.now_ms, [*self.values]
        return broker

    def write(self, topic: str, count: int) -> list[WrittenSegment]:
        """Write so many segments; those that are there stay as they are, their times too."""
        segments = [replace(segment(at * OFFSETS), modified_ms=_FIRST_MS + at * 1_000) for at in range(count)]
        return write_archive(self.archive, {TopicPartition(topic=topic, partition=0): segments})

    def tell(self, events: Sequence[Event], *, later_ms: int = 1_000) -> None:
        self.now_ms += later_ms
        self.values += values_of([replace(event, event_timestamp_ms=self.now_ms) for event in events])
        write_topic(self.topic, {0: self.values})

    def copy(self, topic: str, count: int) -> None:
        """Write so many segments, and announce the last one as copied."""
        self.tell(finished(self.write(topic, count)[-1]))
