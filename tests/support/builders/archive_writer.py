"""Write segments to the directory tree of LocalTieredStorage.

    <directory>/kafka-tiered-storage/<topic>-<partition>-<topic id>/<start offset, 20 digits>-<segment id><suffix>

Suffixes: .log .index .timeindex .snapshot .leader_epoch_checkpoint, and .txnindex if the segment has an abort marker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builders.segment_builder import Segment, build_batch, uuid_text_of
from builders.side_files import (
    ProducerStates,
    build_indexes,
    build_leader_epoch_checkpoint,
    build_snapshot,
    build_txn_index,
    extend_lineage,
)

ARCHIVE_FOLDER = "kafka-tiered-storage"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TopicPartition:
    """A partition and the id of its topic; "" means an id made from the name."""

    topic: str
    partition: int
    topic_id: str = ""

    @property
    def folder(self) -> str:
        """The directory's name."""
        return f"{self.topic}-{self.partition}-{self.topic_id or uuid_text_of(self.topic)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSegment:
    """A written segment; `stem` is the path of its files without the suffix."""

    topic_partition: TopicPartition
    segment: Segment
    segment_id: str
    stem: Path

    @property
    def log(self) -> Path:
        """The `.log` file."""
        return self.stem.with_name(self.stem.name + ".log")


def write_archive(directory: Path, archive: Mapping[TopicPartition, Sequence[Segment]]) -> list[WrittenSegment]:
    """Write the segments of every partition, in offset order, with all their files."""
    written: list[WrittenSegment] = []
    for topic_partition, segments in archive.items():
        folder = directory / ARCHIVE_FOLDER / topic_partition.folder
        folder.mkdir(parents=True, exist_ok=True)
        written += _write_partition(folder, topic_partition, segments)
    return written


def _write_partition(
    folder: Path, topic_partition: TopicPartition, segments: Sequence[Segment]
) -> list[WrittenSegment]:
    states, lineage = ProducerStates(), list[tuple[int, int]]()
    written: list[WrittenSegment] = []
    for number, segment in enumerate(segments):
        aborted = [one for batch in segment.batches if (one := states.add(batch)) is not None]
        lineage = extend_lineage(lineage, segment.batches)
        batches = [build_batch(batch) for batch in segment.batches]
        offset_index, time_index = build_indexes(segment, [len(batch) for batch in batches])
        files = {
            ".log": b"".join(batches),
            ".index": offset_index,
            ".timeindex": time_index,
            ".snapshot": build_snapshot(states),
            ".leader_epoch_checkpoint": build_leader_epoch_checkpoint(lineage),
            ".txnindex": build_txn_index(aborted),
        }
        segment_id = segment.segment_id or uuid_text_of(f"{topic_partition.folder}/{number}/{segment.start_offset}")
        stem = folder / f"{segment.start_offset:020d}-{segment_id}"
        _write_files(stem, files, segment.modified_ms)
        written.append(
            WrittenSegment(topic_partition=topic_partition, segment=segment, segment_id=segment_id, stem=stem)
        )
    return written


def _write_files(stem: Path, files: Mapping[str, bytes], modified_ms: int) -> None:
    for suffix, content in files.items():
        if suffix == ".txnindex" and not content:
            continue
        path = stem.with_name(stem.name + suffix)
        path.write_bytes(content)
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
