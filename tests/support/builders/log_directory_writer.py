"""Write segments to a broker's log directory.

As `archive_writer`, but with the files of a broker: a snapshot is named by the base offset of the next segment, the
leader epoch checkpoint is one file, the active segment's indexes are preallocated, and checkpoints are beside the
partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builders.segment_builder import Segment, build_batch
from builders.side_files import (
    ProducerStates,
    build_indexes,
    build_leader_epoch_checkpoint,
    build_snapshot,
    build_txn_index,
    extend_lineage,
)

LOG_STARTS, HIGH_WATERMARKS = "log-start-offset-checkpoint", "replication-offset-checkpoint"
INDEX_BYTES = 1_200


def write_partition(
    directory: Path,
    topic: str,
    partition: int,
    segments: Sequence[Segment],
    *,
    first: int = 0,
    topic_id: str = "AAAAAAAAAAAAAAAAAAAAAA",
) -> Path:
    """Write the segments from number `first` on, in offset order; the last one is active. Return the partition's
    directory, in which earlier files stay."""
    folder = directory / f"{topic}-{partition}"
    folder.mkdir(parents=True, exist_ok=True)
    states, lineage = ProducerStates(), list[tuple[int, int]]()
    for number, segment in enumerate(segments):
        stem, is_active = f"{segment.start_offset:020d}", number == len(segments) - 1
        if number >= first and (number or first):
            (folder / f"{stem}.snapshot").write_bytes(build_snapshot(states))
        aborted = [one for batch in segment.batches if (one := states.add(batch)) is not None]
        lineage = extend_lineage(lineage, segment.batches)
        if number < first:
            continue
        batches = [build_batch(batch) for batch in segment.batches]
        offset_index, time_index = build_indexes(segment, [len(batch) for batch in batches])
        (folder / f"{stem}.log").write_bytes(b"".join(batches))
        (folder / f"{stem}.index").write_bytes(offset_index.ljust(INDEX_BYTES * is_active, b"\0"))
        (folder / f"{stem}.timeindex").write_bytes(time_index.ljust(INDEX_BYTES * is_active, b"\0"))
        if aborted:
            (folder / f"{stem}.txnindex").write_bytes(build_txn_index(aborted))
    (folder / "leader-epoch-checkpoint").write_bytes(build_leader_epoch_checkpoint(lineage))
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    return folder


def write_offset_checkpoint(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Write a checkpoint of offsets by partition."""
    lines = [
        "0",
        f"{len(offsets)}",
        *(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()),
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
