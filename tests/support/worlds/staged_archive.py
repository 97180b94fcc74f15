"""An archive that grows in four stages, indexed at each: topics to replay, to stream, and to read while files hang.

Each stage has an archive and a warehouse of its own, which extends that of the stage before. They are read only. A test
that needs growth follows a link (`show_stage`) from stage to stage, and reads its own topics alone.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker, uuid_text_of
from planning import as_large_tables
from worlds.golden_warehouse import run_pipeline

START_MS = 1_700_000_000_000
Place = tuple[str, int]
Logs = dict[Place, Sequence[int]]
"""Timestamps of each partition by offset."""


def _wavering(count: int, seed: int) -> list[int]:
    """Times that increase and decrease."""
    chance = np.random.default_rng(seed)
    return [START_MS + at * 10 + int(chance.integers(-400, 400)) for at in range(count)]


FUTURE: Logs = {
    ("future", 0): [*_wavering(30, 1), START_MS + 10**12, *_wavering(300, 2)],
    ("future", 1): [START_MS + 50] * 120,
    ("future-equal", 0): [START_MS + 50] * 120,
    ("future-odd", 11): [-5, START_MS, -1, *_wavering(200, 3)],
}
NEGATIVE: Logs = {
    ("negative", 0): [-5, START_MS + 9, -1, START_MS],
    ("negative", 1): [START_MS + 5, -(10**9)],
}
TASKS: Logs = {(f"task-{name}", number): _wavering(40, ord(name) + number) for name in "abc" for number in range(2)}
del TASKS["task-c", 1]
FIRST: Logs = {("next", 0): _wavering(30, 1), ("next", 1): [START_MS + 100_000]}
SECOND: Logs = {
    ("next", 0): [*FIRST["next", 0], *_wavering(10, 2)],
    ("next", 1): [START_MS + 100_000, START_MS + 100_001],
    ("next", 4): [7],
}
_WAITING: tuple[Logs, ...] = (
    {("wait", 0): _wavering(10, 1), ("wait", 1): _wavering(10, 2)},
    {("wait", 0): [*_wavering(10, 1), START_MS + 1_000], ("wait", 1): _wavering(10, 2)},
    {("wait", 0): [*_wavering(10, 1), START_MS + 1_000], ("wait", 1): [*_wavering(10, 2), START_MS + 900]},
    {
        ("wait", 0): [*_wavering(10, 1), START_MS + 1_000, START_MS + 2_000],
        ("wait", 1): [*_wavering(10, 2), START_MS + 900],
    },
)
_QUIET = [START_MS, -1, START_MS + 5, START_MS + 6]
"""A record a stage."""
_REPLAYED: tuple[Logs, ...] = tuple(
    {
        **FUTURE, **NEGATIVE, **TASKS, **(FIRST if stage == 0 else SECOND), **waiting,
        ("quiet", 0): _QUIET[: stage + 1],
    }
    for stage, waiting in enumerate(_WAITING)
)  # fmt: skip

_LARGE_STAGES = 2

STREAMED, STREAMED_LATER = (20, 10), (40, 10, 20)
"""Records of each partition of topic `stream`: in the first stage, and in the others."""
EXPIRED_BELOW = 30
"""The log start of topic `stream-expired`, which has 40 records."""
RECREATED, RECREATED_LATER = 20, 40
"""Records of topic `stream-recreated` in the first stage, and of the one that has its name and another id later."""


def _transactional(first: int, count: int, producer_id: int) -> Batch:
    return Batch(
        base_offset=first,
        records=tuple(Record(timestamp_ms=START_MS, value=b"v") for _ in range(count)),
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=first,
    )


def _open_transactions() -> list[Segment]:
    """The second segment ends the transactions of the first: that of producer 8 is aborted."""
    plain = [Batch(base_offset=offset, records=(Record(timestamp_ms=START_MS),)) for offset in (0, 5)]
    first = Segment(batches=(plain[0], _transactional(1, 2, 7), _transactional(3, 2, 8)))
    second = Segment(
        batches=(
            plain[1],
            abort_marker(offset=6, timestamp_ms=START_MS, producer_id=8, producer_epoch=0, leader_epoch=0),
            _transactional(7, 1, 7),
            commit_marker(offset=8, timestamp_ms=START_MS, producer_id=7, producer_epoch=0, leader_epoch=0),
        )
    )
    return [first, second]


def _segments(timestamps_ms: Sequence[int], modified_ms: int = START_MS) -> list[Segment]:
    """Of two batches of five records each."""
    return [
        Segment(
            batches=tuple(
                Batch(
                    base_offset=base,
                    records=tuple(Record(timestamp_ms=at, value=b"v%d" % at) for at in timestamps_ms[base : base + 5]),
                )
                for base in range(first, min(first + 10, len(timestamps_ms)), 5)
            ),
            modified_ms=modified_ms,
        )
        for first in range(0, len(timestamps_ms), 10)
    ]


def _ascending(count: int) -> list[Segment]:
    return _segments(range(START_MS, START_MS + count))


def _streamed(stage: int) -> dict[TopicPartition, list[Segment]]:
    counts = STREAMED if stage == 0 else STREAMED_LATER
    found = {TopicPartition(topic="stream", partition=each): _ascending(count) for each, count in enumerate(counts)}
    found[TopicPartition(topic="stream-expired", partition=0)] = _ascending(40)
    again = TopicPartition(topic="stream-recreated", partition=0)
    deleted = replace(again, topic_id=uuid_text_of("stream-recreated, deleted"))
    found[deleted] = _segments(range(START_MS, START_MS + RECREATED))
    if stage:
        found[again] = _segments(range(START_MS, START_MS + RECREATED_LATER), START_MS + 60_000)
    found[TopicPartition(topic="stream-transactions", partition=0)] = _open_transactions()[: 1 if stage == 0 else 2]
    return found


def build_stages(spark: SparkSession, folder: Path) -> None:
    """Archive and index one stage after another, each in a folder of its own. In the first two, one of which is new and
    one of which has grown, tables count as large."""
    with (folder / "log_starts.csv").open("w", newline="") as file:
        rows: Iterable[tuple[object, ...]] = [
            ("topic", "partition", "log_start_offset"), ("stream-expired", 0, EXPIRED_BELOW),
        ]  # fmt: skip
        csv.writer(file).writerows(rows)
    for stage, (logs, own) in enumerate(zip(_REPLAYED, stage_folders(folder), strict=True)):
        if stage:
            shutil.copytree(stage_folders(folder)[stage - 1] / "warehouse", own / "warehouse")
        places = {TopicPartition(topic=topic, partition=number): _segments(at) for (topic, number), at in logs.items()}
        write_archive(own / "archive", places | _streamed(stage))
        with as_large_tables() if stage < _LARGE_STAGES else nullcontext():
            run_pipeline(spark, own / "archive", own / "warehouse", log_start_offsets=folder / "log_starts.csv")


def stage_folders(folder: Path) -> list[Path]:
    """Where each stage has its `archive` and its `warehouse`."""
    return [folder / f"stage-{stage}" for stage in range(len(_REPLAYED))]


def show_stage(link: Path, stage: Path) -> None:
    """Let the link lead to that stage; who follows it meanwhile sees the one or the other."""
    following = link.with_name(f"{link.name}-following")
    following.symlink_to(stage)
    following.replace(link)
