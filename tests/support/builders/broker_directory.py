"""Write a broker's log directory from which the golden segments could have been tiered.

It has the golden segments with the names of a log directory, after the last one of each partition an active segment
that ends all open transactions, and the checkpoints beside the partitions. Everything is committed.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from builders.log_directory_writer import HIGH_WATERMARKS, LOG_STARTS, write_offset_checkpoint
from builders.mirror_writer import write_mirror
from builders.segment_builder import build_segment, commit_marker
from coldlog.formats.kafka.producer_snapshot import read_producer_snapshot
from worlds.kafka_sample import TrueSegment


def write_broker_directory(directory: Path, topics: Collection[str]) -> list[TrueSegment]:
    """Write the directory; return its closed segments by topic, partition and offset."""
    segments = write_mirror(directory, topics=topics)
    last = {(each["topic"], each["partition"]): each for each in segments}
    high_watermarks = {place: _write_active(directory, segment) for place, segment in last.items()}
    starts = {(each["topic"], each["partition"]): each["start_offset"] for each in reversed(segments)}
    write_offset_checkpoint(directory / HIGH_WATERMARKS, high_watermarks)
    write_offset_checkpoint(directory / LOG_STARTS, {place: start for place, start in starts.items() if start})
    return segments


def _write_active(directory: Path, last: TrueSegment) -> int:
    """Write the segment after the last closed one; return its end."""
    folder, end = directory / f"{last['topic']}-{last['partition']}", last["end_offset"] + 1
    snapshot = read_producer_snapshot(memoryview((folder / f"{end:020d}.snapshot").read_bytes()))
    markers = [
        commit_marker(
            offset=end + number,
            timestamp_ms=0,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            leader_epoch=max(map(int, last["leader_epochs"])),
        )
        for number, producer in enumerate(each for each in snapshot.entries if each.has_open_transaction)
    ]
    (folder / f"{end:020d}.log").write_bytes(build_segment(markers))
    for suffix in (".index", ".timeindex"):
        (folder / f"{end:020d}{suffix}").write_bytes(b"")
    return end + len(markers)
