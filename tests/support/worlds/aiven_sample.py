"""aiven_sample: where are the archives that the Aiven plugin wrote, and what is true of them?"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TypedDict

from coldlog.archive.layouts.layout import SegmentFileKind

AIVEN_SAMPLE = Path(__file__).parents[2] / "golden" / "aiven-sample"
VARIANTS = ("plain", "zstd", "encrypted", "zstd-encrypted", "faults")
ORIGINAL_NAMES = {
    SegmentFileKind.LOG: "log",
    SegmentFileKind.OFFSET_INDEX: "offset",
    SegmentFileKind.TIME_INDEX: "timestamp",
    SegmentFileKind.TXN_INDEX: "transaction",
    SegmentFileKind.PRODUCER_SNAPSHOT: "producerSnapshot",
    SegmentFileKind.LEADER_EPOCH_CHECKPOINT: "leaderEpoch",
}


class OriginalFile(TypedDict):
    """A file as the broker handed it to the plugin."""

    size: int
    sha256: str


class TrueSegment(TypedDict):
    """A line of truth/segments.jsonl; not all of its fields."""

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    max_ts: int
    size: int
    txn_idx_empty: bool
    state: str
    objects: dict[str, int]
    original: dict[str, OriginalFile | None]


class TrueAnswer(TypedDict):
    """A line of truth/list_offsets.jsonl; offset -1 and epoch null where the broker found nothing."""

    topic: str
    partition: int
    timestamp: int
    offset: int
    result_timestamp: int
    leader_epoch: int | None
    in_archive: bool


def archive_of(variant: str) -> Path:
    """The root that the plugin's storage wrote to."""
    return AIVEN_SAMPLE / variant / "archive"


@cache
def true_segments(variant: str) -> dict[str, TrueSegment]:
    """Every segment that was ever announced, by id."""
    with (AIVEN_SAMPLE / variant / "truth" / "segments.jsonl").open(encoding="utf-8") as lines:
        return {segment["segment_id"]: segment for segment in map(json.loads, lines)}


def finished_segments(variant: str) -> dict[str, TrueSegment]:
    """Those whose copy was finished and not deleted."""
    return {key: each for key, each in true_segments(variant).items() if each["state"] == "COPY_SEGMENT_FINISHED"}


def true_answers(variant: str, *, read_committed: bool = False) -> list[TrueAnswer]:
    """What the broker answered."""
    name = "list_offsets_read_committed.jsonl" if read_committed else "list_offsets.jsonl"
    with (AIVEN_SAMPLE / variant / "truth" / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def true_partitions(variant: str) -> list[dict[str, object]]:
    """The lines of truth/partitions.jsonl."""
    with (AIVEN_SAMPLE / variant / "truth" / "partitions.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def key_files(variant: str) -> dict[str, Path]:
    """The private key of each pair."""
    folder = AIVEN_SAMPLE / variant / "keys"
    return {path.name.split("-")[-1].partition(".")[0]: path for path in sorted(folder.glob("*.private.pem"))}


def keys_setting(variant: str) -> str:
    """The value of COLDLOG_DECRYPTION_KEYS that opens the variant."""
    return ",".join(f"{key_id}={path}" for key_id, path in key_files(variant).items())
