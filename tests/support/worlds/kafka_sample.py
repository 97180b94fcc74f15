"""kafka_sample: where are the golden bytes of a real broker, and what did the broker say of them?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

KAFKA_SAMPLE = Path(__file__).parents[2] / "golden" / "kafka-sample"
TIERED_STORAGE = KAFKA_SAMPLE / "archive" / "kafka-tiered-storage"


class AbortedTransaction(TypedDict):
    """An entry of a txn index, as Kafka's own class read it."""

    version: int
    pid: int
    first: int
    last: int
    lso: int


class TrueSegment(TypedDict):
    """A line of truth/segments.jsonl; see FORMAT.md there. Not all of its fields are named here; those from rec_max_ts
    on are there for finished segments alone."""

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    path: str
    state: str
    start_offset: int
    end_offset: int
    size: int
    leader_epochs: dict[str, int]
    rec_max_ts: int
    txnindex_present: bool
    aborted: list[AbortedTransaction]


def true_segments(state: str = "") -> list[TrueSegment]:
    """Every segment that was ever announced, or those whose last state is `state`."""
    with (KAFKA_SAMPLE / "truth" / "segments.jsonl").open(encoding="utf-8") as lines:
        segments: list[TrueSegment] = [json.loads(line) for line in lines]
    return [segment for segment in segments if state in ("", segment["state"])]


def golden_files(suffix: str) -> Iterator[tuple[int, memoryview]]:
    """Base offset and content of every file of the sample with that suffix, tiered or of the metadata topic."""
    for root in (TIERED_STORAGE, KAFKA_SAMPLE / "rlmm"):
        for path in sorted(root.glob(f"*/*{suffix}")):
            yield int(path.name[:20]), memoryview(path.read_bytes())
