"""Test which of two complete copies of the same offsets answers, as in docs/how-to/use-the-metadata-topic.md."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.rows import requests_from_rows
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from golden_warehouse import run_pipeline

WON_MS, LOST_MS = 1_000, 900_000
"""First timestamps of the copy that must answer and of the other; they differ, so that a wrong answer is noticed."""

# By the rule that decides: the first letter of the id and the leader epochs (four records each) of the copy that must
# answer, then those of the other. The next rule would choose the other one.
PAIRS = {
    "epoch": (("A", (0, 1)), ("z", (0, 0, 0))),
    "length": (("A", (0, 0, 0)), ("z", (0, 0))),
    "id": (("z", (0, 0)), ("A", (0, 0))),
}


def copy_of(first_ms: int, letter: str, epochs: tuple[int, ...]) -> Segment:
    """A copy from offset 0 on, with records one millisecond apart. Other partitions have a segment with the same id, as
    if somebody had copied a partition's directory."""
    batches = tuple(
        Batch(
            base_offset=4 * number,
            records=tuple(Record(timestamp_ms=first_ms + 4 * number + each) for each in range(4)),
            leader_epoch=epoch,
        )
        for number, epoch in enumerate(epochs)
    )
    return Segment(batches=batches, segment_id=letter.ljust(21, "x") + "A")


def test_the_copy_with_the_higher_epoch_then_more_offsets_then_the_greater_id_answers(
    spark: SparkSession, tmp_path: Path
) -> None:
    winners, archive = {}, {}
    for topic, (winner, loser) in PAIRS.items():
        for partition in (0, 1):
            place = TopicPartition(topic=topic, partition=partition)
            winners[place] = copy_of(WON_MS, *winner)
            both = [winners[place], copy_of(LOST_MS, *loser)]
            # The leader epoch checkpoints that come with them are those of the order of writing.
            archive[place] = both[::-1] if partition else both
    write_archive(tmp_path / "archive", archive)
    warehouse = run_pipeline(spark, tmp_path / "archive", tmp_path / "warehouse")

    ends = {(place.topic, place.partition, each.segment_id): each.end_offset for place, each in winners.items()}
    for row in warehouse.read(SEGMENTS).collect():
        served = row["not_served_reason"], row["served_from_offset"], row["served_to_offset"]
        end = ends.pop((row["topic"], row["partition"], row["segment_id"]), None)
        assert served == (("duplicate", None, None) if end is None else (None, 0, end)), row["segment_id"]
    assert ends == {}
    known = warehouse.read(PARTITION_METADATA).collect()
    assert {(row["topic"], row["partition"]): row["latest_tiered_offset"] for row in known} == {
        (place.topic, place.partition): segment.end_offset for place, segment in winners.items()
    }

    asked: list[tuple[object, ...]] = []
    expected: list[tuple[int | None, int | None]] = []
    for place, segment in winners.items():
        records = segment.placed_records
        times = [*(record.timestamp_ms for record in records), records[-1].timestamp_ms + 1, LOST_MS]
        asked += [(place.topic, place.partition, timestamp_ms) for timestamp_ms in times]
        expected += [*((record.offset, record.leader_epoch) for record in records), (None, None), (None, None)]
    answers = find_offsets_for_timestamps(warehouse, requests_from_rows(asked)).to_pylist()
    assert [(answer["offset"], answer["leader_epoch"]) for answer in answers] == expected
