"""Write a mirror of the golden segments' log directories.

It has the broker's own bytes with the names of a log directory. Finished copies of a partition never overlap there, so
a mirror has each once. `SIDE_FILES` are the files beside the logs in a complete mirror; an uploader may omit any of
them.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from coldlog.archive.layouts.layout import SegmentFileKind
from coldlog.archive.layouts.local_tiered_storage import SUFFIXES
from worlds.kafka_sample import TIERED_STORAGE, TrueSegment, true_segments

SIDE_FILES = frozenset(kind for kind in SegmentFileKind if kind is not SegmentFileKind.LOG)


def golden_topics() -> set[str]:
    """Topics with a finished segment."""
    return {segment["topic"] for segment in true_segments("COPY_SEGMENT_FINISHED")}


def write_mirror(
    directory: Path,
    *,
    topics: Collection[str],
    kinds: Collection[SegmentFileKind] = SIDE_FILES,
    with_topic_ids: bool = True,
    prefix: str = "",
) -> list[TrueSegment]:
    """Write the partitions of `topics` below `directory`, with the prefix before their names; return their segments by
    topic, partition and offset."""
    segments = sorted(
        (each for each in true_segments("COPY_SEGMENT_FINISHED") if each["topic"] in topics),
        key=lambda each: (each["topic"], each["partition"], each["start_offset"]),
    )
    for segment in segments:
        folder = directory / f"{prefix}{segment['topic']}-{segment['partition']}"
        folder.mkdir(parents=True, exist_ok=True)
        if with_topic_ids:
            (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {segment['topic_id']}\n")
        for source, target in _files_of(segment, kinds):
            if source.exists():
                shutil.copyfile(source, folder / target)
                shutil.copystat(source, folder / target)
    return segments


def _files_of(segment: TrueSegment, kinds: Collection[SegmentFileKind]) -> Iterable[tuple[Path, str]]:
    """Write the files of a segment; the checkpoint of a later segment replaces that of an earlier one."""
    for kind in (SegmentFileKind.LOG, *kinds):
        source = TIERED_STORAGE / f"{segment['path']}{SUFFIXES[kind]}"
        yield source, mirrored_name(segment, kind)


def mirrored_name(segment: TrueSegment, kind: SegmentFileKind) -> str:
    """The name of a segment's file in its partition's directory."""
    if kind is SegmentFileKind.LEADER_EPOCH_CHECKPOINT:
        return "leader-epoch-checkpoint"
    is_at_end = kind is SegmentFileKind.PRODUCER_SNAPSHOT
    offset = segment["end_offset"] + 1 if is_at_end else segment["start_offset"]
    return f"{offset:020d}{SUFFIXES[kind]}"
